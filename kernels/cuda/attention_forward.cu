// Forward of attention (kernels/ops_layers.h: attention_forward) in bf16 and fp16 on tensor cores, by
// FlashAttention (arXiv 2205.14135; 2307.08691). A block keeps its queries and loops over tiles of keys and
// values. Keys and values alternate: while a tile of keys is multiplied, the next tile of values is copied,
// and vice versa. So one tile of each is enough. Scores and softmax weights stay in registers. Weights are
// computed as powers of 2 instead of e.
#include "kernels/cuda/attention_tensor.cuh"

namespace {

constexpr int KEYS = 64;

// Tile sizes of a block. M: fragments of 16 queries per warp. For wide heads M is 1, as the sums need more
// registers.
template <int WIDTH> struct forward_tiles {
    static constexpr int M = WIDTH > 64 ? 1 : 2, WARP_QUERIES = 16 * M;
    static constexpr int QUERIES = ATTENTION_WARPS * WARP_QUERIES;
    static constexpr int SHARED_ELEMENTS = (QUERIES + 2 * KEYS) * TILE_STRIDE<WIDTH>;
};

// Replaces scores by softmax weights, 2^(scaled score - shift), and rescales `out`, which was summed with
// the previous shift. In its first tile, every row has a key that it sees or one with HIDDEN_SCORE, so its
// shift is finite from then on.
template <int WIDTH, int M>
__device__ __forceinline__ void apply_softmax(mma_c (&scores)[M][KEYS / 8], online_softmax (&rows)[M][2],
                                              mma_c (&out)[M][WIDTH / 8], float log2_scale) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            auto score = [&](int i) -> float & { return scores[m][i / 2].x[2 * h + i % 2]; };
            float factor = add_scores<KEYS / 4, FRAGMENT_ROW_LANES>(
                rows[m][h], score, log2_scale, [](float x) { return exp2_approximate(x); });
#pragma unroll
            for (int n = 0; n < WIDTH / 8; n++) {
                out[m][n].x[2 * h] *= factor;
                out[m][n].x[2 * h + 1] *= factor;
            }
        }
}

// Divides the warp's output rows by their softmax denominators, and writes their log-sum-exp (lse). `first`
// is the position of the first row.
template <int WIDTH, int M>
__device__ __forceinline__ void finish(mma_c (&out)[M][WIDTH / 8], const online_softmax (&rows)[M][2],
                                       const attention_forward_args &args, int first) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float sum = fragment_row_sum(rows[m][h].sum), factor = 1 / sum;
            int row = first + 16 * m + fragment_row(h);
            if (args.lse && fragment_column() == 0 && row < args.T)
                static_cast<float *>(args.lse)[head_offset(args.H, own_head(), args.T) + row] =
                    (rows[m][h].shift + log2f(sum)) * LN_2;
#pragma unroll
            for (int n = 0; n < WIDTH / 8; n++) {
                out[m][n].x[2 * h] *= factor;
                out[m][n].x[2 * h + 1] *= factor;
            }
        }
}

template <class T, int WIDTH, bool BOUNDED>
__global__ void __launch_bounds__(ATTENTION_THREADS,
                                  BOUNDED ? pinned_blocks(PINNED_ATTENTION_FORWARD, WIDTH) : 0)
    forward(attention_forward_args args, float log2_scale, bool packed) {
    using shape = forward_tiles<WIDTH>;
    constexpr int STRIDE = TILE_STRIDE<WIDTH>, M = shape::M;
    constexpr int QUERIES = shape::QUERIES, WARP_QUERIES = shape::WARP_QUERIES;
    T *queries = dynamic_shared<T>(), *keys = queries + QUERIES * STRIDE, *values = keys + KEYS * STRIDE;
    int D = args.D, first = tile_counted_down() * QUERIES;
    int own = static_cast<int>(threadIdx.x) / WARP * WARP_QUERIES; // the warp's first row in the tile
    int cached = args.S - args.T;
    const first_keys<BOUNDED> starts(args, cached);
    const int first_key = starts.tile_of(first, KEYS), first_own_key = starts.of(first + own);
    // The number of keys up to the last one that the block's last row sees, and that the warp's last row
    // sees. n_own_keys is 0 if the warp has no rows.
    int n_keys = min(args.S, cached + first + QUERIES);
    int n_own_keys = first + own < args.T ? min(args.S, cached + first + own + WARP_QUERIES) : 0;
    const int head = own_head(), kv_head = head / (args.H / args.K);
    auto key_rows = [&](int position) {
        return strided_rows<const T>(args.k, args.k_batch_stride, args.k_stride, D, kv_head, position,
                                     args.S);
    };
    auto value_rows = [&](int position) {
        return strided_rows<const T>(args.v, args.v_batch_stride, args.v_stride, D, kv_head, position,
                                     args.S);
    };

    load_tile<QUERIES, WIDTH>(
        queries, strided_rows<const T>(args.q, args.q_batch_stride, args.q_stride, D, head, first, args.T), D,
        packed);
    load_tile<KEYS, WIDTH>(keys, key_rows(first_key), D, packed);
    cp_async_commit();
    if (args.rope.table) { // each warp rotates its own queries, and writes them to rotated_q for backward
        cp_async_wait<0>();
        __syncthreads();
        rotate_rows<WARP_QUERIES, WIDTH>(queries + own * STRIDE, args.rope.table, cached + first + own,
                                         args.T - first - own, D, packed, 1.0f);
        store_tile<WARP_QUERIES, WIDTH>(strided_rows<T>(args.rope.rotated_q, args.q_batch_stride,
                                                        args.q_stride, D, head, first + own, args.T),
                                        queries + own * STRIDE, D, packed);
    }
    mma_c out[M][WIDTH / 8] = {};
    online_softmax rows[M][2];
    for (int m = 0; m < M; m++)
        rows[m][0] = rows[m][1] = {-INFINITY, 0};
    for (int key = first_key; key < n_keys; key += KEYS) {
        mma_c scores[M][KEYS / 8];
        cp_async_wait<0>();
        __syncthreads(); // the keys have arrived, and all threads have read the previous values
        load_tile<KEYS, WIDTH>(values, value_rows(key), D, packed);
        cp_async_commit();
        bool sees = key < n_own_keys && (!BOUNDED || key + KEYS > first_own_key);
        if (sees)
            multiply_rows<WIDTH, M, KEYS>(scores, queries + own * STRIDE, keys);
        cp_async_wait<0>();
        __syncthreads(); // the values have arrived, and all threads have read the keys
        if (key + KEYS < n_keys)
            load_tile<KEYS, WIDTH>(keys, key_rows(key + KEYS), D, packed);
        cp_async_commit();
        if (sees) {
            int n_visible = cached + first + own + 1 - key;
            if (n_visible < KEYS)
                mask_after(scores, n_visible);
            if (starts.hide(first + own + WARP_QUERIES - 1, key))
                hide_keys(scores, starts, first + own, key, HIDDEN_SCORE);
            apply_softmax<WIDTH>(scores, rows, out, log2_scale);
            add_rows<WIDTH, M, KEYS>(out, scores, values);
        }
    }

    finish<WIDTH>(out, rows, args, first + own);
    put_rows<WIDTH, M>(queries + own * STRIDE, out, 1);
    store_tile<WARP_QUERIES, WIDTH>(dense_rows<T>(args.out, args.H, D, head, first + own, args.T),
                                    queries + own * STRIDE, D, packed);
}

// Rotates the keys and, unless the attention kernel does that itself, the queries. Rotates nothing if the
// call has no table of angles.
//   out   [out] the attention_forward call to make afterwards
enum status rotate(struct stream *stream, const struct attention_forward_args *args,
                   struct attention_forward_args *out) {
    struct rope_forward_args calls[ATTENTION_ROPE_CALLS];
    int n_calls = 1;
    *out = attention_of_rotated(args);
    if (cuda_attention_rotates(&args->rope, args->kernel, args->type, args->D)) {
        calls[0] = attention_rope_keys(args);
        out->q = args->q;
        out->rope = args->rope;
    } else {
        n_calls = attention_rope_forward(args, calls);
    }
    for (int i = 0; i < n_calls; i++)
        TRY(cuda_rope_forward(stream, &calls[i]));
    return STATUS_OK;
}

} // namespace

extern "C" enum status cuda_attention_forward(struct stream *stream,
                                              const struct attention_forward_args *whole) {
    int D = whole->D;
    bool by_cudnn;
    struct attention_forward_args rotated;
    const struct attention_forward_args *args = &rotated;
    TRY(rotate(stream, whole, &rotated));
    TRY(cuda_cudnn_forward(stream, args, &by_cudnn));
    if (by_cudnn)
        return STATUS_OK;
    TRY(attention_check_width(D));
    bool packed = is_aligned(args->out) && is_aligned(args->q) && is_aligned(args->k) &&
                  is_aligned(args->v) &&
                  (!args->rope.table || (is_aligned(args->rope.table) && is_aligned(args->rope.rotated_q))) &&
                  attention_is_packed(D, args->q_stride, args->q_batch_stride, args->type) &&
                  attention_is_packed(D, args->k_stride, args->k_batch_stride, args->type) &&
                  attention_is_packed(D, args->v_stride, args->v_batch_stride, args->type);
    if (cuda_attends_on_cores(args->type, D))
        return attention_forward_on_cores(stream, args, packed);
    return with_type_and_width(args->type, D, [=](auto type, auto width) {
        using T = decltype(type);
        constexpr int WIDTH = decltype(width)::value;
        return with_or_without_bound(args, args->S, [=](auto bound) {
            constexpr bool BOUNDED = decltype(bound)::value;
            return LAUNCH(stream, (forward<T, WIDTH, BOUNDED>),
                          dim3(ceil_divide(args->T, forward_tiles<WIDTH>::QUERIES), args->H, args->B),
                          dim3(ATTENTION_THREADS), forward_tiles<WIDTH>::SHARED_ELEMENTS * sizeof(T), *args,
                          attention_log2_scale(D), packed);
        });
    });
}
