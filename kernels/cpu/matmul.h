// Matrix products of any size and type for the linear layers. The output is divided among the threads, and
// each thread computes its rows and columns in tiles that fit in the cache. For each tile:
//   1. upcast the operands where needed, or copy those that oneDNN reads slowly
//   2. multiply with oneDNN (product.h), with sums in fp32
//   3. apply the epilogue: bias, residual, GELU, rounding, rotation of heads
// Products of bf16 on matrix units are our own (matmul_units.h).
// How a product is divided among the threads depends on its shape and the number of threads only.
#ifndef ZERO_KERNELS_CPU_MATMUL_H
#define ZERO_KERNELS_CPU_MATMUL_H

#include "kernels/cpu/cpu.h"

struct matmul_operand {
    const void *data;
    int64_t row, column; // strides in elements; one of them is 1
};

// out (m, n) = epilogue(alpha a b), with a (m, k) and b (k, n) of `type`. struct linear_epilogue_args
// explains the pointers; NULL leaves a term out, and beta is the residual's factor. weight_gradient: out is
// fp32, there is no epilogue, and k counts the rows of a batch; with accumulate (beta = 1) the product is
// added to out. rope: of the rows of out (qkv_forward), or NULL.
struct tiled_matmul {
    int64_t m, n, k;
    struct matmul_operand a, b;
    void *out;
    int64_t out_stride; // between rows of out, pre_activation, residual and activation_input
    void *pre_activation;
    const void *residual, *activation_input, *bias;
    float alpha, beta;
    enum activation activation; // of out, or with activation_input its derivative
    bool weight_gradient, accumulate;
    bool is_cached;            // a and b were used recently, whatever their size
    enum dtype type, out_type; // out_type: type, or fp32
    const struct rope_forward_args *rope;
    int64_t row, column; // where a part's out begins in that of the whole
};

// Raises *bytes to the workspace that tiled_matmul_run needs for this product.
enum status tiled_matmul_workspace(struct device *device, const struct tiled_matmul *matmul,
                                   size_t *bytes) MUST_CHECK;
enum status tiled_matmul_run(struct stream *stream, const struct tiled_matmul *matmul) MUST_CHECK;
// False if a thread's share of a product with rotation, in whole heads, would be larger than without.
bool tiled_matmul_rotates_evenly(const struct device *device, const struct tiled_matmul *matmul);

#endif
