// Code shared by attention's kernels: the rows that a block processes, loading them into tiles, the online
// softmax, and the entry points of the CUDA-core kernels (attention_cores.cu). attention_forward.cu and
// attention_backward.cu have the tensor-core kernels, and decide for each call whether these or the
// CUDA-core kernels compute it.
//
// Grids are (tiles, heads, B). Blocks of one head run close together in time and find its keys and values
// in the cache. Of each head's blocks, those with the most work run first, so that a kernel does not end with
// a few long blocks. Where a block owns queries, the last tile has the most work, since its queries see the
// most keys. So these kernels take tiles from the last to the first. Where a block owns keys, the first tile
// has the most work, and tiles are taken in order.
#ifndef ZERO_KERNELS_CUDA_ATTENTION_CUH
#define ZERO_KERNELS_CUDA_ATTENTION_CUH

#include <limits.h>

#include "kernels/cuda/common.cuh"

// Maximum head dimension D of the tensor-core kernels and of the CUDA-core kernels.
constexpr int ATTENTION_TENSOR_WIDTH = CUDA_ATTENTION_TENSOR_WIDTH;
constexpr int ATTENTION_WIDTH = 256;

// ---- rows of a head

// Rows of one head of a tensor. x: the first element of the first row; n: the number of rows; stride:
// elements from one row to the next.
template <class T> struct attention_rows {
    T *x;
    size_t stride;
    int n;
};

// Returns the rows of a head of q, k, v or one of their gradients, in the block's sequence.
//   batch_stride, stride   elements between sequences, and between positions
//   position               position of the first row
//   n_positions            number of positions in the sequence
//   Pointer                void * or const void *
template <class T, class Pointer>
__device__ inline attention_rows<T> strided_rows(Pointer tensor, size_t batch_stride, size_t stride, int D,
                                                 int head, int position, int n_positions) {
    return {static_cast<T *>(tensor) + blockIdx.z * batch_stride + position * stride +
                static_cast<size_t>(head) * D,
            stride, n_positions - position};
}

// Like strided_rows, for a head of out or dout: (B, T, H * D), dense.
template <class T, class Pointer>
__device__ inline attention_rows<T> dense_rows(Pointer tensor, int H, int D, int head, int position,
                                               int T_positions) {
    size_t stride = static_cast<size_t>(H) * D;
    return strided_rows<T>(tensor, T_positions * stride, stride, D, head, position, T_positions);
}

// Returns the index in lse and delta, both (B, H, T), of a head's first position in the block's sequence.
__device__ inline size_t head_offset(int H, int head, int T_positions) {
    return (static_cast<size_t>(blockIdx.z) * H + head) * T_positions;
}

// The block's head: a query head or, in kernels whose rows are keys, a key-value head.
__device__ inline int own_head() {
    return static_cast<int>(blockIdx.y);
}

__device__ inline int tile_counted_down() {
    return static_cast<int>(gridDim.x - 1 - blockIdx.x);
}

// ---- documents and windows (`first` and `window` in kernels/ops_layers.h)

// Forward gives this score to keys before the first key that a query sees. A row's first tiles may hold
// only such keys. If their scores were -infinity, so would be the row's shift (its highest scaled score),
// and its weights would be NaN. Once a tile holds a key that the row sees, the shift rises so far that the
// factor exp(old shift - new shift) is 0. Multiplying the row's sums by it removes the hidden keys. The
// score is a power of two, so scaling it is exact, and a scaled score minus an equal shift is exactly 0.
constexpr float HIDDEN_SCORE = -0x1p100f;

// Computes the first key that each query of the block's sequence sees. BOUNDED is false in calls whose
// queries all see key 0: without documents, and without a window shorter than the sequence. Separate
// kernels are compiled for these calls, since they need fewer registers.
template <bool BOUNDED> struct first_keys {
    const int32_t *first;  // first position of each query's document; NULL: no documents
    int n_queries, missed; // query i sees no key before i - missed; missed is INT_MAX without a window

    //   Args     attention_forward_args or attention_backward_args
    //   cached   number of keys before the first query's own key
    template <class Args>
    __device__ __forceinline__ first_keys(const Args &args, int cached)
        : first(BOUNDED && args.first ? args.first + static_cast<size_t>(blockIdx.z) * args.T : nullptr),
          n_queries(args.T), missed(args.window > 0 ? args.window - 1 - cached : INT_MAX) {}

    // Returns the first key that `query` sees. A query past the last one gets the last one's result. The
    // result never decreases as `query` grows.
    __device__ __forceinline__ int of(int query) const {
        if (!BOUNDED)
            return 0;
        query = min(query, n_queries - 1);
        const int key = max(query - missed, 0);
        return first ? max(first[query], key) : key;
    }

    // Returns the first key that `query` or any later query sees, rounded down to a multiple of `tile`.
    __device__ __forceinline__ int tile_of(int query, int tile) const {
        return BOUNDED ? of(query) / tile * tile : 0;
    }

    // True if last_query's document or window begins after `key`, which hides `key` from it. If false,
    // `key` is not hidden from any earlier query either.
    __device__ __forceinline__ bool hide(int last_query, int key) const {
        return BOUNDED && of(last_query) > key;
    }
};

template <bool BOUNDED> struct with_bound { static constexpr bool value = BOUNDED; };

// Calls f(with_bound<true>()) if some query may not see key 0, otherwise f(with_bound<false>()). S: keys
// per sequence.
template <class Args, class F> enum status with_or_without_bound(const Args *args, int S, F f) {
    return args->first || (args->window > 0 && args->window < S) ? f(with_bound<true>())
                                                                 : f(with_bound<false>());
}

// ---- tiles: ROWS x WIDTH elements in shared memory, rows STRIDE elements apart

// copy_async and copy_upcast are the two ways in which copy_to_tile copies elements. An element for which
// `valid` is false becomes 0. UNROLL is the unroll factor of copy_to_tile's loop.

// Copies asynchronously, without changing the type. The caller commits and waits (ptx.cuh: cp_async_16).
struct copy_async {
    static constexpr int UNROLL = 64; // full unrolling
    template <class T> static __device__ __forceinline__ void copy_pack(T *to, const T *from, bool valid) {
        cp_async_16(to, from, valid);
    }
    template <class T> static __device__ __forceinline__ T element(T x) {
        return x;
    }
};

// Copies synchronously, and converts to float.
struct copy_upcast {
    static constexpr int UNROLL = 2;
    template <class T>
    static __device__ __forceinline__ void copy_pack(float *to, const T *from, bool valid) {
        pack<T> values = {};
        if (valid)
            values = load_pack(from);
        for (int k = 0; k < pack<T>::size; k++)
            to[k] = upcast(values.x[k]);
    }
    template <class T> static __device__ __forceinline__ float element(T x) {
        return upcast(x);
    }
};

// Copies columns [column, column + WIDTH) of a head's rows to a tile, with THREADS threads. Rows past the
// last one and columns past D become zeros.
//   packed   the tensor allows 16-byte accesses. Without them, elements are copied one by one,
//            synchronously, whatever Copy is
// No thread may use the tile any more when the call begins. A barrier must follow before other threads read
// it.
template <class Copy, int ROWS, int WIDTH, int STRIDE, int THREADS, class To, class T>
__device__ __forceinline__ void copy_to_tile(To *tile, const attention_rows<const T> &from, int column, int D,
                                             bool packed) {
    constexpr int PACKS = WIDTH / pack<T>::size; // per row
    constexpr int STEP = THREADS / PACKS;        // rows at a time; leftover threads do nothing
    int thread = static_cast<int>(threadIdx.x);
    if (packed) {
        int row = thread / PACKS, at = thread % PACKS * pack<T>::size;
        const T *x = from.x + row * from.stride + column + at;
#pragma unroll(Copy::UNROLL)
        for (int i = 0; i < (ROWS + STEP - 1) / STEP; i++, row += STEP, x += STEP * from.stride) {
            if (thread >= STEP * PACKS || row >= ROWS)
                break;
            bool valid = row < from.n && column + at < D;
            Copy::copy_pack(tile + row * STRIDE + at, valid ? x : from.x, valid);
        }
        return;
    }
#pragma unroll 1
    for (int i = thread; i < ROWS * WIDTH; i += THREADS) {
        int row = i / WIDTH, at = i % WIDTH;
        bool valid = row < from.n && column + at < D;
        tile[row * STRIDE + at] =
            valid ? Copy::element(from.x[row * from.stride + column + at]) : downcast<To>(0);
    }
}

// ---- online softmax (FlashAttention-2, arXiv 2307.08691)

// The state of the softmax of one row of scores. shift: the highest scaled score so far. sum: the sum of
// exp(score - shift) over the scores that this thread holds.
struct online_softmax {
    float shift, sum;
};

// Adds N more scores from each of the LANES adjacent threads that share a row. score(i) returns a reference
// to the thread's score i. Each score is replaced by its weight, exponential(score * scale - shift).
// Returns the factor by which to multiply the row's earlier sums of weights, which are relative to the
// previous shift. Every row must see a finite score in its first tile, so that the shift stays finite.
template <int N, int LANES, class Scores, class Exponential>
__device__ __forceinline__ float add_scores(online_softmax &row, Scores score, float scale,
                                            Exponential exponential) {
    float highest = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        highest = fmaxf(highest, score(i));
    float shift = fmaxf(row.shift, lanes_max<LANES>(highest) * scale);
    float factor = exponential(row.shift - shift);
#pragma unroll
    for (int i = 0; i < N; i++) {
        score(i) = exponential(fmaf(score(i), scale, -shift));
        sum += score(i);
    }
    row = {shift, row.sum * factor + sum};
    return factor;
}

// ---- launching the kernels

static inline enum status attention_check_width(int D) {
    if (D > ATTENTION_WIDTH)
        return FAIL(STATUS_UNSUPPORTED,
                    "device \"cuda\": attention heads of %d elements are too wide, at most %d are supported; "
                    "use more heads (n_head) or device=cpu",
                    D, ATTENTION_WIDTH);
    return STATUS_OK;
}

static inline float attention_scale(int D) {
    return static_cast<float>(1 / sqrt(static_cast<double>(D)));
}

// True if rows of D elements with these strides can be accessed 16 bytes at a time.
static inline bool attention_is_packed(int D, size_t stride, size_t batch_stride, enum dtype type) {
    size_t pack = 16 / dtype_size(type);
    return D % pack == 0 && stride % pack == 0 && batch_stride % pack == 0;
}

// attention_forward and attention_backward (kernels/ops_layers.h) on CUDA cores.
//   packed   every tensor allows 16-byte accesses
//   delta    (B, H, T) fp32: the dot product of each row of dout with its row of out
enum status attention_forward_on_cores(struct stream *stream, const struct attention_forward_args *args,
                                       bool packed) MUST_CHECK;
enum status attention_backward_on_cores(struct stream *stream, const struct attention_backward_args *args,
                                        const float *delta, bool packed) MUST_CHECK;

#endif
