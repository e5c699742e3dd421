// Root mean square normalization. Forward reads each row from memory once and keeps it in shared memory, if
// it fits, for its second pass. Backward keeps a row in registers if its threads have one access each, and
// reads it twice if they have more. Each block sums the gradient of the weight over its rows, in shared
// memory if it fits, and writes the sum to the workspace once (channel_sums.cuh).
#include "kernels/cuda/channel_sums.cuh"
#include "kernels/cuda/layers/norm.cuh"

namespace {

// ---- forward

template <class T> struct forward_tensors {
    T *out;
    float *rstd;         // may be NULL
    const T *x, *weight; // weight may be NULL
};

template <int WIDTH, class T> __device__ inline floats<WIDTH> load_weight(const T *weight, int c) {
    if (weight)
        return load<WIDTH>(weight + c);
    floats<WIDTH> ones;
    for (int k = 0; k < WIDTH; k++)
        ones.x[k] = 1.0f;
    return ones;
}

// GROUP threads per row. `staged`: shared memory holds the block's rows; otherwise each pass reads x.
template <class T, int WIDTH, int GROUP>
__global__ void __launch_bounds__(NORM_FORWARD_THREADS)
    rmsnorm_forward(const forward_tensors<T> tensors, int N, int C, float epsilon, bool staged) {
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
            sum = fmaf(value.x[k], value.x[k], sum);
        if (staged)
            store(kept + c, value); // for this thread's own second pass
    }
    if (staged)
        x = kept;
    float rstd = 1.0f / sqrtf(group_sum<GROUP>(sum, scratch) / static_cast<float>(C) + epsilon);

    for (int c = first; c < C; c += GROUP * WIDTH) {
        floats<WIDTH> value = load<WIDTH>(x + c), weight = load_weight<WIDTH>(tensors.weight, c);
        for (int k = 0; k < WIDTH; k++)
            value.x[k] = value.x[k] * rstd * weight.x[k];
        store(tensors.out + begin + c, value);
    }
    if (tensors.rstd && first == 0)
        tensors.rstd[row] = rstd;
}

template <class T, int WIDTH, int GROUP>
enum status launch_forward(struct stream *stream, const struct rmsnorm_forward_args *args) {
    constexpr int rows = NORM_FORWARD_THREADS / GROUP;
    forward_tensors<T> tensors = {static_cast<T *>(args->out), static_cast<float *>(args->rstd),
                                  static_cast<const T *>(args->x), static_cast<const T *>(args->weight)};
    size_t shared_bytes = rows * static_cast<size_t>(args->C) * sizeof(T);
    bool staged = shared_bytes <= NORM_SHARED_BYTES;
    return LAUNCH(stream, (rmsnorm_forward<T, WIDTH, GROUP>), ceil_divide(static_cast<size_t>(args->N), rows),
                  NORM_FORWARD_THREADS, staged ? shared_bytes : 0, tensors, args->N, args->C, args->epsilon,
                  staged);
}

// ---- backward

template <class T> struct backward_tensors {
    T *dx, *out;                            // out may be NULL
    const T *dout, *dresidual, *x, *weight; // dresidual and weight may be NULL
    const float *rstd;
};

// blockDim.x threads (whole warps) per row, blockDim.y rows at a time.
//   all_partial   [w] (blocks, C): each block's sums for dweight, in planes; NULL without dweight
//   staged        a block sums in shared memory; otherwise in all_partial itself, and blockDim.y is 1
template <class T, int WIDTH>
__global__ void __launch_bounds__(NORM_BACKWARD_THREADS)
    rmsnorm_backward(float *all_partial, const backward_tensors<T> tensors, const channel_gradients<1> to,
                     int N, int C, bool staged) {
    // Each warp's `sum`, in one of two buffers: one for this row, one for the next.
    __shared__ float dots[2][NORM_BACKWARD_THREADS / WARP];
    int row_threads = static_cast<int>(blockDim.x), n_rows = static_cast<int>(blockDim.y);
    int first = static_cast<int>(threadIdx.x) * WIDTH, step = row_threads * WIDTH;
    int row_warps = row_threads / WARP, first_warp = static_cast<int>(threadIdx.y) * row_warps;
    float *partial =
        all_partial ? all_partial + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(C) : nullptr;
    float *dweight = staged
                         ? dynamic_shared<float>() + static_cast<size_t>(threadIdx.y) * static_cast<size_t>(C)
                         : partial;
    for (int c = first; all_partial && c < C; c += step)
        planes<WIDTH>::clear(dweight, c, C);

    int parity = 0;
    for (int row_0 = static_cast<int>(blockIdx.x) * n_rows; row_0 < N;
         row_0 += static_cast<int>(gridDim.x) * n_rows) {
        int row = row_0 + static_cast<int>(threadIdx.y);
        bool exists = row < N;
        size_t begin = static_cast<size_t>(row) * static_cast<size_t>(C);
        float rstd = exists ? tensors.rstd[row] : 0.0f;
        float sum = 0.0f; // sum of g times the normalized x, where g = dout weight
        // The values of the thread's last access. If each thread has one access, they are all of its
        // values.
        floats<WIDTH> x = {}, dout = {}, weight = {};
        for (int c = first; exists && c < C; c += step) {
            x = load<WIDTH>(tensors.x + begin + c);
            dout = load<WIDTH>(tensors.dout + begin + c);
            weight = load_weight<WIDTH>(tensors.weight, c);
            for (int k = 0; k < WIDTH; k++)
                sum = fmaf(dout.x[k] * weight.x[k], x.x[k] * rstd, sum);
        }
        sum = warp_sum(sum);
        if (threadIdx.x % WARP == 0)
            dots[parity][first_warp + static_cast<int>(threadIdx.x) / WARP] = sum;
        __syncthreads(); // the only barrier per row, as the next row uses the other half of dots
        sum = 0.0f;
        for (int i = 0; i < row_warps; i++)
            sum += dots[parity][first_warp + i];
        parity ^= 1;
        sum /= static_cast<float>(C);
        for (int c = first; exists && c < C; c += step) {
            floats<WIDTH> dx = {}, out, terms;
            if (step < C) {
                x = load<WIDTH>(tensors.x + begin + c);
                dout = load<WIDTH>(tensors.dout + begin + c);
                weight = load_weight<WIDTH>(tensors.weight, c);
            }
            if (tensors.dresidual)
                dx = load<WIDTH>(tensors.dresidual + begin + c);
            for (int k = 0; k < WIDTH; k++) {
                float normal = x.x[k] * rstd;
                dx.x[k] = fmaf(fmaf(-normal, sum, dout.x[k] * weight.x[k]), rstd, dx.x[k]);
                out.x[k] = normal * weight.x[k]; // as in rmsnorm_forward, with the same bits
                terms.x[k] = dout.x[k] * normal;
            }
            store(tensors.dx + begin + c, dx);
            if (tensors.out)
                store(tensors.out + begin + c, out);
            if (all_partial)
                planes<WIDTH>::add(dweight, c, C, terms);
        }
    }
    if (!all_partial)
        return;
    __syncthreads();
    const float *sums = dynamic_shared<float>();
    int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
    for (int i = thread; staged && i < C; i += row_threads * n_rows) {
        float total = sums[i];
        for (int row = 1; row < n_rows; row++)
            total += sums[static_cast<size_t>(row) * static_cast<size_t>(C) + i];
        partial[i] = total;
    }
    add_partial_sums<WIDTH>(all_partial, to, C);
}

template <class T, int WIDTH>
enum status launch_backward(struct stream *stream, const struct rmsnorm_backward_args *args) {
    struct norm_division shape = norm_backward_divide(args->N, args->C, 1, WIDTH);
    backward_tensors<T> tensors = {static_cast<T *>(args->dx),
                                   static_cast<T *>(args->out),
                                   static_cast<const T *>(args->dout),
                                   static_cast<const T *>(args->dresidual),
                                   static_cast<const T *>(args->x),
                                   static_cast<const T *>(args->weight),
                                   static_cast<const float *>(args->rstd)};
    float *partial = args->dweight ? static_cast<float *>(stream->workspace) : nullptr;
    size_t channels = static_cast<size_t>(args->C);
    bool staged = shape.staged && partial;
    channel_gradients<1> to = {{static_cast<float *>(args->dweight)}, args->beta_zero, tickets_of(stream)};
    return LAUNCH(stream, (rmsnorm_backward<T, WIDTH>), shape.blocks, dim3(shape.row_threads, shape.rows),
                  staged ? static_cast<size_t>(shape.rows) * channels * sizeof(float) : 0, partial, tensors,
                  to, args->N, args->C, staged);
}

} // namespace

extern "C" enum status cuda_rmsnorm_forward(struct stream *stream, const struct rmsnorm_forward_args *args) {
    bool aligned = is_aligned(args->out) && is_aligned(args->x) && is_aligned(args->weight);
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        return with_norm_threads<T>(args->C, aligned, [&](auto width, auto group) {
            return launch_forward<T, decltype(width)::value, decltype(group)::value>(stream, args);
        });
    });
}

extern "C" enum status cuda_rmsnorm_backward(struct stream *stream,
                                             const struct rmsnorm_backward_args *args) {
    bool aligned = is_aligned(args->dx) && is_aligned(args->dout) && is_aligned(args->dresidual) &&
                   is_aligned(args->x) && is_aligned(args->weight) && is_aligned(args->out);
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        constexpr int width = widest_access<T>();
        return aligned && args->C % width == 0 ? launch_backward<T, width>(stream, args)
                                               : launch_backward<T, 1>(stream, args);
    });
}
