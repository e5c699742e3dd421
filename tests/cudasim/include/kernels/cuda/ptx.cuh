// The simulator's version of kernels/cuda/ptx.cuh, which it replaces on the include path: the same functions,
// as C++ over cudasim.h. Their contracts are there.
//
// Within those contracts it differs from a GPU as follows. mma adds over k in ascending order and rounds each
// addition to float. cp.async copies as late as allowed, in the cp_async_wait that covers it, and reads its
// source then; until then all bits of the destination are set (a NaN in every floating type), so a kernel
// that reads too early sees neither the old nor the new contents.
#ifndef ZERO_KERNELS_CUDA_PTX_CUH
#define ZERO_KERNELS_CUDA_PTX_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <float.h>
#include <math.h>
#include <stdint.h>

#include "cudasim.h"

struct mma_a {
    uint32_t x[4];
};

struct mma_b {
    uint32_t x[2];
};

struct mma_c {
    float x[4];
};

template <class T> void mma_m16n8k16(mma_c &d, const mma_a &a, const mma_b &b);
template <> void mma_m16n8k16<__nv_bfloat16>(mma_c &d, const mma_a &a, const mma_b &b);
template <> void mma_m16n8k16<__half>(mma_c &d, const mma_a &a, const mma_b &b);

void ldmatrix_x4(uint32_t (&r)[4], const void *row);
void ldmatrix_x4_transposed(uint32_t (&r)[4], const void *row);

void cp_async_16(void *shared, const void *global, bool valid);
void cp_async_commit();

namespace cudasim {
void cp_async_wait(size_t n_groups_left);
}

template <int N> inline void cp_async_wait() {
    static_assert(N >= 0, "a number of groups");
    cudasim::cp_async_wait(N);
}

inline void store_words(void *to, uint4 words) {
    *static_cast<uint4 *>(to) = words;
}

inline float exp2_approximate(float x) {
    float y = exp2f(x);
    return y < FLT_MIN ? 0 : y; // a NaN stays
}

inline float reciprocal_approximate(float x) {
    float y = 1 / (std::fabs(x) < FLT_MIN ? std::copysign(0.0f, x) : x);
    return std::fabs(y) < FLT_MIN ? std::copysign(0.0f, y) : y; // a NaN stays
}

template <class T> inline T *dynamic_shared() {
    static_assert(alignof(T) <= 128, "dynamic shared memory is aligned to 128 bytes");
    return static_cast<T *>(cudasim::dynamic_shared_memory());
}

#endif
