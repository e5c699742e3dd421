// Cross-entropy of rows of logits with its gradient: one block per row, or one warp per row if the
// vocabulary is small. In the first pass over the row, each thread keeps the maximum of its logits and its
// sum of exp(logit - maximum). The second pass writes the gradient. It runs from the end of the row to its
// beginning, since the end is still cached. dlogits may be the logits themselves: a thread writes an
// element right after it has read it, and no other thread reads that element in this pass. The target's
// gradient is computed from the loss with expm1, so that it stays accurate when the loss is near 0.
#include <float.h>

#include "kernels/cuda/elementwise.cuh"

namespace {

constexpr int ROW_THREADS = 512;           // threads of a block with one row
constexpr int WARPS_THREADS = 256;         // threads of a block with one row per warp
constexpr int WARP_VOCABULARY = 32 * WARP; // the largest vocabulary with one row per warp

// What a kernel computes:
// - PLAIN: without label smoothing, z-loss and soft-cap
// - REGULARIZED: with label smoothing and z-loss
// - CAPPED: with a soft-cap, label smoothing and z-loss
enum loss_kind { PLAIN, REGULARIZED, CAPPED };

struct loss_options {
    soft_cap_of cap;
    float smoothing, z;
};

// A logit as the loss uses it. With a soft-cap, `logit` is the capped logit and `tanh` is tanh(x / cap);
// otherwise `tanh` is 0.
struct seen_logit {
    float logit, tanh;
};

template <loss_kind KIND> __device__ inline seen_logit see(float x, const loss_options &options) {
    if constexpr (KIND != CAPPED)
        return {x, 0.0f};
    const float t = options.cap.tanh(x);
    return {options.cap.cap * t, t};
}

// exp(logit - maximum). Capped logits are inexact anyway, because of tanh_select, so exp2_approximate, which
// is faster, is enough for them.
template <loss_kind KIND> __device__ inline float exp_below(float logit, float maximum) {
    if constexpr (KIND == CAPPED)
        return exp2_approximate(fmaf(logit, LOG2_E, -maximum * LOG2_E));
    return expf(logit - maximum);
}

// What a thread keeps of its logits so far: their maximum, the sum of exp(logit - maximum) and, unless
// PLAIN, the sum of the logits. The maximum starts finite, so that a logit of -infinity adds 0. A soft-cap
// would hide an infinite logit. So 0 times each uncapped logit is also added to `logits`: an infinite one
// makes this sum NaN, and with it the loss.
struct partial_sum {
    float maximum, sum, logits;
};

template <loss_kind KIND, int WIDTH, class L>
__device__ inline void add_logits(partial_sum &partial, const L *logits, const loss_options &options) {
    floats<WIDTH> value = load<WIDTH>(logits);
    for (int k = 0; k < WIDTH && KIND == CAPPED; k++)
        partial.logits = fmaf(0.0f, value.x[k], partial.logits);
    for (int k = 0; k < WIDTH; k++)
        value.x[k] = see<KIND>(value.x[k], options).logit;
    for (int k = 0; k < WIDTH && KIND != PLAIN; k++)
        partial.logits += value.x[k];
    float maximum = value.x[0];
    for (int k = 1; k < WIDTH; k++)
        maximum = fmaxf(maximum, value.x[k]);
    if (maximum > partial.maximum) {
        partial.sum *= exp_below<KIND>(partial.maximum, maximum);
        partial.maximum = maximum;
    }
    for (int k = 0; k < WIDTH; k++)
        partial.sum += exp_below<KIND>(value.x[k], partial.maximum);
}

// The terms of a row's gradient, with respect to its logits as the loss uses them (seen_logit.logit).
struct row_gradient {
    float maximum, factor; // dlogit = exp(logit - maximum) * factor - of_others, except for the target
    float of_target;       // dlogit of the target
    float of_others;       // the term of label smoothing; not used by PLAIN
};

template <loss_kind KIND, int WIDTH, class T, class L>
__device__ inline void write_gradient(T *dlogits, const L *logits, int c, int target, const row_gradient &row,
                                      const loss_options &options) {
    floats<WIDTH> value = load<WIDTH>(logits + c);
    for (int k = 0; k < WIDTH; k++) {
        const seen_logit seen = see<KIND>(value.x[k], options);
        if constexpr (KIND == PLAIN) {
            value.x[k] =
                c + k == target ? row.of_target : exp_below<KIND>(seen.logit, row.maximum) * row.factor;
        } else {
            float d = fmaf(exp_below<KIND>(seen.logit, row.maximum), row.factor, -row.of_others);
            d = c + k == target ? row.of_target : d;
            value.x[k] = KIND == CAPPED ? fmaf(-seen.tanh * d, seen.tanh, d) : d;
        }
    }
    store(dlogits + c, value);
}

template <int WIDTH, int GROUP, class T> __device__ inline void write_zeros(T *dlogits, int n) {
    int thread = static_cast<int>(threadIdx.x) % GROUP, n_whole = n / WIDTH * WIDTH;
    for (int c = thread * WIDTH; c < n_whole; c += GROUP * WIDTH)
        store(dlogits + c, floats<WIDTH>{});
    for (int c = n_whole + thread; c < n; c += GROUP)
        store(dlogits + c, floats<1>{});
}

// Combines the partial sums of the GROUP threads of a row. The first of these threads computes the row's
// loss and the terms of its gradient, in double. Every thread gets these terms.
template <loss_kind KIND, int GROUP>
__device__ inline row_gradient finish_row(float *loss, const partial_sum &partial, float target_logit,
                                          float scale, float weight, const loss_options &options, int V) {
    __shared__ float maxima[GROUP / WARP];
    __shared__ double sums[GROUP / WARP], scratch[GROUP / WARP];
    __shared__ row_gradient shared_row;
    row_gradient row;
    if constexpr (GROUP == WARP)
        row.maximum = warp_max(partial.maximum);
    else
        row.maximum = block_max<GROUP>(partial.maximum, maxima);
    double sum = warp_sum(static_cast<double>(partial.sum * expf(partial.maximum - row.maximum)));
    if constexpr (GROUP > WARP) {
        if (threadIdx.x % WARP == 0)
            sums[threadIdx.x / WARP] = sum;
        __syncthreads();
    }
    double logits = 0;
    if constexpr (KIND != PLAIN) {
        logits = static_cast<double>(partial.logits);
        logits = GROUP == WARP ? warp_sum(logits) : block_sum<GROUP>(logits, scratch);
    }
    if (threadIdx.x % GROUP == 0) {
        for (int i = 1; i < GROUP / WARP; i++)
            sum += sums[i];
        double exact = log(sum) + (static_cast<double>(row.maximum) - static_cast<double>(target_logit));
        *loss = static_cast<float>(exact) * weight;
        row.factor = static_cast<float>(static_cast<double>(scale) / sum);
        row.of_target = static_cast<float>(expm1(-exact) * static_cast<double>(scale));
        if constexpr (KIND != PLAIN) {
            double e = static_cast<double>(options.smoothing), z = static_cast<double>(options.z);
            double lse = static_cast<double>(row.maximum) + log(sum), more = 2 * z * lse;
            double of_target = expm1(-exact) + more * exp(-exact) + e * (1 - 1.0 / V);
            *loss = static_cast<float>((1 - e) * exact + e * (lse - logits / V) + z * lse * lse) * weight;
            row.factor = static_cast<float>((1 + more) * static_cast<double>(scale) / sum);
            row.of_target = static_cast<float>(of_target * static_cast<double>(scale));
            row.of_others = static_cast<float>(e / V * static_cast<double>(scale));
        }
        if constexpr (GROUP > WARP)
            shared_row = row;
    }
    if constexpr (GROUP > WARP) {
        __syncthreads();
        row = shared_row;
    } else {
        row.factor = __shfl_sync(0xffffffff, row.factor, 0);
        row.of_target = __shfl_sync(0xffffffff, row.of_target, 0);
        if constexpr (KIND != PLAIN)
            row.of_others = __shfl_sync(0xffffffff, row.of_others, 0);
    }
    return row;
}

// The arguments of a call. T: the type of dlogits. L: the type of the logits.
template <class T, class L> struct tensors {
    float *losses;
    T *dlogits;
    const L *logits;
    const int32_t *targets;
    const float *weights; // NULL: ones
    size_t logits_stride, dlogits_stride;
    int N, V, n_zeros;
    float scale;
    const float *scale_from; // if not NULL, replaces `scale`
    loss_options options;
};

// For the launch bounds: the minimum number of threads resident on a multiprocessor; 0: none. For
// REGULARIZED and CAPPED without a minimum, ptxas would aim at more threads and spill.
template <loss_kind KIND> constexpr int LEAST_THREADS = KIND != PLAIN ? 1024 : 0;

template <class T, class L, loss_kind KIND, int WIDTH, int GROUP, int THREADS>
__global__ void __launch_bounds__(THREADS, LEAST_THREADS<KIND> / THREADS)
    cross_entropy(const tensors<T, L> all) {
    int n = static_cast<int>(blockIdx.x) * (THREADS / GROUP) + static_cast<int>(threadIdx.x) / GROUP;
    if (n >= all.N)
        return; // only whole warps return; if a block shares one row, none of its warps returns
    const L *logits = all.logits + static_cast<size_t>(n) * all.logits_stride;
    int target = all.targets[n], V = all.V, n_whole = V / WIDTH * WIDTH;
    int thread = static_cast<int>(threadIdx.x) % GROUP;
    if (all.weights && all.weights[n] == 0.0f) {
        if (thread == 0)
            all.losses[n] = 0.0f;
        if (all.dlogits)
            write_zeros<WIDTH, GROUP>(all.dlogits + static_cast<size_t>(n) * all.dlogits_stride,
                                      V + all.n_zeros);
        return;
    }

    // REGULARIZED and CAPPED do not unroll the loops, since more logits at once would not fit in registers.
    partial_sum partial = {-FLT_MAX, 0.0f, 0.0f};
#pragma unroll(KIND == PLAIN ? 4 : 1)
    for (int c = thread * WIDTH; c < n_whole; c += GROUP * WIDTH)
        add_logits<KIND, WIDTH>(partial, logits + c, all.options);
#pragma unroll(KIND == PLAIN ? 4 : 1)
    for (int c = n_whole + thread; c < V; c += GROUP)
        add_logits<KIND, 1>(partial, logits + c, all.options);
    const float of_target = see<KIND>(load<1>(logits + target).x[0], all.options).logit;
    const float weight = all.weights ? all.weights[n] : 1.0f;
    row_gradient row = finish_row<KIND, GROUP>(&all.losses[n], partial, of_target,
                                               (all.scale_from ? *all.scale_from : all.scale) * weight,
                                               weight, all.options, V);
    if (!all.dlogits)
        return;

    T *dlogits = all.dlogits + static_cast<size_t>(n) * all.dlogits_stride;
    write_zeros<1, GROUP>(dlogits + V, all.n_zeros);
#pragma unroll(KIND == PLAIN ? 4 : 1)
    for (int c = n_whole + thread; c < V; c += GROUP)
        write_gradient<KIND, 1>(dlogits, logits, c, target, row, all.options);
#pragma unroll(KIND == PLAIN ? 4 : 1)
    for (int c = n_whole - (thread + 1) * WIDTH; c >= 0; c -= GROUP * WIDTH)
        write_gradient<KIND, WIDTH>(dlogits, logits, c, target, row, all.options);
}

template <class T, class L, loss_kind KIND, int WIDTH>
enum status launch_rows(struct stream *stream, const struct cross_entropy_args *args) {
    tensors<T, L> all = {static_cast<float *>(args->losses),
                         static_cast<T *>(args->dlogits),
                         static_cast<const L *>(args->logits),
                         args->targets,
                         static_cast<const float *>(args->weights),
                         static_cast<size_t>(args->logits_stride),
                         static_cast<size_t>(args->dlogits_stride),
                         args->N,
                         args->V,
                         args->n_zeros,
                         args->scale,
                         static_cast<const float *>(args->scale_from),
                         {{args->soft_cap, 1 / args->soft_cap}, args->label_smoothing, args->z_loss}};
    if (args->V > WARP_VOCABULARY)
        return LAUNCH(stream, (cross_entropy<T, L, KIND, WIDTH, ROW_THREADS, ROW_THREADS>), args->N,
                      ROW_THREADS, 0, all);
    return LAUNCH(stream, (cross_entropy<T, L, KIND, WIDTH, WARP, WARPS_THREADS>),
                  ceil_divide(static_cast<size_t>(args->N), WARPS_THREADS / WARP), WARPS_THREADS, 0, all);
}

template <class T, class L, loss_kind KIND>
enum status launch_aligned(struct stream *stream, const struct cross_entropy_args *args) {
    constexpr int width = widest_access<T, L>();
    bool aligned = is_aligned(args->logits) && is_aligned(args->dlogits) &&
                   args->logits_stride % width == 0 && args->dlogits_stride % width == 0;
    return aligned ? launch_rows<T, L, KIND, width>(stream, args) : launch_rows<T, L, KIND, 1>(stream, args);
}

template <class T, class L>
enum status launch_kind(struct stream *stream, const struct cross_entropy_args *args) {
    if (args->soft_cap != 0.0f)
        return launch_aligned<T, L, CAPPED>(stream, args);
    if (args->label_smoothing != 0.0f || args->z_loss != 0.0f)
        return launch_aligned<T, L, REGULARIZED>(stream, args);
    return launch_aligned<T, L, PLAIN>(stream, args);
}

} // namespace

extern "C" enum status cuda_cross_entropy(struct stream *stream, const struct cross_entropy_args *args) {
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        return args->logits_type == DTYPE_F32 ? launch_kind<T, float>(stream, args)
                                              : launch_kind<T, T>(stream, args);
    });
}
