// Weighted sums, dropout and the soft-cap of logits. All are bandwidth-bound.
#include "kernels/cuda/channel_sums.cuh"
#include "kernels/cuda/elementwise.cuh"
#define DROPOUT_FUNCTION __host__ __device__ static inline
#include "kernels/dropout.h"

namespace {

// ---- weighted sums

template <class T> struct mix_step {
    T *out;
    const T *x, *y;
    float x_weight, y_weight;

    template <int WIDTH> __device__ void at(size_t i) const {
        floats<WIDTH> first = load<WIDTH>(x + i), second = load<WIDTH>(y + i);
        for (int k = 0; k < WIDTH; k++)
            first.x[k] = fmaf(first.x[k], x_weight, second.x[k] * y_weight);
        store(out + i, first);
    }
};

template <class T, int WIDTH>
__global__ void __launch_bounds__(SPAN_THREADS)
    mix_forward(T *out, const T *x, const T *y, const T *x_weight, const T *y_weight, size_t n) {
    const mix_step<T> step = {out, x, y, upcast(*x_weight), upcast(*y_weight)};
    walk<WIDTH>(step, static_cast<size_t>(blockIdx.x) * SPAN_THREADS + threadIdx.x,
                static_cast<size_t>(gridDim.x) * SPAN_THREADS, n);
}

// The sums of dout * x and of dout * y over some elements.
struct mix_sums {
    float x, y;
};
static_assert(sizeof(mix_sums) == CUDA_MIX_SUMS_BYTES, "the size that plans use");

template <class T> struct mix_backward_call {
    T *dx;
    float *dy, *dx_weight, *dy_weight;
    const T *dout, *x, *y, *x_weight, *y_weight;
    size_t n;
    bool dy_zero, beta_zero;
    mix_sums *of_block; // the sums of each thread block, that is, of MIX_BLOCK elements
    unsigned *ticket;
};

template <int WIDTH, class T>
__device__ inline void mix_backward_at(const mix_backward_call<T> &call, float x_weight, float y_weight,
                                       size_t i, mix_sums &sums) {
    floats<WIDTH> dout = load<WIDTH>(call.dout + i), x = load<WIDTH>(call.x + i), y = load<WIDTH>(call.y + i);
    floats<WIDTH> dy = {};
    if (call.dy && !call.dy_zero)
        dy = load<WIDTH>(call.dy + i);
    for (int k = 0; k < WIDTH; k++) {
        sums.x = fmaf(dout.x[k], x.x[k], sums.x);
        sums.y = fmaf(dout.x[k], y.x[k], sums.y);
        dy.x[k] = fmaf(dout.x[k], y_weight, dy.x[k]);
        dout.x[k] *= x_weight;
    }
    if (call.dy)
        store(call.dy + i, dy);
    store(call.dx + i, dout);
}

constexpr int MIX_THREADS = 256;

// Adds up the sums of all blocks, and adds the results to the gradients of the two weights. Called by the
// block that finishes last. Each thread takes every MIX_THREADS-th block's sums.
template <class T> __device__ inline void add_mix_sums(const mix_backward_call<T> &call) {
    __shared__ double scratch[MIX_THREADS / WARP];
    double x = 0, y = 0;
    for (unsigned block = threadIdx.x; block < gridDim.x; block += MIX_THREADS) {
        x += static_cast<double>(__ldcg(&call.of_block[block].x));
        y += static_cast<double>(__ldcg(&call.of_block[block].y));
    }
    x = block_sum<MIX_THREADS>(x, scratch);
    y = block_sum<MIX_THREADS>(y, scratch);
    if (threadIdx.x != 0)
        return;
    if (call.dx_weight)
        *call.dx_weight = static_cast<float>(call.beta_zero ? x : static_cast<double>(*call.dx_weight) + x);
    if (call.dy_weight)
        *call.dy_weight = static_cast<float>(call.beta_zero ? y : static_cast<double>(*call.dy_weight) + y);
}

template <class T, int WIDTH>
__global__ void __launch_bounds__(MIX_THREADS) mix_backward(const mix_backward_call<T> call) {
    __shared__ float scratch[MIX_THREADS / WARP];
    const float x_weight = upcast(*call.x_weight), y_weight = upcast(*call.y_weight);
    const size_t begin = static_cast<size_t>(blockIdx.x) * MIX_BLOCK;
    const int n = static_cast<int>(call.n - begin < MIX_BLOCK ? call.n - begin : MIX_BLOCK);
    const int n_whole = n / WIDTH * WIDTH, thread = static_cast<int>(threadIdx.x);
    mix_sums sums = {0.0f, 0.0f};
    for (int i = thread * WIDTH; i < n_whole; i += MIX_THREADS * WIDTH)
        mix_backward_at<WIDTH>(call, x_weight, y_weight, begin + i, sums);
    for (int i = n_whole + thread; i < n; i += MIX_THREADS)
        mix_backward_at<1>(call, x_weight, y_weight, begin + i, sums);
    sums.x = block_sum<MIX_THREADS>(sums.x, scratch);
    sums.y = block_sum<MIX_THREADS>(sums.y, scratch);
    if (thread == 0)
        call.of_block[blockIdx.x] = sums;
    if (is_last_of(call.ticket, static_cast<int>(gridDim.x)))
        add_mix_sums(call);
}

// ---- dropout

constexpr int DROPOUT_THREADS = 256;

template <class T> struct dropout_call {
    T *out;
    const T *x, *residual; // residual may be NULL
    const uint64_t *sequences;
    int N, C, rows_per_sequence;
    uint64_t key;
    uint32_t threshold;
    float scale; // 1 / (1 - p)
};

// Each warp processes one row.
template <class T, int WIDTH>
__global__ void __launch_bounds__(DROPOUT_THREADS) dropout(const dropout_call<T> call) {
    int n = static_cast<int>(blockIdx.x) * (DROPOUT_THREADS / WARP) + static_cast<int>(threadIdx.x) / WARP;
    if (n >= call.N)
        return;
    uint64_t row = dropout_row(call.key, call.sequences[n / call.rows_per_sequence],
                               static_cast<uint32_t>(n % call.rows_per_sequence));
    size_t first = static_cast<size_t>(n) * static_cast<size_t>(call.C);
    for (int c = static_cast<int>(threadIdx.x) % WARP * WIDTH; c < call.C; c += WARP * WIDTH) {
        floats<WIDTH> x = load<WIDTH>(call.x + first + c), sum = {};
        if (call.residual)
            sum = load<WIDTH>(call.residual + first + c);
        for (int k = 0; k < WIDTH; k++) {
            bool kept = dropout_keeps(row, static_cast<uint32_t>(c + k), call.threshold);
            sum.x[k] = fmaf(x.x[k], kept ? call.scale : 0.0f, sum.x[k]);
        }
        store(call.out + first + c, sum);
    }
}

// Args: the arguments of either dropout operation. Both have the same members for the shape and the mask.
template <class Args>
enum status launch_dropout(struct stream *stream, const Args *args, void *out, const void *x,
                           const void *residual) {
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        constexpr int width = widest_access<T>();
        const dropout_call<T> call = {static_cast<T *>(out),
                                      static_cast<const T *>(x),
                                      static_cast<const T *>(residual),
                                      args->sequences,
                                      args->N,
                                      args->C,
                                      args->rows_per_sequence,
                                      args->key,
                                      dropout_threshold(args->p),
                                      static_cast<float>(1 / (1 - static_cast<double>(args->p)))};
        bool aligned = is_aligned(out) && is_aligned(x) && is_aligned(residual) && args->C % width == 0;
        return LAUNCH(stream, (aligned ? dropout<T, width> : dropout<T, 1>),
                      ceil_divide(static_cast<size_t>(args->N), DROPOUT_THREADS / WARP), DROPOUT_THREADS, 0,
                      call);
    });
}

// ---- soft-cap

template <class T> struct cap_step {
    T *out;
    const T *x;
    soft_cap_of cap;

    template <int WIDTH> __device__ void at(size_t i) const {
        floats<WIDTH> value = load<WIDTH>(x + i);
        for (int k = 0; k < WIDTH; k++)
            value.x[k] = cap.cap * cap.tanh(value.x[k]);
        store_whole(out + i, value);
    }
};

// blockIdx.y selects the first row that a block works on; the next ones are gridDim.y rows apart. The
// blocks with one blockIdx.y divide each row's elements among them.
template <class T, int WIDTH>
__global__ void __launch_bounds__(SPAN_THREADS)
    soft_cap(T *out, const T *x, int N, int V, size_t stride, soft_cap_of cap) {
    for (int n = static_cast<int>(blockIdx.y); n < N; n += static_cast<int>(gridDim.y)) {
        const size_t row = static_cast<size_t>(n) * stride;
        const cap_step<T> step = {out + row, x + row, cap};
        walk<WIDTH>(step, static_cast<size_t>(blockIdx.x) * SPAN_THREADS + threadIdx.x,
                    static_cast<size_t>(gridDim.x) * SPAN_THREADS, static_cast<size_t>(V));
    }
}

} // namespace

extern "C" enum status cuda_mix_forward(struct stream *stream, const struct mix_forward_args *args) {
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        constexpr int width = widest_access<T>();
        bool aligned = is_aligned(args->out) && is_aligned(args->x) && is_aligned(args->y);
        return LAUNCH(stream, (aligned ? mix_forward<T, width> : mix_forward<T, 1>),
                      span_blocks(stream, args->n, aligned ? width : 1), SPAN_THREADS, 0,
                      static_cast<T *>(args->out), static_cast<const T *>(args->x),
                      static_cast<const T *>(args->y), static_cast<const T *>(args->x_weight),
                      static_cast<const T *>(args->y_weight), args->n);
    });
}

extern "C" enum status cuda_mix_backward(struct stream *stream, const struct mix_backward_args *args) {
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        constexpr int width = widest_access<T, float>();
        const mix_backward_call<T> call = {static_cast<T *>(args->dx),
                                           static_cast<float *>(args->dy),
                                           static_cast<float *>(args->dx_weight),
                                           static_cast<float *>(args->dy_weight),
                                           static_cast<const T *>(args->dout),
                                           static_cast<const T *>(args->x),
                                           static_cast<const T *>(args->y),
                                           static_cast<const T *>(args->x_weight),
                                           static_cast<const T *>(args->y_weight),
                                           args->n,
                                           args->dy_zero,
                                           args->beta_zero,
                                           static_cast<mix_sums *>(stream->workspace),
                                           tickets_of(stream)};
        bool aligned = is_aligned(args->dx) && is_aligned(args->dy) && is_aligned(args->dout) &&
                       is_aligned(args->x) && is_aligned(args->y);
        return LAUNCH(stream, (aligned ? mix_backward<T, width> : mix_backward<T, 1>), cuda_mix_blocks(args),
                      MIX_THREADS, 0, call);
    });
}

extern "C" enum status cuda_dropout_forward(struct stream *stream, const struct dropout_forward_args *args) {
    return launch_dropout(stream, args, args->out, args->x, args->residual);
}

extern "C" enum status cuda_dropout_backward(struct stream *stream,
                                             const struct dropout_backward_args *args) {
    return launch_dropout(stream, args, args->dx, args->dout, nullptr);
}

extern "C" enum status cuda_soft_cap(struct stream *stream, const struct soft_cap_args *args) {
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        constexpr int width = widest_access<T>();
        bool aligned = is_aligned(args->out) && is_aligned(args->x) && args->stride % width == 0;
        unsigned blocks =
            static_cast<unsigned>(span_blocks(stream, static_cast<size_t>(args->V), aligned ? width : 1));
        unsigned rows = static_cast<unsigned>(args->N);
        return LAUNCH(stream, (aligned ? soft_cap<T, width> : soft_cap<T, 1>),
                      dim3(blocks, rows < MOST_GRID_Y ? rows : MOST_GRID_Y), SPAN_THREADS, 0,
                      static_cast<T *>(args->out), static_cast<const T *>(args->x), args->N, args->V,
                      static_cast<size_t>(args->stride), soft_cap_of{args->cap, 1 / args->cap});
    });
}
