// Matrix products of any size and type for the linear layers, cut into a part for each thread and these into
// blocks that stay in the cache: each block's operands are upcast where they must be, multiplied
// by oneDNN (product.h) in fp32 sums, and finished (bias, residual, GELU, rounding) before the next. How a
// product is cut depends on its shape and the number of threads alone.
#ifndef ZERO_KERNELS_CPU_MATMUL_H
#define ZERO_KERNELS_CPU_MATMUL_H

#include "kernels/cpu/cpu.h"

struct matmul_operand {
    const void *data;
    int64_t row, column; // strides in elements; one of them is 1
};

// out (m, n) = finish(a b), with a (m, k) and b (k, n) of `type`: see struct linear_epilogue_args for what
// the pointers mean; those that are NULL are left out. A weight's gradient is fp32 and not finished; its sums
// are over the rows of a batch, and with accumulate they are added to what is there.
struct matmul {
    int64_t m, n, k;
    struct matmul_operand a, b;
    void *out;
    int64_t out_stride; // of out, pre_gelu, residual and gelu_input
    void *pre_gelu;
    const void *residual, *gelu_input, *bias;
    bool gelu, weight_gradient, accumulate;
    enum dtype type, out_type; // out_type: type, or fp32
};

// Scratch is taken from the stream's workspace; *bytes is raised to what matmul_run will take of it.
enum status matmul_workspace(struct device *device, const struct matmul *matmul, size_t *bytes) MUST_CHECK;
enum status matmul_run(struct stream *stream, const struct matmul *matmul) MUST_CHECK;

#endif
