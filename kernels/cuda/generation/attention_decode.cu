// Attention of one new position per sequence (kernels/ops_layers.h: attention_decode). A block reads each
// key and value once, for all of its query heads. As these are few, the kernel is bound by memory
// bandwidth, and tensor cores would not help.
// A block takes one key-value head of one sequence, and up to MOST_QUERIES of its query heads. It reads the
// sequence's length itself, so one launch serves any mix of lengths. First it rotates its queries and the
// new key. Then groups of lanes take the positions in turn; each group has its own online softmax per query
// head. Last, the groups' sums are combined in a fixed order.
#include <float.h>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/layers/rope.cuh"

namespace {

constexpr int THREADS = 256;
constexpr int MOST_QUERIES = 8; // maximum number of query heads per block

// The number of positions that a group of lanes loads before it uses the first. It is smaller with many
// query heads, which fill the registers.
template <int QUERIES> constexpr int IN_FLIGHT = QUERIES < MOST_QUERIES ? 4 : 2;
static_assert(THREADS >= ATTENTION_WIDTH, "a thread for each column of a head");

// How a group of LANES lanes holds a row of WIDTH elements, padded with zeros from D on: each lane has
// PACKS packs of 16 bytes. A block has N groups.
template <class T, int WIDTH> struct groups {
    static constexpr int SIZE = pack<T>::size;
    static constexpr int LANES = WIDTH / SIZE < WARP ? WIDTH / SIZE : WARP;
    static constexpr int PACKS = WIDTH / SIZE / LANES;
    static constexpr int N = THREADS / LANES;

    // The column of the first element of the lane's pack i.
    static __device__ __forceinline__ int column(int i) {
        return (i * LANES + static_cast<int>(threadIdx.x) % LANES) * SIZE;
    }

    struct row {
        pack<T> packs[PACKS];
    };

    // Loads the lane's packs of a row; zeros unless `valid`. packed: 16 bytes at a time, otherwise one
    // element.
    static __device__ __forceinline__ row load(const T *from, int D, bool valid, bool packed) {
        row own = {};
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            if (packed && valid && column(i) < D)
                own.packs[i] = load_pack(from + column(i));
            for (int k = 0; k < SIZE && !packed && valid; k++)
                if (column(i) + k < D)
                    own.packs[i].x[k] = from[column(i) + k];
        }
        return own;
    }
};

// Returns the first position that the query of sequence b, at position `own`, sees.
__device__ __forceinline__ int first_seen(const attention_decode_args &args, size_t b, int own) {
    const int of_document = args.first ? args.first[b] : 0;
    return args.window > 0 ? max(own - args.window + 1, of_document) : of_document;
}

// One query head's weighted sum of values and its online softmax, over the positions that one group of
// lanes took.
template <class T, int WIDTH> struct partial_sums {
    using shape = groups<T, WIDTH>;
    online_softmax softmax;
    float out[shape::PACKS][shape::SIZE];

    // Adds N positions. Those past the sequence's end must have a score of minus infinity and values of 0.
    template <int N>
    __device__ __forceinline__ void add(float (&scores)[N], const typename shape::row (&values)[N],
                                        float scale) {
        auto score = [&](int i) -> float & { return scores[i]; };
        float factor = add_scores<N, 1>(softmax, score, scale, [](float x) { return expf(x); });
#pragma unroll
        for (int i = 0; i < shape::PACKS; i++)
#pragma unroll
            for (int k = 0; k < shape::SIZE; k++) {
                float sum = out[i][k] * factor;
#pragma unroll
                for (int u = 0; u < N; u++)
                    sum = fmaf(scores[u], upcast(values[u].packs[i].x[k]), sum);
                out[i][k] = sum;
            }
    }
};

template <class T, int WIDTH>
__device__ __forceinline__ float dot(const typename groups<T, WIDTH>::row &a,
                                     const typename groups<T, WIDTH>::row &b) {
    using shape = groups<T, WIDTH>;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < shape::PACKS; i++)
#pragma unroll
        for (int k = 0; k < shape::SIZE; k++)
            sum = fmaf(upcast(a.packs[i].x[k]), upcast(b.packs[i].x[k]), sum);
    return lanes_sum<shape::LANES>(sum);
}

// Shared memory for combining the groups' sums of one query head.
template <class T, int WIDTH> struct shared_sums {
    float out[groups<T, WIDTH>::N][WIDTH];
    online_softmax softmaxes[groups<T, WIDTH>::N];
};

// Combines the groups' sums of a query head, each of which is relative to the group's own shift, and writes
// the D elements of the output.
template <class T, int WIDTH>
__device__ __forceinline__ void combine(shared_sums<T, WIDTH> &shared, T *to,
                                        const partial_sums<T, WIDTH> &own, int D) {
    using shape = groups<T, WIDTH>;
    int thread = static_cast<int>(threadIdx.x), group = thread / shape::LANES;
#pragma unroll
    for (int i = 0; i < shape::PACKS; i++)
#pragma unroll
        for (int k = 0; k < shape::SIZE; k++)
            shared.out[group][shape::column(i) + k] = own.out[i][k];
    if (thread % shape::LANES == 0)
        shared.softmaxes[group] = own.softmax;
    __syncthreads();
    if (thread >= D)
        return;
    float shift = -FLT_MAX, weight = 0, out = 0;
    for (int g = 0; g < shape::N; g++)
        shift = fmaxf(shift, shared.softmaxes[g].shift);
    for (int g = 0; g < shape::N; g++) {
        float factor = expf(shared.softmaxes[g].shift - shift);
        weight = fmaf(shared.softmaxes[g].sum, factor, weight);
        out = fmaf(shared.out[g][thread], factor, out);
    }
    to[thread] = downcast<T>(out / weight);
}

// How rows are accessed.
struct row_access {
    bool packed;       // 16 bytes at a time, otherwise one element
    bool packed_pairs; // likewise for the halves of heads, as rotation accesses them
    int lane_bits;     // log2 of the number of lanes that rotate a head
};

// The block's new key and its queries, rotated if the call has a table. Queries from n_queries on are left
// unset.
template <class T, int WIDTH, int QUERIES> struct alignas(16) new_heads {
    T key[WIDTH], queries[QUERIES][WIDTH];

    __device__ __forceinline__ void copy(const T *from_key, const T *from_queries, int n_queries, int D) {
        for (int i = static_cast<int>(threadIdx.x); i < D; i += THREADS) {
            key[i] = from_key[i];
            for (int q = 0; q < n_queries; q++)
                queries[q][i] = from_queries[q * D + i];
        }
    }

    template <int PAIRS>
    __device__ __forceinline__ void rotate(const attention_decode_args &args, const row_access &access,
                                           int position, const T *from_key, const T *from_queries,
                                           int n_queries) {
        const head_lanes of(access.lane_bits, args.D / 2);
        const int n_groups = THREADS >> access.lane_bits;
        const float *table = static_cast<const float *>(args.rope.table);
        // Head -1 is the key. All groups of lanes make the same number of iterations, since all lanes of a
        // warp must call normalize.
        for (int first = -1; first < n_queries; first += n_groups) {
            const int head = first + static_cast<int>(of.group), query = min(head, n_queries - 1);
            const bool exists = head < n_queries;
            head_part<PAIRS> x =
                load_head<PAIRS>(head < 0 ? from_key : from_queries + query * args.D, of, exists);
            if (args.rope.norm)
                normalize(x, static_cast<const T *>(head < 0 ? args.rope.k_weight : args.rope.q_weight),
                          args.rope.epsilon, of);
            // The angles are loaded again in each iteration, then from the GPU's cache. On some GPUs,
            // registers cannot hold them across iterations.
            const head_part<PAIRS> angles = load_angles<PAIRS>(table, static_cast<unsigned>(position), of);
            if (exists)
                store_head(head < 0 ? key : queries[query], rotate_head(angles, x, 1.0f), of);
        }
    }
};

// The grid is (blocks per key-value head, key-value heads, sequences). QUERIES: query heads per block. If
// QUERIES does not divide the number of query heads of a key-value head, the head's last block has fewer.
// It fills up with copies of its first query, whose results are dropped.
//   per_group   query heads per key-value head
template <class T, int WIDTH, int QUERIES>
__global__ void __launch_bounds__(THREADS)
    attention_decode(const attention_decode_args args, int per_group, float scale, const row_access access) {
    using shape = groups<T, WIDTH>;
    constexpr int N = IN_FLIGHT<QUERIES>;
    __shared__ shared_sums<T, WIDTH> shared;
    __shared__ new_heads<T, WIDTH, QUERIES> added;
    const int D = args.D, thread = static_cast<int>(threadIdx.x), group = thread / shape::LANES;
    const int kv_head = static_cast<int>(blockIdx.y);
    const int first_query = static_cast<int>(blockIdx.x) * QUERIES; // within the key-value head's query heads
    const int n_queries = min(QUERIES, per_group - first_query);
    const size_t b = blockIdx.z, column = static_cast<size_t>(kv_head) * D;
    const size_t q_column = static_cast<size_t>(kv_head * per_group + first_query) * D;
    const int length = args.lengths[b];
    size_t cache = static_cast<size_t>(args.sequences[b]) * args.cache_batch_stride + column;
    T *keys = static_cast<T *>(args.keys) + cache, *values = static_cast<T *>(args.values) + cache;
    const T *new_key = static_cast<const T *>(args.k) + b * args.k_stride + column;
    const T *new_value = static_cast<const T *>(args.v) + b * args.v_stride + column;
    const T *new_queries = static_cast<const T *>(args.q) + b * args.q_stride + q_column;
    if (!args.rope.table)
        added.copy(new_key, new_queries, n_queries, D);
    else if (access.packed_pairs)
        added.template rotate<pack<T>::size>(args, access, length, new_key, new_queries, n_queries);
    else
        added.template rotate<1>(args, access, length, new_key, new_queries, n_queries);
    __syncthreads();
    // The new position's key and value are written to the cache for later calls. This call reads them from
    // `added` and new_value instead, so it need not wait for the write.
    if (thread < D && first_query == 0) {
        keys[length * args.cache_stride + thread] = added.key[thread];
        values[length * args.cache_stride + thread] = new_value[thread];
    }
    typename shape::row queries[QUERIES];
    partial_sums<T, WIDTH> own[QUERIES] = {};
#pragma unroll
    for (int q = 0; q < QUERIES; q++) {
        queries[q] = shape::load(added.queries[q < n_queries ? q : 0], D, true, access.packed);
        own[q].softmax = {-FLT_MAX, 0}; // finite, so that a group without positions adds 0
    }
    for (int first = first_seen(args, b, length); first <= length; first += shape::N * N) {
        typename shape::row key[N], value[N];
#pragma unroll
        for (int u = 0; u < N; u++) {
            int position = first + u * shape::N + group;
            size_t at = position * args.cache_stride;
            bool valid = position <= length;
            key[u] = shape::load(position < length ? keys + at : added.key, D, valid, access.packed);
            value[u] = shape::load(position < length ? values + at : new_value, D, valid, access.packed);
        }
#pragma unroll
        for (int q = 0; q < QUERIES; q++) {
            float scores[N];
#pragma unroll
            for (int u = 0; u < N; u++) {
                float product = dot<T, WIDTH>(queries[q], key[u]);
                scores[u] = first + u * shape::N + group <= length ? product : -INFINITY;
            }
            own[q].add(scores, value, scale);
        }
    }
    T *out = static_cast<T *>(args.out) + b * args.H * D + q_column;
#pragma unroll
    for (int q = 0; q < QUERIES; q++) {
        if (q > 0)
            __syncthreads(); // all threads have read the sums of the previous query
        if (q < n_queries)
            combine(shared, out + q * D, own[q], D);
    }
}

template <int WIDTH> struct head_width { static constexpr int value = WIDTH; };

// Calls f(head_width<WIDTH>()) for the narrowest kernel that supports heads of D elements.
template <class F> enum status with_width(int D, F f) {
    return D <= 64 ? f(head_width<64>()) : D <= 128 ? f(head_width<128>()) : f(head_width<ATTENTION_WIDTH>());
}

template <int QUERIES> struct query_heads { static constexpr int value = QUERIES; };

// Calls f(query_heads<QUERIES>()) for the smallest QUERIES that is at least per_group, the query heads per
// key-value head; for MOST_QUERIES if none is.
template <class F> enum status with_queries(int per_group, F f) {
    return per_group == 1   ? f(query_heads<1>())
           : per_group <= 2 ? f(query_heads<2>())
           : per_group <= 4 ? f(query_heads<4>())
                            : f(query_heads<MOST_QUERIES>());
}

} // namespace

extern "C" enum status cuda_attention_decode(struct stream *stream,
                                             const struct attention_decode_args *args) {
    int D = args->D;
    TRY(attention_check_width(D));
    bool packed = is_aligned(args->keys) && is_aligned(args->values) && is_aligned(args->q) &&
                  is_aligned(args->k) && is_aligned(args->v) &&
                  attention_is_packed(D, args->q_stride, 0, args->type) &&
                  attention_is_packed(D, args->k_stride, 0, args->type) &&
                  attention_is_packed(D, args->v_stride, 0, args->type) &&
                  attention_is_packed(D, args->cache_stride, args->cache_batch_stride, args->type);
    return with_type(args->type, [=](auto zero) {
        using T = decltype(zero);
        const bool packed_pairs = packed && D / 2 % pack<T>::size == 0 && is_aligned(args->rope.table) &&
                                  is_aligned(args->rope.q_weight) && is_aligned(args->rope.k_weight);
        const row_access access = {packed, packed_pairs,
                                   rope_lane_bits(D / 2, packed_pairs ? pack<T>::size : 1)};
        return with_width(D, [=](auto width) {
            constexpr int WIDTH = decltype(width)::value;
            return with_queries(args->H / args->K, [=](auto queries) {
                constexpr int QUERIES = decltype(queries)::value;
                const int per_group = args->H / args->K;
                return LAUNCH(stream, (attention_decode<T, WIDTH, QUERIES>),
                              dim3(ceil_divide(per_group, QUERIES), args->K, args->B), THREADS, 0, *args,
                              per_group, attention_scale(D), access);
            });
        });
    });
}
