// The instructions that CUDA C++ has no words for: tensor-core products, the loads that feed them, and copies
// from global to shared memory that pass no registers. The only file with inline PTX (sm_80 and later).
// tests/cudasim/include/kernels/cuda/ptx.cuh gives the same functions to the simulator; a kernel sees no
// difference. Lane layouts and rules are those of NVIDIA's "Parallel Thread Execution ISA": mma.m16n8k16 with
// floating point type, ldmatrix, cp.async.
//
// mma and ldmatrix are executed by all 32 lanes of a warp together (.sync.aligned): never in a branch that
// some lanes do not take, never after some of them have returned.
#ifndef ZERO_KERNELS_CUDA_PTX_CUH
#define ZERO_KERNELS_CUDA_PTX_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

// A warp's matrices, in pieces of one lane. With group = lane / 4 and place = lane % 4, the two 16-bit
// elements of a register (the low half first) and the floats are
//   A, 16 x 16:  x[0]  row group      columns 2 place, 2 place + 1      x[2]  the same row, columns + 8
//                x[1]  row group + 8  the same columns                  x[3]  row group + 8, columns + 8
//   B, 16 x 8:   x[0]  rows 2 place, 2 place + 1, column group          x[1]  rows + 8, the same column
//   C, 16 x 8:   x[0], x[1]  row group, columns 2 place, 2 place + 1    x[2], x[3]  row group + 8
// So C, rounded to 16 bits and packed, has the layout of one half of an A: products chain without shuffles.
struct mma_a {
    uint32_t x[4];
};

struct mma_b {
    uint32_t x[2];
};

struct mma_c {
    float x[4];
};

// d += a b. T is the type of a's and b's elements, __nv_bfloat16 or __half. Products are exact and sums in
// fp32, but the order of the sums and how each is rounded is the hardware's own: equal from run to run on one
// kind of GPU, not equal to another's or to the simulator's.
template <class T> __device__ void mma_m16n8k16(mma_c &d, const mma_a &a, const mma_b &b);

template <>
__device__ __forceinline__ void mma_m16n8k16<__nv_bfloat16>(mma_c &d, const mma_a &a, const mma_b &b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d.x[0]), "+f"(d.x[1]), "+f"(d.x[2]), "+f"(d.x[3])
                 : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
}

template <> __device__ __forceinline__ void mma_m16n8k16<__half>(mma_c &d, const mma_a &a, const mma_b &b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d.x[0]), "+f"(d.x[1]), "+f"(d.x[2]), "+f"(d.x[3])
                 : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
}

// Where a generic pointer into shared memory lies within it, which is how PTX addresses it.
__device__ __forceinline__ uint32_t shared_address(const void *shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Loads four 8 x 8 matrices of 16-bit elements from shared memory. `row` is the address of one row of 16
// bytes, 16-byte aligned: lanes 0-7 give the rows of matrix 0, lanes 8-15 those of matrix 1, and so on. Each
// lane receives in r[i] the elements 2 (lane % 4) and 2 (lane % 4) + 1 of row lane / 4 of matrix i; in the
// transposed form, of its column lane / 4. For a row-major A the matrices are, in order, rows 0-7 and rows
// 8-15 of columns 0-7, then both of columns 8-15: r is then a fragment of A. For B, two matrices are rows 0-7
// and 8-15: by the plain form where a column's elements lie together, by the transposed where a row's do.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_transposed(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Begins to copy 16 bytes from global to shared memory, both 16-byte aligned; zeros when !valid: `global` is
// then not read, but stays aligned. The bytes are there, for this thread alone, after a cp_async_wait that
// covers their group; for the block's others, after a barrier that follows that wait. Until then the
// destination may not be touched, nor the source written.
__device__ __forceinline__ void cp_async_16(void *shared, const void *global, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(shared)), "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0)
                 : "memory");
}

// The copies that this thread began since the last commit are one group (which may be empty).
__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" : : : "memory");
}

// Waits until at most N groups of this thread, the youngest, are still under way.
template <int N> __device__ __forceinline__ void cp_async_wait() {
    static_assert(N >= 0, "a number of groups");
    asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}

// 2^x, off by 2^-22 of itself at most: one instruction, where exp2f is five. What is not a normal number
// comes out as 0; 2^-INFINITY is 0.
__device__ __forceinline__ float exp2_approximate(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The block's dynamic shared memory (the launch's shared_bytes), aligned to 128 bytes.
template <class T> __device__ __forceinline__ T *dynamic_shared() {
    static_assert(alignof(T) <= 128, "dynamic shared memory is aligned to 128 bytes");
    extern __shared__ __align__(128) unsigned char dynamic_shared_bytes[];
    return reinterpret_cast<T *>(dynamic_shared_bytes);
}

#endif
