// Matrix products by cuBLASLt: plans found once for each problem and kept as long as the device, and their
// running. In cuBLASLt's own words (column-major, D = op(A) op(B) + C, then an epilogue); linear.cu maps
// row-major tensors to them. matmul.cu says how an algorithm is chosen, and why that changes no bit.
#ifndef ZERO_KERNELS_CUDA_MATMUL_CUH
#define ZERO_KERNELS_CUDA_MATMUL_CUH

#include "kernels/cuda/cublaslt.cuh"

enum matmul_addend {
    MATMUL_ADDS_NOTHING,
    MATMUL_ADDS_C, // a matrix of its own
    MATMUL_ADDS_D, // what D holds already
};

// A problem: whatever the choice of an algorithm may depend on. Compared as bytes, so all of it must be set:
// begin with {}. Strides are cuBLASLt's leading dimensions, in elements.
struct matmul {
    int64_t m, n, k; // D is m x n
    int64_t a_stride, b_stride, c_stride, d_stride;
    int64_t aux_stride;               // of what GELU is applied to, with an epilogue that has it
    int32_t transpose_a, transpose_b; // whether A is stored k x m, B n x k
    int32_t type;                     // of A and B: enum dtype
    int32_t c_type, d_type;           // C as D where there is none
    int32_t bias_type, aux_type;      // as D where there is none
    int32_t epilogue;                 // cublasLtEpilogue_t
    int32_t addend;                   // enum matmul_addend
    int32_t alignment;                // bytes: of A, B, C and D and their strides; matmul_alignment
};
static_assert(sizeof(matmul) == 8 * sizeof(int64_t) + 10 * sizeof(int32_t), "no padding: compared as bytes");

struct matmul_operands {
    const void *a, *b, *c; // c: with MATMUL_ADDS_C
    void *d;
    void *bias; // read or, with BGRADB, written
    void *aux;  // likewise with DGELU and GELU_AUX
};

// What an epilogue reads or writes beside D.
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

// The alignment in bytes that pointers and strides have in common. `alignment` begins at MATMUL_ALIGNMENT.
constexpr int MATMUL_ALIGNMENT = 16; // more gains nothing, and could differ from one ZeRO stage to another
static inline int matmul_alignment(int alignment, const void *pointer, int64_t stride, enum dtype type) {
    uintptr_t bits = reinterpret_cast<uintptr_t>(pointer) | static_cast<uintptr_t>(stride) * dtype_size(type);
    while (bits % static_cast<uintptr_t>(alignment))
        alignment /= 2;
    return alignment;
}

// Whether cuBLASLt has this product with this epilogue. The answer and the algorithm are kept. With
// `measure`, algorithms of a large problem are measured, in memory taken for that long and given back: before
// the first step. Without, or when there is no memory for it, the algorithm that cuBLASLt names first is
// taken; its bits are the same.
enum status matmul_find(struct device *device, const matmul &problem, bool measure,
                        bool *supported) MUST_CHECK;

// Asks cuBLASLt for the product, in stream order. workspace: cuda_product_workspace, aligned to 256 bytes.
// STATUS_UNSUPPORTED when cuBLASLt does not have it.
enum status matmul_run(struct stream *stream, const matmul &problem, const matmul_operands &operands,
                       void *workspace) MUST_CHECK;

// ---- within matmul*.cu

struct matmul_plan {
    matmul problem;
    matmul_plan *next;
    bool supported;
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t a, b, c, d;
    cublasLtMatmulAlgo_t algorithm;
};

struct matmuls {
    cublaslt lt;
    cublasLtHandle_t handle;
    matmul_plan *plans;
};

// Asks for the product with an algorithm of the caller's.
enum status matmul_enqueue(struct stream *stream, matmul_plan *plan, const cublasLtMatmulAlgo_t &algorithm,
                           const matmul_operands &operands, void *workspace) MUST_CHECK;

constexpr int MATMUL_CANDIDATES = 8;

// *chosen: the fastest of the candidates, at most MATMUL_CANDIDATES, that give the same bits as the first.
enum status matmul_measure(struct device *device, matmul_plan *plan, const cublasLtMatmulAlgo_t *candidates,
                           int n_candidates, int *chosen) MUST_CHECK;

// Pieces of scratch, one after the other, each aligned. With base NULL they are only counted.
struct pieces {
    char *base;
    size_t used;

    void *take(size_t bytes) {
        void *piece = base ? base + used : nullptr;
        used += (bytes + CUDA_WORKSPACE_ALIGNMENT - 1) / CUDA_WORKSPACE_ALIGNMENT * CUDA_WORKSPACE_ALIGNMENT;
        return piece;
    }
};

#endif
