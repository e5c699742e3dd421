// Matrix products by cuBLASLt: 16-bit operands on tensor cores, fp32 operands without TF32, and sums in fp32.
// The table lists the products and the other kernels of a call, by its arguments. The first matching row
// applies:
//
//   linear_forward
//     squared ReLU with pre_activation       a product into pre_activation, then relu_squared_forward
//     GELU with an fp32 result, squared      sums in fp32, some rows at a time, then linear.cu's epilogue
//     ReLU, unaligned bias or pre_activation
//     the rest: bias, residual, GELU         one product, with cuBLASLt's epilogue; where cuBLASLt does not
//                                            offer that, as in the previous row
//   linear_backward
//     dx, with GELU in 16 bits               a product with DGELU
//     dx, with another activation            a product, then gelu_backward or relu_squared_backward
//     dx without an activation; dweight      a product
//     dbias with dweight                     dweight's product (BGRADB); add_partial_sums if it accumulates
//     dbias alone, or unaligned              column_sums, add_partial_sums
//   matrix_product
//     in strips (symmetric)                  a product for each strip, mirrored by matrix.cu
//     the rest                               one product for the batch, or one per matrix if batching
//                                            would change bits
//
// A plan is made once per problem and kept until the device is closed. Terms are cuBLASLt's (column-major,
// D = alpha op(A) op(B) + beta C, then an epilogue); linear.cu and matrix_product.cu map row-major tensors
// to them. matmul.cu explains how an algorithm is chosen, and why the choice changes no bit.
#ifndef ZERO_KERNELS_CUDA_MATMUL_CUH
#define ZERO_KERNELS_CUDA_MATMUL_CUH

#include "kernels/cuda/cublaslt/cublaslt.cuh"

enum matmul_addend {
    MATMUL_ADDS_NOTHING,
    MATMUL_ADDS_C, // C is a separate matrix
    MATMUL_ADDS_D, // C is D: the product accumulates
};

// A problem: everything that the choice of an algorithm may depend on. Compared as bytes, so every byte must
// be set: initialize with {}. Strides are cuBLASLt's leading dimensions, in elements.
struct matmul {
    int64_t m, n, k; // D is m x n
    int64_t a_stride, b_stride, c_stride, d_stride;
    int64_t aux_stride;                                     // of `aux`, if the epilogue uses it
    int64_t n_matrices;                                     // 1: no batch
    int64_t a_distance, b_distance, c_distance, d_distance; // between matrices, in elements; 0: no batch
    int32_t transpose_a, transpose_b;                       // if set, A is stored as k x m, B as n x k
    int32_t type;                                           // of A and B: enum dtype
    int32_t c_type, d_type;                                 // c_type = d_type without MATMUL_ADDS_C
    int32_t bias_type, aux_type;                            // = d_type if the epilogue does not use them
    int32_t epilogue;                                       // cublasLtEpilogue_t
    int32_t addend;                                         // enum matmul_addend
    int32_t alignment; // bytes: the lowest of A, B, C, D and their strides, at most MATMUL_ALIGNMENT
};
static_assert(sizeof(matmul) == 13 * sizeof(int64_t) + 10 * sizeof(int32_t), "no padding: compared as bytes");

struct matmul_operands {
    const void *a, *b, *c;     // c: with MATMUL_ADDS_C only
    float alpha = 1, beta = 1; // alpha scales the product, beta the addend
    void *d;
    void *bias; // read; with BGRADB, written
    void *aux;  // GELU's argument: read with DGELU, written with GELU_AUX
};

// matmul_has_bias and matmul_has_aux: true if the epilogue reads or writes the tensor `bias` or `aux`.
// matmul_writes_bias and matmul_writes_aux: true if it writes the tensor.
static inline bool matmul_has_bias(const matmul &problem) {
    return problem.epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADB);
}
static inline bool matmul_has_aux(const matmul &problem) {
    return (problem.epilogue & CUBLASLT_EPILOGUE_GELU_AUX) == CUBLASLT_EPILOGUE_GELU_AUX ||
           problem.epilogue == CUBLASLT_EPILOGUE_DGELU;
}
static inline bool matmul_writes_bias(const matmul &problem) {
    return problem.epilogue == CUBLASLT_EPILOGUE_BGRADB;
}
static inline bool matmul_writes_aux(const matmul &problem) {
    return matmul_has_aux(problem) && problem.epilogue != CUBLASLT_EPILOGUE_DGELU;
}

// Returns `alignment` (bytes, a power of two), lowered to the alignment of the pointer and the stride. The
// first call passes MATMUL_ALIGNMENT.
constexpr int MATMUL_ALIGNMENT = 16; // more would gain nothing, and could differ between ZeRO stages
static inline int matmul_alignment(int alignment, const void *pointer, int64_t stride, enum dtype type) {
    uintptr_t bits = reinterpret_cast<uintptr_t>(pointer) | static_cast<uintptr_t>(stride) * dtype_size(type);
    while (bits % static_cast<uintptr_t>(alignment))
        alignment /= 2;
    return alignment;
}

// Returns a problem without an epilogue. Its alignment is MATMUL_ALIGNMENT, which matmul_align then lowers.
static inline matmul matmul_of(int m, int n, int k, enum dtype type, enum dtype d_type) {
    matmul problem = {};
    problem.m = m;
    problem.n = n;
    problem.k = k;
    problem.n_matrices = 1;
    problem.type = type;
    problem.c_type = problem.d_type = problem.bias_type = problem.aux_type = d_type;
    problem.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    problem.alignment = MATMUL_ALIGNMENT;
    return problem;
}

static inline void matmul_align(matmul *problem, const void *pointer, int64_t stride, int32_t type) {
    problem->alignment = matmul_alignment(problem->alignment, pointer, stride, static_cast<enum dtype>(type));
}

// Finds or makes the plan of a problem.
//   measure     time the candidate algorithms of a large problem, in memory that is freed before the call
//               returns. Allowed only before the first step. If false, or if that memory cannot be
//               allocated, the first candidate of cuBLASLt's heuristic is used; its bits are the same.
//   supported   [out] whether cuBLASLt offers this product with this epilogue and, for a batch, whether
//               each matrix gets the same bits as without a batch
enum status matmul_find(struct device *device, const matmul &problem, bool measure,
                        bool *supported) MUST_CHECK;

// Issues the product, in stream order.
//   workspace   cuda_product_workspace bytes, aligned to 256
// Errors: STATUS_UNSUPPORTED if cuBLASLt does not offer the product.
enum status matmul_run(struct stream *stream, const matmul &problem, const matmul_operands &operands,
                       void *workspace) MUST_CHECK;

// Divides scratch memory into buffers. Each take() returns the next one, aligned to
// CUDA_WORKSPACE_ALIGNMENT. With base NULL, take() returns NULL, and only `used` is counted.
struct scratch_layout {
    char *base;
    size_t used;

    void *take(size_t bytes) {
        void *at = base ? base + used : nullptr;
        used += (bytes + CUDA_WORKSPACE_ALIGNMENT - 1) / CUDA_WORKSPACE_ALIGNMENT * CUDA_WORKSPACE_ALIGNMENT;
        return at;
    }
};

#endif
