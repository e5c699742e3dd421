// Attention of one new position per sequence (kernels/ops.h: attention_decode). Each key and value is read
// once, by one query, so memory bandwidth is the limit and tensor cores have no use. A block takes one head
// of one sequence, whose length it reads itself: one launch serves any mix of lengths. Groups of lanes take
// the positions in turn, each with an online softmax of its own; at the end these are combined, in a fixed
// order.
#include <float.h>

#include "kernels/cuda/attention.cuh"

namespace {

constexpr int THREADS = 256;
constexpr int IN_FLIGHT = 4; // positions that a group loads before it uses the first
static_assert(THREADS >= ATTENTION_WIDTH, "a thread for each column of a head");

// How a group holds a row of WIDTH elements, padded with zeros: each lane PACKS times 16 bytes.
template <class T, int WIDTH> struct groups {
    static constexpr int SIZE = pack<T>::size;
    static constexpr int LANES = WIDTH / SIZE < WARP ? WIDTH / SIZE : WARP;
    static constexpr int PACKS = WIDTH / SIZE / LANES;
    static constexpr int N = THREADS / LANES;

    // Of the first element in one of the lane's packs.
    static __device__ __forceinline__ int column(int i) {
        return (i * LANES + static_cast<int>(threadIdx.x) % LANES) * SIZE;
    }

    struct row {
        pack<T> packs[PACKS];
    };

    // `valid` false: zeros. packed: 16-byte accesses are possible.
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

// The group's products of weights and values, and its softmax.
template <class T, int WIDTH> struct partial_sums {
    using shape = groups<T, WIDTH>;
    online_softmax softmax;
    float out[shape::PACKS][shape::SIZE];

    // Positions that do not exist have a score of minus infinity and values of 0.
    __device__ __forceinline__ void add(float (&scores)[IN_FLIGHT],
                                        const typename shape::row (&values)[IN_FLIGHT], float scale) {
        auto score = [&](int i) -> float & { return scores[i]; };
        float factor = add_scores<IN_FLIGHT, 1>(softmax, score, scale, [](float x) { return expf(x); });
#pragma unroll
        for (int i = 0; i < shape::PACKS; i++)
#pragma unroll
            for (int k = 0; k < shape::SIZE; k++) {
                float sum = out[i][k] * factor;
#pragma unroll
                for (int u = 0; u < IN_FLIGHT; u++)
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

// Combines the groups' sums, each relative to its own shift, and writes the head's D elements.
template <class T, int WIDTH>
__device__ __forceinline__ void combine(T *to, const partial_sums<T, WIDTH> &own, int D) {
    using shape = groups<T, WIDTH>;
    __shared__ float sums[shape::N][WIDTH];
    __shared__ online_softmax softmaxes[shape::N];
    int thread = static_cast<int>(threadIdx.x), group = thread / shape::LANES;
#pragma unroll
    for (int i = 0; i < shape::PACKS; i++)
#pragma unroll
        for (int k = 0; k < shape::SIZE; k++)
            sums[group][shape::column(i) + k] = own.out[i][k];
    if (thread % shape::LANES == 0)
        softmaxes[group] = own.softmax;
    __syncthreads();
    if (thread >= D)
        return;
    float shift = -FLT_MAX, weight = 0, out = 0;
    for (int g = 0; g < shape::N; g++)
        shift = fmaxf(shift, softmaxes[g].shift);
    for (int g = 0; g < shape::N; g++) {
        float factor = expf(softmaxes[g].shift - shift);
        weight = fmaf(softmaxes[g].sum, factor, weight);
        out = fmaf(sums[g][thread], factor, out);
    }
    to[thread] = downcast<T>(out / weight);
}

template <class T, int WIDTH>
__global__ void __launch_bounds__(THREADS)
    attention_decode(const attention_decode_args args, float scale, bool packed) {
    using shape = groups<T, WIDTH>;
    int D = args.D, thread = static_cast<int>(threadIdx.x), group = thread / shape::LANES;
    size_t head = static_cast<size_t>(blockIdx.x) * D, b = blockIdx.y;
    int length = args.lengths[b];
    size_t cache = static_cast<size_t>(args.sequences[b]) * args.cache_batch_stride + head;
    T *keys = static_cast<T *>(args.keys) + cache, *values = static_cast<T *>(args.values) + cache;
    const T *new_key = static_cast<const T *>(args.k) + b * args.q_stride + head;
    const T *new_value = static_cast<const T *>(args.v) + b * args.q_stride + head;
    // The new position is written for later calls and read from k and v, so that nothing waits for it.
    if (thread < D) {
        keys[length * args.cache_stride + thread] = new_key[thread];
        values[length * args.cache_stride + thread] = new_value[thread];
    }
    const typename shape::row query =
        shape::load(static_cast<const T *>(args.q) + b * args.q_stride + head, D, true, packed);
    partial_sums<T, WIDTH> own = {};
    own.softmax = {-FLT_MAX, 0}; // below every score, but finite: a group may see no position
    for (int first = 0; first <= length; first += shape::N * IN_FLIGHT) {
        typename shape::row key[IN_FLIGHT], value[IN_FLIGHT];
        float scores[IN_FLIGHT];
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++) {
            int position = first + u * shape::N + group;
            size_t at = position * args.cache_stride;
            bool valid = position <= length;
            key[u] = shape::load(position < length ? keys + at : new_key, D, valid, packed);
            value[u] = shape::load(position < length ? values + at : new_value, D, valid, packed);
        }
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++) {
            float product = dot<T, WIDTH>(query, key[u]);
            scores[u] = first + u * shape::N + group <= length ? product : -INFINITY;
        }
        own.add(scores, value, scale);
    }
    combine<T, WIDTH>(static_cast<T *>(args.out) + b * gridDim.x * D + head, own, D);
}

template <int WIDTH> struct head_width { static constexpr int value = WIDTH; };

// Calls f(head_width<WIDTH>()) for the narrowest kernel that supports the heads.
template <class F> enum status with_width(int D, F f) {
    return D <= 64 ? f(head_width<64>()) : D <= 128 ? f(head_width<128>()) : f(head_width<ATTENTION_WIDTH>());
}

} // namespace

extern "C" enum status cuda_attention_decode(struct stream *stream,
                                             const struct attention_decode_args *args) {
    int D = args->D;
    TRY(attention_check_width(D));
    bool packed = is_aligned(args->keys) && is_aligned(args->values) && is_aligned(args->q) &&
                  is_aligned(args->k) && is_aligned(args->v) &&
                  attention_is_packed(D, args->q_stride, 0, args->type) &&
                  attention_is_packed(D, args->cache_stride, args->cache_batch_stride, args->type);
    return with_type(args->type, [=](auto zero) {
        using T = decltype(zero);
        return with_width(D, [=](auto width) {
            constexpr int WIDTH = decltype(width)::value;
            return LAUNCH(stream, (attention_decode<T, WIDTH>), dim3(args->H, args->B), THREADS, 0, *args,
                          attention_scale(D), packed);
        });
    });
}
