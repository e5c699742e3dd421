// Matrix products of the CPU backend. The table shows which code computes which product; the first matching
// row applies. "Pairs" means that bf16 is not upcast: one instruction multiplies and adds pairs of numbers.
//
//   operation, shape                          type   instruction set           computed by
//   linear_forward, N <= CPU_SKINNY_ROWS      bf16   avx512_bf16               isa/skinny_gemm.c, pairs
//                                             any    any                       the same, upcast to fp32
//   matrix_product in strips (symmetric)      bf16   avx512_bf16, amx          isa/symmetric_product.c, pairs
//                                             any    any                       the same, upcast to fp32
//   every other product                       bf16   amx                       isa/matmul.c, in AMX tiles
//                                             fp32   any                       oneDNN (onednn.c)
//                                             bf16   where device->fast_bf16   oneDNN, in bf16
//                                             fp16   where oneDNN has it       oneDNN, in fp16
//                                             bf16,  any                       oneDNN in fp32, on tiles that
//                                             fp16                             isa/matmul.c upcasts
//
// Sums are fp32 throughout, and the bits of all do not depend on the number of threads. matmul.c divides the
// products of the last rows, "every other product", among the threads: on AMX into a grid, otherwise into
// cells of the output, which depend on the product alone. isa/matmul.c applies the epilogue, unless oneDNN
// can apply all of it: in fp32 without an activation, and for weight gradients.
#ifndef ZERO_KERNELS_CPU_MATMUL_H
#define ZERO_KERNELS_CPU_MATMUL_H

#include "kernels/ops.h"

#define CPU_SKINNY_ROWS 32

// linear_forward of more than CPU_SKINNY_ROWS rows, linear_backward, and matrix_product of one matrix without
// a strip.
enum status cpu_linear_forward(struct stream *stream, const struct linear_forward_args *args) MUST_CHECK;
enum status cpu_linear_backward(struct stream *stream, const struct linear_backward_args *args) MUST_CHECK;
enum status cpu_matrix_product(struct stream *stream, const struct matrix_product_args *args) MUST_CHECK;
// Each of these sets *bytes to the workspace that a call needs.
enum status cpu_linear_forward_workspace(struct device *device, const struct linear_forward_args *args,
                                         size_t *bytes) MUST_CHECK;
enum status cpu_linear_backward_workspace(struct device *device, const struct linear_backward_args *args,
                                          size_t *bytes) MUST_CHECK;
enum status cpu_matrix_product_workspace(struct device *device, const struct matrix_product_args *args,
                                         size_t *bytes) MUST_CHECK;

#endif
