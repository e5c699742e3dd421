// Operations on flat spans: fill, cast, lerp, add, sums along a tree, sums in order, and sums of squares by
// block, and exactly. All but the sums in order are bandwidth-bound.
#define EXACT_FUNCTION __host__ __device__ static inline
#include "kernels/cuda/span.cuh"

namespace {

// ---- fill, cast, lerp, add

template <class T> struct fill_step {
    T *out;
    float value;

    template <int WIDTH> __device__ void at(size_t i) const {
        floats<WIDTH> values;
        for (int k = 0; k < WIDTH; k++)
            values.x[k] = value;
        store(out + i, values);
    }
};

template <class To, class From> struct cast_step {
    To *out;
    const From *x;

    template <int WIDTH> __device__ void at(size_t i) const {
        store(out + i, load<WIDTH>(x + i));
    }
};

template <class T> struct round_step {
    float *out;
    const float *x;

    template <int WIDTH> __device__ void at(size_t i) const {
        floats<WIDTH> values = load<WIDTH>(x + i);
        for (int k = 0; k < WIDTH; k++)
            values.x[k] = upcast(downcast<T>(values.x[k]));
        store(out + i, values);
    }
};

template <class T> enum status round_span(struct stream *stream, const struct cast_args *args, bool aligned) {
    const round_step<T> step = {static_cast<float *>(args->out), static_cast<const float *>(args->x)};
    return over_span<widest_access<float>()>("cast", stream, step, args->n, aligned);
}

// Every arithmetic operation is an intrinsic, so that the compiler does not fuse any by itself. The bits
// are then those of a CPU with fused multiply-add.
template <class T> struct lerp_step {
    T *out;
    const float *x, *y;
    float weight;
    const update_plan *plan;
    const update_result *result;

    template <int WIDTH> __device__ void at(size_t i) const {
        const float w = plan ? plan->average_weight : weight;
        if (plan && (result->skipped || w == 0))
            return;
        floats<WIDTH> from = load<WIDTH>(x + i), to = load<WIDTH>(y + i);
        for (int k = 0; k < WIDTH; k++)
            from.x[k] = w == 1 ? to.x[k] : __fmaf_rn(__fsub_rn(to.x[k], from.x[k]), w, from.x[k]);
        store(out + i, from);
    }
};

template <class T> struct add_step {
    float *out;
    const float *x;
    const T *y;

    template <int WIDTH> __device__ void at(size_t i) const {
        floats<WIDTH> sum = load<WIDTH>(x + i), other = load<WIDTH>(y + i);
        for (int k = 0; k < WIDTH; k++)
            sum.x[k] += other.x[k];
        store(out + i, sum);
    }
};

// Adds span s of x, which begins at first[s], to out[s]. first[s] is SIZE_MAX for s >= n_spans. The loop
// over s is unrolled, so offsets stay in registers. An access never crosses spans, since all offsets are
// multiples of its width.
struct add_spans_step {
    float *out[ADD_SPANS_MOST];
    size_t first[ADD_SPANS_MOST];
    const float *x;

    template <int WIDTH> __device__ void at(size_t i) const {
        float *to = out[0] + i;
#pragma unroll
        for (int s = 1; s < ADD_SPANS_MOST; s++)
            if (i >= first[s])
                to = out[s] + (i - first[s]);
        floats<WIDTH> sum = load<WIDTH>(to), other = load<WIDTH>(x + i);
        for (int k = 0; k < WIDTH; k++)
            sum.x[k] += other.x[k];
        store(to, sum);
    }
};

// ---- sums along a tree

// Adds one number of each rank along the tree of zero/comm/sum_tree.h. Partial sums are organized as a
// binary counter (as in kernels/cpu/isa/elementwise.c): partial[k] holds the sum of a complete subtree of
// 2^k ranks if bit k of the number of ranks so far is set. All indices are constants once the loops are
// unrolled, so LEVELS * WIDTH sums stay in registers; LEVELS > log2(count).
template <class T, int LEVELS> struct sum_tree_step {
    float *out;
    const T *x, *own; // own: the input of `rank`; x: the inputs of the other ranks, `stride` apart
    size_t stride;
    int count, rank;
    bool accumulate;

    template <int WIDTH> __device__ static void add(floats<WIDTH> &sum, const floats<WIDTH> &left) {
        for (int k = 0; k < WIDTH; k++)
            sum.x[k] = left.x[k] + sum.x[k];
    }

    template <int WIDTH> __device__ void at(size_t i) const {
        floats<WIDTH> partial[LEVELS] = {}, value = {};
        for (int r = 0; r < count; r++) {
            value = r == rank ? load<WIDTH>(own + i)
                              : load<WIDTH>(x + static_cast<size_t>(r - (r > rank)) * stride + i);
#pragma unroll
            for (int level = 0; level < LEVELS; level++) {
                const int lower = (1 << level) - 1; // a carry gets here if r has all lower bits set
                if ((r & lower) != lower)
                    continue;
                if (r >> level & 1)
                    add<WIDTH>(value, partial[level]);
                else
                    partial[level] = value;
            }
        }
        bool first = true;
#pragma unroll
        for (int level = 0; level < LEVELS; level++) {
            if (!(count >> level & 1))
                continue;
            if (first)
                value = partial[level];
            else
                add<WIDTH>(value, partial[level]);
            first = false;
        }
        if (accumulate)
            add<WIDTH>(value, load<WIDTH>(out + i));
        store(out + i, value);
    }
};

template <class T, int LEVELS>
enum status sum_tree_of(struct stream *stream, const struct sum_tree_args *args, bool aligned) {
    const int first = args->rank == 0, second = args->rank <= 1 ? 2 : 1; // lowest ranks other than `rank`
    const T *x = static_cast<const T *>(args->x[first]);
    const sum_tree_step<T, LEVELS> step = {
        static_cast<float *>(args->out),
        x,
        static_cast<const T *>(args->x[args->rank]),
        args->count > 2 ? static_cast<size_t>(static_cast<const T *>(args->x[second]) - x) : 0,
        args->count,
        args->rank,
        args->accumulate};
    return over_span<widest_access<float>()>("sum_tree", stream, step, args->n, aligned);
}

// ---- sums in order

constexpr int SUM_THREADS = 256;
constexpr int SUM_TILE = 2048;

// All threads load a tile, and one thread adds it. The order of the sum is strict (kernels/ops.h), so each
// addition waits for the one before, about 5 ns on a data-center GPU.
template <class T>
__global__ void __launch_bounds__(SUM_THREADS)
    sum_in_order(double *out, const T *x, size_t n, bool accumulate) {
    __shared__ double tile[SUM_TILE];
    double sum = accumulate ? *out : 0;
    for (size_t begin = 0; begin < n; begin += SUM_TILE) {
        int length = static_cast<int>(n - begin < SUM_TILE ? n - begin : SUM_TILE);
        __syncthreads(); // thread 0 has added the previous tile
        for (int i = static_cast<int>(threadIdx.x); i < length; i += SUM_THREADS)
            tile[i] = static_cast<double>(x[begin + i]);
        __syncthreads();
        if (threadIdx.x == 0) {
#pragma unroll 16
            for (int i = 0; i < length; i++)
                sum += tile[i];
        }
    }
    if (threadIdx.x == 0)
        *out = sum;
}

// ---- sums of squares

constexpr int SQUARES_THREADS = 256;
// The number of lane sums per thread. Their next elements are adjacent and take one access.
constexpr int SQUARES_WIDTH = SUM_SQUARES_LANES / SQUARES_THREADS;
static_assert(SQUARES_WIDTH == widest_access<float>(), "a thread's lanes are contiguous");

// One thread block sums one block of SUM_SQUARES_BLOCK elements, in the order that kernels/ops.h fixes.
// blockIdx.y is the matrix of a batch.
template <class T, int WIDTH>
__global__ void __launch_bounds__(SQUARES_THREADS)
    sum_squares(double *partial, const T *x, size_t n, size_t distance) {
    __shared__ double sums[SUM_SQUARES_LANES];
    size_t begin = static_cast<size_t>(blockIdx.x) * SUM_SQUARES_BLOCK;
    x += blockIdx.y * distance + begin;
    int length = static_cast<int>(n - begin < SUM_SQUARES_BLOCK ? n - begin : SUM_SQUARES_BLOCK);
    int first = static_cast<int>(threadIdx.x) * SQUARES_WIDTH, i = first;
    double lanes[SQUARES_WIDTH] = {};
#pragma unroll 8
    for (; i + SQUARES_WIDTH <= length; i += SUM_SQUARES_LANES)
        for (int k = 0; k < SQUARES_WIDTH; k += WIDTH) {
            floats<WIDTH> value = load<WIDTH>(x + i + k);
            for (int j = 0; j < WIDTH; j++)
                lanes[k + j] =
                    fma(static_cast<double>(value.x[j]), static_cast<double>(value.x[j]), lanes[k + j]);
        }
    for (int k = 0; k < SQUARES_WIDTH && i + k < length; k++)
        lanes[k] =
            fma(static_cast<double>(upcast(x[i + k])), static_cast<double>(upcast(x[i + k])), lanes[k]);
    for (int k = 0; k < SQUARES_WIDTH; k++)
        sums[first + k] = lanes[k];
    for (int half = SUM_SQUARES_LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        for (int lane = static_cast<int>(threadIdx.x); lane < half; lane += SQUARES_THREADS)
            sums[lane] += sums[lane + half];
    }
    if (threadIdx.x == 0)
        partial[blockIdx.y * gridDim.x + blockIdx.x] = sums[0];
}

// ---- exact sums of squares

constexpr int LEAF_WARPS = 8;
constexpr unsigned LEAF_BLOCKS = 1024; // at most

// A warp sums a leaf at a time; its lanes are those of kernels/ops.h. A block adds its leaves in shared
// memory.
__global__ void __launch_bounds__(32 * LEAF_WARPS)
    add_squares(unsigned long long *sum, const float *x, size_t n) {
    __shared__ unsigned long long words[EXACT_WORDS];
    const size_t n_leaves = (n + SQUARES_LEAF - 1) / SQUARES_LEAF;
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x < EXACT_WORDS)
        words[threadIdx.x] = 0;
    __syncthreads();
    for (size_t leaf = blockIdx.x * LEAF_WARPS + warp; leaf < n_leaves; leaf += gridDim.x * LEAF_WARPS) {
        const size_t first = leaf * SQUARES_LEAF + lane;
        double squares = 0;
#pragma unroll
        for (int k = 0; k < SQUARES_LEAF; k += SQUARES_LANES) {
            const double value = first + k < n ? static_cast<double>(x[first + k]) : 0;
            squares = fma(value, value, squares);
        }
        for (int half = SQUARES_LANES / 2; half > 0; half /= 2)
            squares += __shfl_xor_sync(0xffffffff, squares, half);
        if (lane != 0)
            continue;
        const exact_parts parts = exact_parts_of(squares);
        for (int i = 0; i < parts.n; i++)
            atomicAdd(&words[parts.first + i], static_cast<unsigned long long>(parts.part[i]));
    }
    __syncthreads();
    if (threadIdx.x < EXACT_WORDS && words[threadIdx.x] > 0)
        atomicAdd(&sum[threadIdx.x], words[threadIdx.x]);
}

} // namespace

extern "C" enum status cuda_fill(struct stream *stream, const struct fill_args *args) {
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        fill_step<T> step = {static_cast<T *>(args->out), args->value};
        return over_span<widest_access<T>()>("fill", stream, step, args->n, is_aligned(args->out));
    });
}

extern "C" enum status cuda_cast(struct stream *stream, const struct cast_args *args) {
    bool aligned = is_aligned(args->out) && is_aligned(args->x);
    if (args->through != DTYPE_F32)
        return args->through == DTYPE_BF16 ? round_span<bf16>(stream, args, aligned)
                                           : round_span<half>(stream, args, aligned);
    return with_type(args->type, [&](auto from) {
        return with_type(args->out_type, [&](auto to) {
            using From = decltype(from);
            using To = decltype(to);
            cast_step<To, From> step = {static_cast<To *>(args->out), static_cast<const From *>(args->x)};
            return over_span<widest_access<To, From>()>("cast", stream, step, args->n, aligned);
        });
    });
}

extern "C" enum status cuda_lerp(struct stream *stream, const struct lerp_args *args) {
    const bool aligned = is_aligned(args->out) && is_aligned(args->x) && is_aligned(args->y);
    return with_type(args->out_type, [&](auto zero) {
        using T = decltype(zero);
        const lerp_step<T> step = {static_cast<T *>(args->out),
                                   static_cast<const float *>(args->x),
                                   static_cast<const float *>(args->y),
                                   args->weight,
                                   args->plan,
                                   args->result};
        return over_span<widest_access<T, float>()>("lerp", stream, step, args->n, aligned);
    });
}

extern "C" enum status cuda_add(struct stream *stream, const struct add_args *args) {
    bool aligned = is_aligned(args->out) && is_aligned(args->x) && is_aligned(args->y);
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        add_step<T> step = {static_cast<float *>(args->out), static_cast<const float *>(args->x),
                            static_cast<const T *>(args->y)};
        return over_span<widest_access<float>()>("add", stream, step, args->n, aligned);
    });
}

extern "C" enum status cuda_add_spans(struct stream *stream, const struct add_spans_args *args) {
    constexpr int width = widest_access<float>();
    add_spans_step step = {};
    bool aligned = is_aligned(args->x);
    size_t n = 0;
    step.x = static_cast<const float *>(args->x);
    for (int s = 0; s < ADD_SPANS_MOST; s++) {
        bool exists = s < args->n_spans;
        step.out[s] = exists ? static_cast<float *>(args->spans[s].out) : nullptr;
        step.first[s] = exists ? n : SIZE_MAX;
        n += exists ? args->spans[s].n : 0;
        aligned = aligned && is_aligned(step.out[s]) && n % width == 0;
    }
    return over_span<width>("add_spans", stream, step, n, aligned);
}

extern "C" enum status cuda_sum_tree(struct stream *stream, const struct sum_tree_args *args) {
    bool aligned = is_aligned(args->out);
    for (int rank = 0; rank < args->count; rank++)
        aligned = aligned && is_aligned(args->x[rank]);
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        if (args->count < 1 << 3) // at most 7 ranks
            return sum_tree_of<T, 3>(stream, args, aligned);
        if (args->count < 1 << 7)
            return sum_tree_of<T, 7>(stream, args, aligned);
        return sum_tree_of<T, 16>(stream, args, aligned);
    });
}

extern "C" enum status cuda_sum(struct stream *stream, const struct sum_args *args) {
    if (args->type == DTYPE_F64)
        return LAUNCH(stream, sum_in_order<double>, 1, SUM_THREADS, 0, args->out,
                      static_cast<const double *>(args->x), args->n, args->accumulate);
    return LAUNCH(stream, sum_in_order<float>, 1, SUM_THREADS, 0, args->out,
                  static_cast<const float *>(args->x), args->n, args->accumulate);
}

extern "C" enum status cuda_sum_squares_of(struct stream *stream, double *partial, const void *x, size_t n,
                                           int n_matrices, size_t distance, enum dtype type) {
    const dim3 grid(static_cast<unsigned>(ceil_divide(n, SUM_SQUARES_BLOCK)),
                    static_cast<unsigned>(n_matrices));
    const bool aligned = is_aligned(x) && distance * dtype_size(type) % 16 == 0;
    return with_type(type, [&](auto zero) {
        using T = decltype(zero);
        return launch("sum_squares", stream,
                      aligned ? sum_squares<T, widest_access<float>()> : sum_squares<T, 1>, grid,
                      SQUARES_THREADS, 0, partial, static_cast<const T *>(x), n, distance);
    });
}

extern "C" enum status cuda_sum_squares(struct stream *stream, const struct sum_squares_args *args) {
    return args->n == 0 ? STATUS_OK
                        : cuda_sum_squares_of(stream, args->partial, args->x, args->n, 1, 0, args->type);
}

extern "C" enum status cuda_add_squares(struct stream *stream, const struct add_squares_args *args) {
    if (args->n == 0)
        return STATUS_OK;
    const size_t blocks = ceil_divide(args->n, SQUARES_LEAF * LEAF_WARPS);
    return LAUNCH(stream, add_squares, blocks < LEAF_BLOCKS ? static_cast<unsigned>(blocks) : LEAF_BLOCKS,
                  32 * LEAF_WARPS, 0, reinterpret_cast<unsigned long long *>(args->sum), args->x, args->n);
}
