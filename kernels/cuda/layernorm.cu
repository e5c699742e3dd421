// Layer normalization. Forward reads each row from memory once and keeps it in shared memory if it
// fits. It computes the mean and variance in two passes (not as E[x^2] - E[x]^2, which cancels).
// Backward keeps a row in registers if its threads have one access each, and reads it twice if they have
// more. Each block sums the gradients of weight and bias over its rows, in shared memory if they fit, and
// writes the sums to the workspace once. The blocks that finish last add the blocks' sums, in an order that
// depends on the sizes only.
#include "kernels/cuda/channel_sums.cuh"
#include "kernels/cuda/layers/norm.cuh"

namespace {

// ---- forward

template <class T> struct forward_tensors {
    T *out;
    float *mean, *rstd; // may both be NULL
    const T *x, *weight, *bias;
};

// GROUP threads per row. `staged`: shared memory holds the block's rows; otherwise each pass reads x.
template <class T, int WIDTH, int GROUP>
__global__ void __launch_bounds__(NORM_FORWARD_THREADS)
    layernorm_forward(const forward_tensors<T> tensors, int N, int C, float epsilon, bool staged) {
    __shared__ float scratch[NORM_FORWARD_THREADS / WARP];
    int row =
        static_cast<int>(blockIdx.x) * (NORM_FORWARD_THREADS / GROUP) + static_cast<int>(threadIdx.x) / GROUP;
    if (row >= N)
        return; // only whole warps return; if a block shares one row, none of its warps returns
    int first = static_cast<int>(threadIdx.x) % GROUP * WIDTH;
    size_t begin = static_cast<size_t>(row) * static_cast<size_t>(C);
    const T *x = tensors.x + begin;
    T *kept = staged ? dynamic_shared<T>() + static_cast<size_t>(threadIdx.x / GROUP) * static_cast<size_t>(C)
                     : nullptr;

    float sum = 0.0f;
#pragma unroll 2
    for (int c = first; c < C; c += GROUP * WIDTH) {
        floats<WIDTH> value = load<WIDTH>(x + c);
        for (int k = 0; k < WIDTH; k++)
            sum += value.x[k];
        if (staged)
            store(kept + c, value);
    }
    if (staged)
        x = kept;
    float mean = group_sum<GROUP>(sum, scratch) / static_cast<float>(C);

    sum = 0.0f;
    for (int c = first; c < C; c += GROUP * WIDTH) {
        floats<WIDTH> value = load<WIDTH>(x + c);
        for (int k = 0; k < WIDTH; k++) {
            float deviation = value.x[k] - mean;
            sum = fmaf(deviation, deviation, sum);
        }
    }
    float rstd = 1.0f / sqrtf(group_sum<GROUP>(sum, scratch) / static_cast<float>(C) + epsilon);

    for (int c = first; c < C; c += GROUP * WIDTH) {
        floats<WIDTH> value = load<WIDTH>(x + c);
        floats<WIDTH> weight = load<WIDTH>(tensors.weight + c), bias = load<WIDTH>(tensors.bias + c);
        for (int k = 0; k < WIDTH; k++)
            value.x[k] = fmaf((value.x[k] - mean) * rstd, weight.x[k], bias.x[k]);
        store(tensors.out + begin + c, value);
    }
    if (tensors.mean && first == 0) {
        tensors.mean[row] = mean;
        tensors.rstd[row] = rstd;
    }
}

template <class T, int WIDTH, int GROUP>
enum status launch_forward(struct stream *stream, const struct layernorm_forward_args *args) {
    constexpr int rows = NORM_FORWARD_THREADS / GROUP;
    forward_tensors<T> tensors = {static_cast<T *>(args->out),          static_cast<float *>(args->mean),
                                  static_cast<float *>(args->rstd),     static_cast<const T *>(args->x),
                                  static_cast<const T *>(args->weight), static_cast<const T *>(args->bias)};
    size_t shared_bytes = rows * static_cast<size_t>(args->C) * sizeof(T);
    bool staged = shared_bytes <= NORM_SHARED_BYTES;
    return LAUNCH(stream, (layernorm_forward<T, WIDTH, GROUP>),
                  ceil_divide(static_cast<size_t>(args->N), rows), NORM_FORWARD_THREADS,
                  staged ? shared_bytes : 0, tensors, args->N, args->C, args->epsilon, staged);
}

// ---- backward

template <class T> struct backward_tensors {
    T *dx, *out;                                   // out may be NULL
    const T *dout, *dresidual, *x, *weight, *bias; // dresidual may be NULL
    const float *mean, *rstd;
};

// blockDim.x threads (whole warps) per row, blockDim.y rows at a time.
//   all_partial   [w] (blocks, 2, C): each block's sums for dweight and dbias, in planes
//   staged        a block sums in shared memory; otherwise in all_partial itself, and blockDim.y is 1
template <class T, int WIDTH>
__global__ void __launch_bounds__(NORM_BACKWARD_THREADS)
    layernorm_backward(float *all_partial, const backward_tensors<T> tensors, const channel_gradients<2> to,
                       int N, int C, bool staged) {
    // Each warp's `sum` and `normal_sum`, in one of two buffers: one for this row, one for the next.
    __shared__ float dots[2][NORM_BACKWARD_THREADS / WARP][2];
    int row_threads = static_cast<int>(blockDim.x), n_rows = static_cast<int>(blockDim.y);
    int first = static_cast<int>(threadIdx.x) * WIDTH, step = row_threads * WIDTH;
    int row_warps = row_threads / WARP, first_warp = static_cast<int>(threadIdx.y) * row_warps;
    float *partial = all_partial + static_cast<size_t>(blockIdx.x) * 2 * static_cast<size_t>(C);
    float *dweight = staged ? dynamic_shared<float>() + static_cast<size_t>(threadIdx.y) * 2 * C : partial;
    float *dbias = dweight + C;
    for (int c = first; c < C; c += step) {
        planes<WIDTH>::clear(dweight, c, C);
        planes<WIDTH>::clear(dbias, c, C);
    }

    int parity = 0;
    for (int row_0 = static_cast<int>(blockIdx.x) * n_rows; row_0 < N;
         row_0 += static_cast<int>(gridDim.x) * n_rows) {
        int row = row_0 + static_cast<int>(threadIdx.y);
        bool exists = row < N;
        size_t begin = static_cast<size_t>(row) * static_cast<size_t>(C);
        float mean = exists ? tensors.mean[row] : 0.0f, rstd = exists ? tensors.rstd[row] : 0.0f;
        float sum = 0.0f, normal_sum = 0.0f; // sums of g = dout weight, and of g times the normalized x
        // The values of the thread's last access. If each thread has one access, they are all of its
        // values.
        floats<WIDTH> x = {}, dout = {}, weight = {};
        for (int c = first; exists && c < C; c += step) {
            x = load<WIDTH>(tensors.x + begin + c);
            dout = load<WIDTH>(tensors.dout + begin + c);
            weight = load<WIDTH>(tensors.weight + c);
            for (int k = 0; k < WIDTH; k++) {
                float g = dout.x[k] * weight.x[k];
                sum += g;
                normal_sum = fmaf(g, (x.x[k] - mean) * rstd, normal_sum);
            }
        }
        sum = warp_sum(sum);
        normal_sum = warp_sum(normal_sum);
        float(*row_dots)[2] = dots[parity] + first_warp;
        if (threadIdx.x % WARP == 0) {
            row_dots[threadIdx.x / WARP][0] = sum;
            row_dots[threadIdx.x / WARP][1] = normal_sum;
        }
        __syncthreads(); // the only barrier per row, as the next row uses the other half of dots
        parity ^= 1;
        sum = normal_sum = 0.0f;
        for (int i = 0; i < row_warps; i++) {
            sum += row_dots[i][0];
            normal_sum += row_dots[i][1];
        }
        sum /= static_cast<float>(C);
        normal_sum /= static_cast<float>(C);
        for (int c = first; exists && c < C; c += step) {
            floats<WIDTH> dx = {}, dweight_terms;
            if (step < C) {
                x = load<WIDTH>(tensors.x + begin + c);
                dout = load<WIDTH>(tensors.dout + begin + c);
                weight = load<WIDTH>(tensors.weight + c);
            }
            if (tensors.dresidual)
                dx = load<WIDTH>(tensors.dresidual + begin + c);
            for (int k = 0; k < WIDTH; k++) {
                float normal = (x.x[k] - mean) * rstd;
                float change = fmaf(-normal, normal_sum, fmaf(dout.x[k], weight.x[k], -sum));
                dx.x[k] = fmaf(change, rstd, dx.x[k]);
                dweight_terms.x[k] = dout.x[k] * normal;
            }
            store(tensors.dx + begin + c, dx);
            if (tensors.out) { // as in layernorm_forward, with the same bits
                floats<WIDTH> out, bias = load<WIDTH>(tensors.bias + c);
                for (int k = 0; k < WIDTH; k++)
                    out.x[k] = fmaf((x.x[k] - mean) * rstd, weight.x[k], bias.x[k]);
                store(tensors.out + begin + c, out);
            }
            planes<WIDTH>::add(dweight, c, C, dweight_terms);
            planes<WIDTH>::add(dbias, c, C, dout);
        }
    }
    __syncthreads();
    const float *sums = dynamic_shared<float>();
    int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
    for (int i = thread; staged && i < 2 * C; i += row_threads * n_rows) {
        float sum = sums[i];
        for (int row = 1; row < n_rows; row++)
            sum += sums[static_cast<size_t>(row) * 2 * C + i];
        partial[i] = sum;
    }
    add_partial_sums<WIDTH>(all_partial, to, C);
}

template <class T, int WIDTH>
enum status launch_backward(struct stream *stream, const struct layernorm_backward_args *args) {
    struct norm_division shape = norm_backward_divide(args->N, args->C, 2, WIDTH);
    backward_tensors<T> tensors = {static_cast<T *>(args->dx),
                                   static_cast<T *>(args->out),
                                   static_cast<const T *>(args->dout),
                                   static_cast<const T *>(args->dresidual),
                                   static_cast<const T *>(args->x),
                                   static_cast<const T *>(args->weight),
                                   static_cast<const T *>(args->bias),
                                   static_cast<const float *>(args->mean),
                                   static_cast<const float *>(args->rstd)};
    float *partial = static_cast<float *>(stream->workspace);
    size_t channels = static_cast<size_t>(args->C);
    size_t shared_bytes = shape.staged ? static_cast<size_t>(shape.rows) * 2 * channels * sizeof(float) : 0;
    channel_gradients<2> to = {{static_cast<float *>(args->dweight), static_cast<float *>(args->dbias)},
                               args->beta_zero,
                               tickets_of(stream)};
    return LAUNCH(stream, (layernorm_backward<T, WIDTH>), shape.blocks, dim3(shape.row_threads, shape.rows),
                  shared_bytes, partial, tensors, to, args->N, args->C, shape.staged);
}

} // namespace

extern "C" enum status cuda_layernorm_forward(struct stream *stream,
                                              const struct layernorm_forward_args *args) {
    bool aligned =
        is_aligned(args->out) && is_aligned(args->x) && is_aligned(args->weight) && is_aligned(args->bias);
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        return with_norm_threads<T>(args->C, aligned, [&](auto width, auto group) {
            return launch_forward<T, decltype(width)::value, decltype(group)::value>(stream, args);
        });
    });
}

extern "C" enum status cuda_layernorm_backward(struct stream *stream,
                                               const struct layernorm_backward_args *args) {
    bool aligned = is_aligned(args->dx) && is_aligned(args->dout) && is_aligned(args->dresidual) &&
                   is_aligned(args->x) && is_aligned(args->weight) && is_aligned(args->out) &&
                   is_aligned(args->bias);
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        constexpr int width = widest_access<T>();
        return aligned && args->C % width == 0 ? launch_backward<T, width>(stream, args)
                                               : launch_backward<T, 1>(stream, args);
    });
}
