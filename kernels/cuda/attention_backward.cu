// Backward of attention (kernels/ops_layers.h: attention_backward) in bf16 and fp16 on tensor cores, by
// FlashAttention-2 (arXiv 2307.08691) without its atomic additions. There are two kernels:
// - queries_backward: one block per tile of queries. It first computes delta, the dot product of each row
//   of dout with its row of out, then dq.
// - keys_backward: one block per tile of keys. It computes dk and dv.
// Both compute the scores and dp = dout v^T, so there are seven products instead of the five of a single
// kernel. In exchange, each block owns the rows it sums, so the order of summation is fixed. p (the softmax
// weights) and ds (the gradients of the scores) pass from one product to the next in registers. A single
// kernel would pass them through shared memory and keep the sums of dq in global memory.
#include "kernels/cuda/attention_tensor.cuh"

namespace {

// A block keeps its own rows of two tensors (q and dout, or k and v) and loops over the two other tensors,
// STEP rows at a time. It has two buffers for these: the next STEP rows are copied while the current ones
// are multiplied.
constexpr int STEP = 32;

// Tile sizes of a block. M: fragments of 16 own rows per warp. For wide heads M is 1, as the sums need more
// registers.
template <int WIDTH> struct backward_tiles {
    static constexpr int M = WIDTH > 64 ? 1 : 2, WARP_ROWS = 16 * M, ROWS = ATTENTION_WARPS * WARP_ROWS;
    static constexpr int STRIDE = TILE_STRIDE<WIDTH>;
    static constexpr int SHARED_ELEMENTS = (2 * ROWS + 4 * STEP) * STRIDE;
};

// The tiles in shared memory. own: the block's own rows of two tensors. others: STEP rows of each of the
// two other tensors, for this step and the next.
template <class T, int WIDTH> struct tiles {
    T *own[2], *others;

    __device__ static tiles in_shared_memory() {
        T *start = dynamic_shared<T>();
        constexpr int OWN = backward_tiles<WIDTH>::ROWS * backward_tiles<WIDTH>::STRIDE;
        return {{start, start + OWN}, start + 2 * OWN};
    }

    // Returns the tile of other tensor number `which` (0 or 1) in even steps (odd is 0) or odd steps (odd
    // is 1).
    __device__ T *step(int odd, int which) const {
        return others + (2 * odd + which) * STEP * backward_tiles<WIDTH>::STRIDE;
    }
};

// ---- delta

constexpr int DELTA_LANES = 8; // threads per row
constexpr int DELTA_THREADS = 256;

// Returns the dot product of a row of dout with its row of out to each of the row's DELTA_LANES threads.
// Both rows have D elements and begin at index `at`. All threads of a warp must call it. `valid` is false
// for a row that does not exist.
template <class T>
__device__ inline float row_delta(const attention_backward_args &args, size_t at, bool valid, bool packed) {
    const int lane = static_cast<int>(threadIdx.x) % DELTA_LANES, D = args.D;
    const T *dout = static_cast<const T *>(args.dout) + at, *out = static_cast<const T *>(args.out) + at;
    float sum = 0;
    if (valid && packed)
        for (int d = lane * pack<T>::size; d < D; d += DELTA_LANES * pack<T>::size) {
            pack<T> left = load_pack(dout + d), right = load_pack(out + d);
            for (int k = 0; k < pack<T>::size; k++)
                sum = fmaf(upcast(left.x[k]), upcast(right.x[k]), sum);
        }
    else if (valid)
        for (int d = lane; d < D; d += DELTA_LANES)
            sum = fmaf(upcast(dout[d]), upcast(out[d]), sum);
    return lanes_sum<DELTA_LANES>(sum);
}

// Computes delta for the CUDA-core kernels. The tensor-core kernels compute it themselves.
template <class T>
__global__ void __launch_bounds__(DELTA_THREADS)
    deltas(float *delta, attention_backward_args args, bool packed) {
    size_t row = (static_cast<size_t>(blockIdx.x) * DELTA_THREADS + threadIdx.x) / DELTA_LANES;
    size_t T_positions = args.T, H = args.H;
    bool valid = row < args.B * T_positions * H;
    float sum = row_delta<T>(args, row * args.D, valid, packed);
    size_t b = row / (T_positions * H), t = row / H % T_positions, h = row % H;
    if (valid && threadIdx.x % DELTA_LANES == 0)
        delta[(b * H + h) * T_positions + t] = sum;
}

// Writes delta of n rows from position `first` on, for the block's head and sequence. Called by one warp,
// which may read the results afterwards.
template <class T>
__device__ inline void put_deltas(float *delta, const attention_backward_args &args, int first, int n,
                                  bool packed) {
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    for (int i = lane / DELTA_LANES; i < n; i += WARP / DELTA_LANES) {
        const int t = first + i;
        const size_t row = (static_cast<size_t>(blockIdx.z) * args.T + t) * args.H + own_head();
        const float sum = row_delta<T>(args, row * args.D, t < args.T, packed);
        if (t < args.T && lane % DELTA_LANES == 0)
            delta[head_offset(args.H, own_head(), args.T) + t] = sum;
    }
    __syncwarp();
}

// ---- dq

// On entry, ds holds dp = dout v^T. On return, it holds p (dp - delta), where p = 2^(scaled score - lse)
// and `lse` is a base-2 logarithm.
template <int M>
__device__ __forceinline__ void differentiate(mma_c (&ds)[M][STEP / 8], const mma_c (&scores)[M][STEP / 8],
                                              float log2_scale, const float (&lse)[M][2],
                                              const float (&deltas)[M][2]) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float p = exp2_approximate(fmaf(scores[m][n].x[i], log2_scale, -lse[m][i / 2]));
                ds[m][n].x[i] = p * (ds[m][n].x[i] - deltas[m][i / 2]);
            }
}

// Computes delta and dq. Rows of a score tile are queries, columns are keys.
template <class T, int WIDTH, bool BOUNDED>
__global__ void __launch_bounds__(ATTENTION_THREADS,
                                  BOUNDED ? pinned_blocks(PINNED_QUERIES_BACKWARD, WIDTH) : 0)
    queries_backward(attention_backward_args args, float *delta, float scale, float log2_scale, bool packed) {
    using shape = backward_tiles<WIDTH>;
    constexpr int M = shape::M, STRIDE = shape::STRIDE, WARP_ROWS = shape::WARP_ROWS, ROWS = shape::ROWS;
    const auto tile = tiles<T, WIDTH>::in_shared_memory();
    int D = args.D, first = tile_counted_down() * ROWS;
    int own = static_cast<int>(threadIdx.x) / WARP * WARP_ROWS; // the warp's first row in the tile
    int n_keys = min(args.T, first + ROWS);
    const first_keys<BOUNDED> starts(args, 0);
    const int first_key = starts.tile_of(first, STEP), first_own_key = starts.of(first + own);
    const int head = own_head(), kv_head = head / (args.H / args.K);
    auto load_step = [&](int key, int odd) {
        load_tile<STEP, WIDTH>(
            tile.step(odd, 0),
            strided_rows<const T>(args.k, args.k_batch_stride, args.k_stride, D, kv_head, key, args.T), D,
            packed);
        load_tile<STEP, WIDTH>(
            tile.step(odd, 1),
            strided_rows<const T>(args.v, args.v_batch_stride, args.v_stride, D, kv_head, key, args.T), D,
            packed);
        cp_async_commit();
    };

    load_tile<ROWS, WIDTH>(
        tile.own[0],
        strided_rows<const T>(args.q, args.q_batch_stride, args.q_stride, D, head, first, args.T), D, packed);
    load_tile<ROWS, WIDTH>(tile.own[1], dense_rows<const T>(args.dout, args.H, D, head, first, args.T), D,
                           packed);
    load_step(first_key, 0);
    put_deltas<T>(delta, args, first + own, WARP_ROWS, packed);
    float lse[M][2], deltas[M][2];
    for (int m = 0; m < M; m++)
        for (int h = 0; h < 2; h++) {
            int row = first + own + 16 * m + fragment_row(h);
            size_t at = head_offset(args.H, head, args.T) + row;
            lse[m][h] = row < args.T ? static_cast<const float *>(args.lse)[at] * LOG2_E : 0.0f;
            deltas[m][h] = row < args.T ? delta[at] : 0.0f;
        }
    mma_c dq[M][WIDTH / 8] = {};
    for (int key = first_key, odd = 0; key < n_keys; key += STEP, odd ^= 1) {
        cp_async_wait<0>();
        __syncthreads(); // this step's rows have arrived, and all threads have read the previous step's
        if (key + STEP < n_keys)
            load_step(key + STEP, odd ^ 1);
        if (first + own >= args.T || key >= first + own + WARP_ROWS ||
            (BOUNDED && key + STEP <= first_own_key))
            continue;
        mma_c scores[M][STEP / 8], ds[M][STEP / 8];
        multiply_rows<WIDTH, M, STEP>(scores, tile.own[0] + own * STRIDE, tile.step(odd, 0));
        multiply_rows<WIDTH, M, STEP>(ds, tile.own[1] + own * STRIDE, tile.step(odd, 1));
        int n_visible = first + own + 1 - key; // keys from `key` on that the warp's first row sees
        if (n_visible < STEP)
            mask_after(scores, n_visible);
        if (starts.hide(first + own + WARP_ROWS - 1, key))
            hide_keys(scores, starts, first + own, key, -INFINITY);
        differentiate(ds, scores, log2_scale, lse, deltas);
        add_rows<WIDTH, M, STEP>(dq, ds, tile.step(odd, 0));
    }
    put_rows<WIDTH, M>(tile.own[0] + own * STRIDE, dq, scale);
    if (args.rope.table)
        rotate_rows<WARP_ROWS, WIDTH>(tile.own[0] + own * STRIDE, args.rope.table, first + own,
                                      args.T - first - own, D, packed, -1.0f);
    store_tile<WARP_ROWS, WIDTH>(
        strided_rows<T>(args.dq, args.q_batch_stride, args.q_stride, D, head, first + own, args.T),
        tile.own[0] + own * STRIDE, D, packed);
}

// ---- dk and dv

// For a head's STEP queries from `query` on: the first STEP threads return lse (as a base-2 logarithm) of
// one query each, the next STEP threads delta. Other threads, and threads past the last query, return 0.
__device__ __forceinline__ float lse_or_delta(const attention_backward_args &args, const float *delta,
                                              int head, int query) {
    int thread = static_cast<int>(threadIdx.x), row = query + thread % STEP;
    if (thread >= 2 * STEP || row >= args.T)
        return 0;
    size_t at = head_offset(args.H, head, args.T) + row;
    return thread < STEP ? static_cast<const float *>(args.lse)[at] * LOG2_E : delta[at];
}

// Replaces scores by p = 2^(scaled score - lse). `lse` points to the value of the query in the thread's
// first column.
template <int M>
__device__ __forceinline__ void apply_softmax(mma_c (&scores)[M][STEP / 8], float log2_scale,
                                              const float *lse) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                scores[m][n].x[i] =
                    exp2_approximate(fmaf(scores[m][n].x[i], log2_scale, -lse[8 * n + i % 2]));
}

// On entry, ds holds dp^T for 16 queries. On return, it holds p (dp - delta). These queries' fragments in p
// begin at index `first`. `deltas` points to delta of the query in the thread's first column.
template <int M>
__device__ __forceinline__ void differentiate(mma_c (&ds)[M][2], const mma_c (&p)[M][STEP / 8], int first,
                                              const float *deltas) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                ds[m][n].x[i] = p[m][first + n].x[i] * (ds[m][n].x[i] - deltas[8 * n + i % 2]);
}

// Computes dk and dv. Rows of a score tile are keys. Columns are the queries of all heads that read the
// block's key-value head, one head after another.
template <class T, int WIDTH, bool BOUNDED>
__global__ void __launch_bounds__(ATTENTION_THREADS, BOUNDED ? pinned_blocks(PINNED_KEYS_BACKWARD, WIDTH) : 0)
    keys_backward(attention_backward_args args, const float *delta, float scale, float log2_scale,
                  bool packed) {
    using shape = backward_tiles<WIDTH>;
    constexpr int M = shape::M, STRIDE = shape::STRIDE, WARP_ROWS = shape::WARP_ROWS, ROWS = shape::ROWS;
    __shared__ float lse_and_delta[2][2 * STEP]; // for even and odd steps
    const auto tile = tiles<T, WIDTH>::in_shared_memory();
    int thread = static_cast<int>(threadIdx.x), D = args.D, first = static_cast<int>(blockIdx.x) * ROWS;
    int own = thread / WARP * WARP_ROWS; // the warp's first row in the tile
    const int kv_head = own_head(), group = args.H / args.K, end_head = (kv_head + 1) * group;
    const first_keys<BOUNDED> starts(args, 0);
    auto load_step = [&](int head, int query, int odd) {
        load_tile<STEP, WIDTH>(
            tile.step(odd, 0),
            strided_rows<const T>(args.q, args.q_batch_stride, args.q_stride, D, head, query, args.T), D,
            packed);
        load_tile<STEP, WIDTH>(tile.step(odd, 1),
                               dense_rows<const T>(args.dout, args.H, D, head, query, args.T), D, packed);
        cp_async_commit();
    };

    load_tile<ROWS, WIDTH>(
        tile.own[0],
        strided_rows<const T>(args.k, args.k_batch_stride, args.k_stride, D, kv_head, first, args.T), D,
        packed);
    load_tile<ROWS, WIDTH>(
        tile.own[1],
        strided_rows<const T>(args.v, args.v_batch_stride, args.v_stride, D, kv_head, first, args.T), D,
        packed);
    load_step(kv_head * group, first, 0);
    if (thread < 2 * STEP)
        lse_and_delta[0][thread] = lse_or_delta(args, delta, kv_head * group, first);
    mma_c dk[M][WIDTH / 8] = {}, dv[M][WIDTH / 8] = {};
    // Once a query's document or window begins after the block's last key, no later query sees a key of the
    // block.
    auto is_seen = [&](int query) { return query < args.T && !starts.hide(query, first + ROWS - 1); };
    for (int head = kv_head * group, query = first, odd = 0; head < end_head; odd ^= 1) {
        cp_async_wait<0>();
        __syncthreads(); // this step's rows have arrived, and all threads have read the previous step's
        const bool stays = is_seen(query + STEP);
        const int next_head = stays ? head : head + 1, next_query = stays ? query + STEP : first;
        bool more = next_head < end_head;
        if (more)
            load_step(next_head, next_query, odd ^ 1);
        float next = more ? lse_or_delta(args, delta, next_head, next_query) : 0;
        int n_hidden = first + own - query; // queries of this step that precede the warp's first key
        if (n_hidden < STEP && first + own < args.T && !starts.hide(query, first + own + WARP_ROWS - 1)) {
            const float *lse = lse_and_delta[odd] + fragment_column(), *deltas = lse + STEP;
            mma_c p[M][STEP / 8];
            multiply_rows<WIDTH, M, STEP>(p, tile.own[0] + own * STRIDE, tile.step(odd, 0));
            if (n_hidden + WARP_ROWS > 1)
                mask_before(p, n_hidden);
            if (starts.hide(query + STEP - 1, first + own))
                hide_from_queries(p, starts, query, first + own, -INFINITY);
            apply_softmax(p, log2_scale, lse);
            add_rows<WIDTH, M, STEP>(dv, p, tile.step(odd, 1));
            // Processes 16 queries at a time, to save registers.
#pragma unroll
            for (int i = 0; i < STEP; i += 16) {
                mma_c ds[M][2];
                multiply_rows<WIDTH, M, 16>(ds, tile.own[1] + own * STRIDE, tile.step(odd, 1) + i * STRIDE);
                differentiate(ds, p, i / 8, deltas + i);
                add_rows<WIDTH, M, 16>(dk, ds, tile.step(odd, 0) + i * STRIDE);
            }
        }
        if (more && thread < 2 * STEP)
            lse_and_delta[odd ^ 1][thread] = next;
        head = next_head, query = next_query;
    }
    put_rows<WIDTH, M>(tile.own[0] + own * STRIDE, dk, scale);
    put_rows<WIDTH, M>(tile.own[1] + own * STRIDE, dv, 1);
    if (args.rope.table)
        rotate_rows<WARP_ROWS, WIDTH>(tile.own[0] + own * STRIDE, args.rope.table, first + own,
                                      args.T - first - own, D, packed, -1.0f);
    store_tile<WARP_ROWS, WIDTH>(
        strided_rows<T>(args.dk, args.k_batch_stride, args.k_stride, D, kv_head, first + own, args.T),
        tile.own[0] + own * STRIDE, D, packed);
    store_tile<WARP_ROWS, WIDTH>(
        strided_rows<T>(args.dv, args.v_batch_stride, args.v_stride, D, kv_head, first + own, args.T),
        tile.own[1] + own * STRIDE, D, packed);
}

// ---- launching

// q and k must already be rotated. If rope.table is set, the tensor-core kernels also rotate dq and dk
// back.
enum status launch(struct stream *stream, const struct attention_backward_args *args) {
    int D = args->D;
    bool by_cudnn;
    TRY(cuda_cudnn_backward(stream, args, &by_cudnn));
    if (by_cudnn)
        return STATUS_OK;
    TRY(attention_check_width(D));
    float *delta = static_cast<float *>(stream->workspace), scale = attention_scale(D);
    bool packed = is_aligned(args->dq) && is_aligned(args->dk) && is_aligned(args->dv) &&
                  is_aligned(args->dout) && is_aligned(args->out) && is_aligned(args->q) &&
                  is_aligned(args->k) && is_aligned(args->v) && is_aligned(args->rope.table) &&
                  attention_is_packed(D, args->q_stride, args->q_batch_stride, args->type) &&
                  attention_is_packed(D, args->k_stride, args->k_batch_stride, args->type) &&
                  attention_is_packed(D, args->v_stride, args->v_batch_stride, args->type);
    if (cuda_attends_on_cores(args->type, D)) {
        size_t n_rows = static_cast<size_t>(args->B) * args->T * args->H;
        TRY(with_type(args->type, [=](auto type) {
            return LAUNCH(stream, deltas<decltype(type)>,
                          dim3(ceil_divide(n_rows * DELTA_LANES, DELTA_THREADS)), dim3(DELTA_THREADS), 0,
                          delta, *args, packed);
        }));
        return attention_backward_on_cores(stream, args, delta, packed);
    }
    return with_type_and_width(args->type, D, [=](auto type, auto width) {
        using T = decltype(type);
        constexpr int WIDTH = decltype(width)::value;
        using shape = backward_tiles<WIDTH>;
        const unsigned n_tiles = ceil_divide(args->T, shape::ROWS);
        const dim3 block(ATTENTION_THREADS);
        size_t shared_bytes = shape::SHARED_ELEMENTS * sizeof(T);
        return with_or_without_bound(args, args->T, [=](auto bound) {
            constexpr bool BOUNDED = decltype(bound)::value;
            TRY(LAUNCH(stream, (queries_backward<T, WIDTH, BOUNDED>), dim3(n_tiles, args->H, args->B), block,
                       shared_bytes, *args, delta, scale, attention_log2_scale(D), packed));
            return LAUNCH(stream, (keys_backward<T, WIDTH, BOUNDED>), dim3(n_tiles, args->K, args->B), block,
                          shared_bytes, *args, delta, scale, attention_log2_scale(D), packed);
        });
    });
}

} // namespace

extern "C" enum status cuda_attention_backward(struct stream *stream,
                                               const struct attention_backward_args *args) {
    struct attention_backward_args rotated = attention_backward_of_rotated(args);
    if (cuda_attention_rotates(&args->rope, args->kernel, args->type, args->D)) {
        rotated.dq = args->dq;
        rotated.dk = args->dk;
        rotated.rope.table = args->rope.table;
        return launch(stream, &rotated);
    }
    TRY(launch(stream, &rotated));
    struct rope_backward_args calls[ATTENTION_ROPE_CALLS];
    const int n_calls = attention_rope_backward(args, calls);
    for (int i = 0; i < n_calls; i++)
        TRY(cuda_rope_backward(stream, &calls[i]));
    return STATUS_OK;
}
