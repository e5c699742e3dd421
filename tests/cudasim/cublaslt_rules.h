// The simulated cuBLASLt's rules for a product: whether descriptions and layouts fit together.
#ifndef CUDASIM_CUBLASLT_RULES_H
#define CUDASIM_CUBLASLT_RULES_H

#include <string>

#include "tests/cudasim/cublaslt.h"

struct cublasLtMatmulDescOpaque_t {
    cublasComputeType_t compute_type;
    cudaDataType_t scale_type;
    int32_t transpose_a, transpose_b;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t aux_stride;
    int32_t bias_type, aux_type; // -1: D's type
};

struct cublasLtMatrixLayoutOpaque_t {
    cudaDataType_t type;
    int64_t rows, columns, stride;
    int32_t n_matrices;
    int64_t distance; // between matrices
};

namespace cudasim {

struct answer {
    cublasStatus_t status;
    std::string fault; // the text of a finding; "": none, since the caller may try another request
};

struct layouts {
    cublasLtMatrixLayout_t a, b, c, d;
};

//   s, batch   [out] the product, if the answer is CUBLAS_STATUS_SUCCESS
answer examine(const cublasLtMatmulDescOpaque_t &desc, const layouts &l, matmul_shape *s,
               matmul_batch *batch);

} // namespace cudasim

#endif
