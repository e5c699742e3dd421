// Shared by the forward kernels of norms: the number of threads per row, and sums over them.
#ifndef ZERO_KERNELS_CUDA_LAYERS_NORM_CUH
#define ZERO_KERNELS_CUDA_LAYERS_NORM_CUH

#include <type_traits>

#include "kernels/cuda/span.cuh"

constexpr int NORM_FORWARD_THREADS = 256;
constexpr size_t NORM_WARP_ROW_BYTES = 4096; // one warp per row up to this size, one block above it

// Returns the sum of x over the GROUP threads of a row: a warp, or the whole block.
template <int GROUP> __device__ inline float group_sum(float x, float *scratch) {
    if constexpr (GROUP == WARP)
        return warp_sum(x);
    else
        return block_sum<GROUP>(x, scratch);
}

// Calls f(width, group), two integral constants: elements per access and threads per row, for rows of C
// elements of T. aligned: all pointers allow 16-byte accesses.
template <class T, class F> enum status with_norm_threads(int C, bool aligned, F f) {
    constexpr int width = widest_access<T>();
    using wide = std::integral_constant<int, width>;
    using single = std::integral_constant<int, 1>;
    using block = std::integral_constant<int, NORM_FORWARD_THREADS>;
    using warp = std::integral_constant<int, WARP>;
    bool is_wide = aligned && C % width == 0;
    if (static_cast<size_t>(C) * sizeof(T) > NORM_WARP_ROW_BYTES)
        return is_wide ? f(wide(), block()) : f(single(), block());
    return is_wide ? f(wide(), warp()) : f(single(), warp());
}

#endif
