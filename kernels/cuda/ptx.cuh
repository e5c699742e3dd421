// Instructions without a CUDA C++ name: tensor-core products, the loads that feed them, asynchronous copies
// from global to shared memory, and stores that are never split. The only file with inline PTX (sm_80 and
// later). tests/cudasim/include/kernels/cuda/ptx.cuh implements the same functions for the simulator. Lane
// layouts and rules are from NVIDIA's "Parallel Thread Execution ISA": mma.m16n8k16 with floating point type,
// ldmatrix, cp.async.
//
// All 32 lanes of a warp execute mma and ldmatrix together (.sync.aligned): never call them in a branch that
// some lanes do not take, or after some lanes have returned.
#ifndef ZERO_KERNELS_CUDA_PTX_CUH
#define ZERO_KERNELS_CUDA_PTX_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

// One lane's fragments of a warp's matrices. With group = lane / 4 and place = lane % 4, the two 16-bit
// elements of a register (low half first) and the floats are
//   A, 16 x 16:  x[0]  row group      columns 2 place, 2 place + 1      x[2]  the same row, columns + 8
//                x[1]  row group + 8  the same columns                  x[3]  row group + 8, columns + 8
//   B, 16 x 8:   x[0]  rows 2 place, 2 place + 1, column group          x[1]  rows + 8, the same column
//   C, 16 x 8:   x[0], x[1]  row group, columns 2 place, 2 place + 1    x[2], x[3]  row group + 8
// So two adjacent Cs, rounded to 16 bits and packed in pairs, have the layout of an A: the result of one
// product can be an operand of the next without shuffles.
struct mma_a {
    uint32_t x[4];
};

struct mma_b {
    uint32_t x[2];
};

struct mma_c {
    float x[4];
};

// d += a b. T is the element type of a and b: __nv_bfloat16 or __half. Products are exact and sums are in
// fp32. Their order and rounding are the hardware's: the same from run to run on one GPU model, but different
// on another model and in the simulator.
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

// Converts a generic pointer to PTX's address within shared memory.
__device__ __forceinline__ uint32_t shared_address(const void *shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Loads four 8 x 8 matrices of 16-bit elements from shared memory.
//   row   16-byte aligned address of one row (16 bytes): lanes 0-7 give the rows of matrix 0, lanes 8-15
//         those of matrix 1, and so on
//   r[i]  [out] elements 2 (lane % 4) and 2 (lane % 4) + 1 of row lane / 4 of matrix i; in the transposed
//         form, of column lane / 4
// For a fragment of A, pass as matrices 0 to 3 of a row-major tile: rows 0-7 and 8-15 of columns 0-7, then
// rows 0-7 and 8-15 of columns 8-15. r is then mma_a::x.
// For two fragments of B, pass rows 0-7 and 8-15 of the first, then rows 0-7 and 8-15 of the second. Use
// ldmatrix_x4 if the elements of each column of B are contiguous, ldmatrix_x4_transposed if those of each
// row are.
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

// Starts an asynchronous copy of 16 bytes from global to shared memory, both 16-byte aligned. When !valid it
// writes zeros and does not read `global`, which must still be aligned. The bytes are visible to this thread
// after a cp_async_wait that covers their group, and to the block's other threads after a barrier that
// follows the wait. Until then, do not access the destination or write the source.
__device__ __forceinline__ void cp_async_16(void *shared, const void *global, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(shared)), "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0)
                 : "memory");
}

// Commits the copies that this thread started since its last commit as one group, which may be empty.
__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" : : : "memory");
}

// Waits until all groups of this thread have arrived, except for at most the N committed last.
template <int N> __device__ __forceinline__ void cp_async_wait() {
    static_assert(N >= 0, "a number of groups");
    asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}

// Stores 16 bytes in one access that the compiler cannot split. `to` may be in global or shared memory and
// must be aligned to 16 bytes.
__device__ __forceinline__ void store_words(void *to, uint4 words) {
    asm volatile("st.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(to), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
                 : "memory");
}

// 2^x with a relative error of at most 2^-22, in one instruction (exp2f takes five). Subnormal results are 0,
// and so is 2^-INFINITY.
__device__ __forceinline__ float exp2_approximate(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / x with an error of at most one unit in the last place, in one instruction (a division takes ten).
// Subnormal arguments and results count as 0.
__device__ __forceinline__ float reciprocal_approximate(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The block's dynamic shared memory (shared_bytes of the launch), aligned to 128 bytes.
template <class T> __device__ __forceinline__ T *dynamic_shared() {
    static_assert(alignof(T) <= 128, "dynamic shared memory is aligned to 128 bytes");
    extern __shared__ __align__(128) unsigned char dynamic_shared_bytes[];
    return reinterpret_cast<T *>(dynamic_shared_bytes);
}

#endif
