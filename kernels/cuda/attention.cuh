// What attention's kernels share: which rows a block works on, and the entry points of the kernels for CUDA
// cores and for tensor cores, between which attention_forward.cu and attention_backward.cu choose. Grids are
// (tiles, H, B): a head's blocks run close together in time and find its keys and values in the cache. Tiles
// count down from the last, whose rows see (forward) the most keys: a grid's end is then made of small work.
#ifndef ZERO_KERNELS_CUDA_ATTENTION_CUH
#define ZERO_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/common.cuh"

// The widest heads of the kernels for tensor cores, and of those for CUDA cores.
constexpr int ATTENTION_TENSOR_WIDTH = 128;
constexpr int ATTENTION_WIDTH = 256;

// One head's rows of a tensor, from some position on: n rows of D elements, `stride` apart.
template <class T> struct attention_rows {
    T *x;
    size_t stride;
    int n;
};

// The rows of block's head and batch from `position` on, of n_positions, in q, k, v or their gradients.
// Pointer is void * or const void *.
template <class T, class Pointer>
__device__ inline attention_rows<T> strided_rows(Pointer tensor, size_t batch_stride, size_t stride, int D,
                                                 int position, int n_positions) {
    return {static_cast<T *>(tensor) + blockIdx.z * batch_stride + position * stride +
                static_cast<size_t>(blockIdx.y) * D,
            stride, n_positions - position};
}

// Likewise in out or dout: (B, T, H * D), dense.
template <class T, class Pointer>
__device__ inline attention_rows<T> dense_rows(Pointer tensor, int D, int position, int T_positions) {
    size_t stride = static_cast<size_t>(gridDim.y) * D;
    return strided_rows<T>(tensor, T_positions * stride, stride, D, position, T_positions);
}

// Where the block's head begins in lse and delta, (B, H, T).
__device__ inline size_t statistics_at(int T_positions) {
    return (static_cast<size_t>(blockIdx.z) * gridDim.y + blockIdx.y) * T_positions;
}

__device__ inline int tile_counted_down() {
    return static_cast<int>(gridDim.x - 1 - blockIdx.x);
}

static inline enum status attention_check_width(int D) {
    if (D > ATTENTION_WIDTH)
        return FAIL(STATUS_UNSUPPORTED,
                    "device \"cuda\": attention heads of %d elements are too wide, at most %d can be had; "
                    "use more heads (n_head) or device=cpu",
                    D, ATTENTION_WIDTH);
    return STATUS_OK;
}

static inline float attention_scale(int D) {
    return static_cast<float>(1 / sqrt(static_cast<double>(D)));
}

// Whether rows of D elements, strides apart, can be read and written 16 bytes at a time.
static inline bool attention_is_packed(int D, size_t stride, size_t batch_stride, enum dtype type) {
    size_t pack = 16 / dtype_size(type);
    return D % pack == 0 && stride % pack == 0 && batch_stride % pack == 0;
}

// The same contracts as cuda_attention_forward and _backward. `packed`: 16-byte accesses are possible in
// every tensor. delta: (B, H, T), the dot product of each row of dout with its row of out.
enum status attention_forward_on_cores(struct stream *stream, const struct attention_forward_args *args,
                                       bool packed) MUST_CHECK;
enum status attention_backward_on_cores(struct stream *stream, const struct attention_backward_args *args,
                                        const float *delta, bool packed) MUST_CHECK;

#endif
