// One product of the simulated cuBLASLt: the interface between its calls, which check it (cublaslt.cpp), and
// its arithmetic (cublaslt_product.cpp).
#ifndef CUDASIM_CUBLASLT_PRODUCT_H
#define CUDASIM_CUBLASLT_PRODUCT_H

#include <cublasLt.h>

#include "base/dtype.h"
#include "cudasim_cublaslt.h"

namespace cudasim {

// Column-major: D (m x n) = alpha op(A) op(B) + beta C, then the epilogue.
struct matmul_shape {
    int64_t m, n, k;
    int64_t a_stride, b_stride, c_stride, d_stride, aux_stride;
    int64_t transposes_a, transposes_b; // A is stored k x m, B n x k
    int64_t a_type, d_type;             // enum dtype; B has A's type; C, bias and aux have D's
    int64_t epilogue;
};

// Matrices that are multiplied in one call. In each operand, consecutive ones are this many elements apart.
struct matmul_batch {
    int64_t n = 1, a_distance = 0, b_distance = 0, c_distance = 0, d_distance = 0;
};

struct matmul_operands {
    const void *a, *b, *c;
    void *d, *bias, *aux;
    float alpha, beta;
    bool narrow; // some access has fewer than 16 bytes
};

bool epilogue_reads_bias(int64_t epilogue);
bool epilogue_has_aux(int64_t epilogue);
bool epilogue_writes_aux(int64_t epilogue);

size_t matmul_workspace(const matmul_shape &shape, int algorithm);
void multiply(const matmul_shape &shape, const matmul_batch &batch, const matmul_operands &operands,
              int algorithm, void *workspace);

} // namespace cudasim

#endif
