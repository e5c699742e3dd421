// Rotary position embedding of a head after an optional RMS normalization (kernels/ops_layers.h:
// rope_forward). A group of adjacent lanes, a power of two, holds the head in registers. Used by
// rope_forward, rope_backward and attention_decode, which rotates the heads that it loads. Attention's
// tensor-core kernels rotate pairs in their tiles instead (attention_tensor.cuh: rotate_rows).
#ifndef ZERO_KERNELS_CUDA_LAYERS_ROPE_CUH
#define ZERO_KERNELS_CUDA_LAYERS_ROPE_CUH

#include "kernels/cuda/span.cuh"

// Describes which elements of a head a lane holds. A group of 2^bits lanes holds a head. In each step, a
// lane holds WIDTH adjacent pairs (i, i + D / 2), beginning with i = first(step). half_width is D / 2.
struct head_lanes {
    int bits, half_width; // groups have 2^bits lanes
    unsigned group, lane;

    __device__ head_lanes(int bits_, int half_width_)
        : bits(bits_), half_width(half_width_), group(threadIdx.x >> bits_),
          lane(threadIdx.x & ((1u << bits_) - 1)) {}

    template <int WIDTH> __device__ int first(int step) const {
        return ((step << bits) + static_cast<int>(lane)) * WIDTH;
    }
    template <int WIDTH> __device__ bool has(int step) const {
        return first<WIDTH>(step) < half_width;
    }
};

template <int WIDTH> constexpr int ROPE_STEPS = (CUDA_ROPE_WIDTH / 2 + WARP * WIDTH - 1) / (WARP * WIDTH);

// What a lane holds of a head. low: elements i; high: elements i + D / 2. For angles, low: the cosine of
// each pair's angle; high: its sine.
template <int WIDTH> struct head_part { floats<WIDTH> low[ROPE_STEPS<WIDTH>], high[ROPE_STEPS<WIDTH>]; };

// Loads a lane's elements of a head; zeros if the head does not exist.
template <int WIDTH, class T>
__device__ inline head_part<WIDTH> load_head(const T *from, const head_lanes &of, bool exists) {
    head_part<WIDTH> x = {};
#pragma unroll
    for (int step = 0; step < ROPE_STEPS<WIDTH>; step++)
        if (exists && of.has<WIDTH>(step)) {
            x.low[step] = load<WIDTH>(from + of.first<WIDTH>(step));
            x.high[step] = load<WIDTH>(from + of.half_width + of.first<WIDTH>(step));
        }
    return x;
}

template <int WIDTH, class T>
__device__ inline void store_head(T *to, const head_part<WIDTH> &x, const head_lanes &of) {
#pragma unroll
    for (int step = 0; step < ROPE_STEPS<WIDTH>; step++)
        if (of.has<WIDTH>(step)) {
            store_whole(to + of.first<WIDTH>(step), x.low[step]);
            store_whole(to + of.half_width + of.first<WIDTH>(step), x.high[step]);
        }
}

// Loads the cosines and sines of WIDTH pairs, which alternate in the table, 16 bytes at a time. Loading them
// one by one would take longer than loading the head.
template <int WIDTH>
__device__ inline void load_pair_angles(const float *table, floats<WIDTH> &cosines, floats<WIDTH> &sines) {
    constexpr int at_once = WIDTH > 1 ? 4 : 1;
    for (int i = 0; i < 2 * WIDTH; i += at_once) {
        const floats<at_once> some = load<at_once>(table + i);
        for (int j = 0; j < at_once; j++)
            ((i + j) % 2 == 0 ? cosines : sines).x[(i + j) / 2] = some.x[j];
    }
}

// Loads the cosines and sines of a lane's pairs from row `position` of the table, (P, D / 2, 2).
template <int WIDTH>
__device__ inline head_part<WIDTH> load_angles(const float *table, unsigned position, const head_lanes &of) {
    table += static_cast<size_t>(position) * 2 * static_cast<size_t>(of.half_width);
    head_part<WIDTH> angles = {};
#pragma unroll
    for (int step = 0; step < ROPE_STEPS<WIDTH>; step++)
        if (of.has<WIDTH>(step))
            load_pair_angles(table + 2 * of.first<WIDTH>(step), angles.low[step], angles.high[step]);
    return angles;
}

// Rotates pairs by their angles; `sign` -1 rotates back.
template <int WIDTH>
__device__ inline void rotate_pairs(floats<WIDTH> &low, floats<WIDTH> &high, const floats<WIDTH> &cosines,
                                    const floats<WIDTH> &sines, float sign) {
    for (int k = 0; k < WIDTH; k++) {
        const float c = cosines.x[k], s = sign * sines.x[k], x = low.x[k], y = high.x[k];
        low.x[k] = fmaf(-s, y, c * x);
        high.x[k] = fmaf(s, x, c * y);
    }
}

template <int WIDTH>
__device__ inline head_part<WIDTH> rotate_head(const head_part<WIDTH> &angles, head_part<WIDTH> x,
                                               float sign) {
    for (int step = 0; step < ROPE_STEPS<WIDTH>; step++)
        rotate_pairs(x.low[step], x.high[step], angles.low[step], angles.high[step], sign);
    return x;
}

template <int WIDTH, class T>
__device__ inline void multiply_by_weight(head_part<WIDTH> &x, const T *weight, const head_lanes &of) {
    if (!weight)
        return;
    head_part<WIDTH> w = load_head<WIDTH>(weight, of, true);
    for (int step = 0; step < ROPE_STEPS<WIDTH>; step++)
        for (int k = 0; k < WIDTH; k++) {
            x.low[step].x[k] *= w.low[step].x[k];
            x.high[step].x[k] *= w.high[step].x[k];
        }
}

template <int WIDTH> __device__ inline void scale(head_part<WIDTH> &x, float by) {
    for (int step = 0; step < ROPE_STEPS<WIDTH>; step++)
        for (int k = 0; k < WIDTH; k++) {
            x.low[step].x[k] *= by;
            x.high[step].x[k] *= by;
        }
}

// The dot product of two heads, returned to each lane of the group. All lanes of the warp must call it.
template <int WIDTH>
__device__ inline float head_dot(const head_part<WIDTH> &x, const head_part<WIDTH> &y, const head_lanes &of) {
    float sum = 0.0f;
    for (int step = 0; step < ROPE_STEPS<WIDTH>; step++)
        for (int k = 0; k < WIDTH; k++)
            sum = fmaf(x.high[step].x[k], y.high[step].x[k], fmaf(x.low[step].x[k], y.low[step].x[k], sum));
    for (int distance = 1 << of.bits >> 1; distance > 0; distance >>= 1)
        sum += __shfl_xor_sync(0xffffffff, sum, distance);
    return sum;
}

// Normalizes the head and returns its rstd. All lanes of the warp must call it.
//   weight    [r] (D), or NULL for ones
template <int WIDTH, class T>
__device__ inline float normalize(head_part<WIDTH> &x, const T *weight, float epsilon, const head_lanes &of) {
    float rstd = 1.0f / sqrtf(head_dot(x, x, of) / static_cast<float>(2 * of.half_width) + epsilon);
    scale(x, rstd);
    multiply_by_weight(x, weight, of);
    return rstd;
}

// log2 of the number of lanes in a group: the fewest that hold all half_width pairs of a head in one step,
// with `width` pairs per lane. A group has at most WARP lanes; wider heads take several steps.
static inline int rope_lane_bits(int half_width, int width) {
    int bits = 0;
    while ((1 << bits) < WARP && (width << bits) < half_width)
        bits++;
    return bits;
}

// True if pairs can be accessed `width` elements at a time. strides: the row strides, combined by |.
static inline bool rope_rows_align(int half_width, int width, size_t strides) {
    return half_width % width == 0 && strides % static_cast<size_t>(width) == 0;
}

#endif
