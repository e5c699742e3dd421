// Rotary position embedding of one head after an optional RMS normalization (kernels/ops_layers.h:
// rope_forward), by a group of neighbouring lanes, a power of two: each has WIDTH pairs of elements (i, i + D
// / 2) at a time. For rope_forward and for attention_decode, which rotates what it loads.
#ifndef ZERO_KERNELS_CUDA_LAYERS_ROPE_CUH
#define ZERO_KERNELS_CUDA_LAYERS_ROPE_CUH

#include "kernels/cuda/span.cuh"

// A lane's elements of a head: i and i + D / 2.
template <int WIDTH> struct pairs { floats<WIDTH> low, high; };

template <int WIDTH, class T>
__device__ inline pairs<WIDTH> load_pairs(const T *from, int i, int half_width) {
    return {load<WIDTH>(from + i), load<WIDTH>(from + half_width + i)};
}

template <int WIDTH, class T>
__device__ inline void store_pairs(T *to, int i, int half_width, const pairs<WIDTH> &value) {
    store(to + i, value.low);
    store(to + half_width + i, value.high);
}

// Turns by the angles of `table`, or back by them with `sign` -1.
template <int WIDTH>
__device__ inline pairs<WIDTH> turn(const float *table, int i, const pairs<WIDTH> &x, float sign) {
    pairs<WIDTH> out;
    for (int k = 0; k < WIDTH; k++) {
        float c = table[2 * (i + k)], s = sign * table[2 * (i + k) + 1];
        out.low.x[k] = fmaf(-s, x.high.x[k], c * x.low.x[k]);
        out.high.x[k] = fmaf(s, x.low.x[k], c * x.high.x[k]);
    }
    return out;
}

template <int WIDTH, class T>
__device__ inline void multiply_by_weight(pairs<WIDTH> &x, const T *weight, int i, int half_width) {
    if (!weight)
        return;
    pairs<WIDTH> w = load_pairs<WIDTH>(weight, i, half_width);
    for (int k = 0; k < WIDTH; k++) {
        x.low.x[k] *= w.low.x[k];
        x.high.x[k] *= w.high.x[k];
    }
}

template <int WIDTH> __device__ inline void scale(pairs<WIDTH> &x, float by) {
    for (int k = 0; k < WIDTH; k++) {
        x.low.x[k] *= by;
        x.high.x[k] *= by;
    }
}

// The sum over the group of `lanes` lanes, to each of them. All lanes of the warp call it.
__device__ inline float group_sum(float x, int lanes) {
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        x += __shfl_xor_sync(0xffffffff, x, distance);
    return x;
}

// How a head is rotated.
template <class T> struct head_rotation {
    const float *table; // (D / 2, 2) of the head's position
    const T *weight;    // (D), or NULL for ones; with norm
    float epsilon;
    bool norm;
    int half_width, lanes;
};

// Writes one head of x to `out`, which may be x itself, and returns its rstd (1 without norm). All lanes of
// the warp call it; those of a group whose head does not exist do not access it.
template <int WIDTH, class T>
__device__ inline float rotate_head(T *out, const T *x, const head_rotation<T> &head, bool exists) {
    int first = static_cast<int>(threadIdx.x) % head.lanes * WIDTH, step = head.lanes * WIDTH;
    int half_width = head.half_width;
    float rstd = 1.0f;
    if (head.norm) {
        float sum = 0.0f;
        for (int i = first; exists && i < half_width; i += step) {
            pairs<WIDTH> value = load_pairs<WIDTH>(x, i, half_width);
            for (int k = 0; k < WIDTH; k++)
                sum = fmaf(value.high.x[k], value.high.x[k], fmaf(value.low.x[k], value.low.x[k], sum));
        }
        sum = group_sum(sum, head.lanes);
        rstd = 1.0f / sqrtf(sum / static_cast<float>(2 * half_width) + head.epsilon);
    }
    for (int i = first; exists && i < half_width; i += step) {
        pairs<WIDTH> value = load_pairs<WIDTH>(x, i, half_width);
        if (head.norm) {
            scale(value, rstd);
            multiply_by_weight(value, head.weight, i, half_width);
        }
        store_pairs(out, i, half_width, turn(head.table, i, value, 1.0f));
    }
    return rstd;
}

// The smallest power of two of lanes, at most a warp, that takes the pairs in one step.
static inline int rope_lanes(int half_width, int width) {
    int lanes = 1;
    while (lanes < WARP && lanes * width < half_width)
        lanes *= 2;
    return lanes;
}

// Whether pairs can be accessed `width` elements at a time where `strides`, combined by |, are those of rows.
static inline bool rope_rows_align(int half_width, int width, size_t strides) {
    return half_width % width == 0 && strides % static_cast<size_t>(width) == 0;
}

#endif
