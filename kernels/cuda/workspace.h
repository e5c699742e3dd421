// The scratch of the CUDA backend's operations, by formula: what its launchers lay out, and what a plan
// counts where there is no GPU or no CUDA in the build (kernels/cuda/plan.c). Plain C, so that every build
// has it.
#ifndef ZERO_KERNELS_CUDA_WORKSPACE_H
#define ZERO_KERNELS_CUDA_WORKSPACE_H

#include "kernels/ops.h"

#define CUDA_WARP                32
#define CUDA_WORKSPACE_ALIGNMENT 256 // bytes, of each piece of a call's scratch

// What the formulas depend on of a GPU.
struct cuda_properties {
    int n_processors;              // streaming multiprocessors
    size_t most_product_workspace; // bytes that a matrix product is given at most
};
// What NVIDIA recommends to give cuBLAS on a GPU of this compute capability.
static inline size_t cuda_most_product_workspace(int capability_major) {
    return (size_t)(capability_major >= 9 ? 32 : 4) << 20;
}

// The scratch of an m x n product, by rule: what it is may decide which algorithms there are, so it is a
// function of the problem and the GPU alone. Not smaller for a larger product.
size_t cuda_product_workspace(const struct cuda_properties *properties, int64_t m, int64_t n);

// embedding_backward: the number of tokens that occur, those tokens, and so much of each of the vocabulary.
#define CUDA_OCCURRENCE_BYTES 12
size_t cuda_occurrences_bytes(int V);

// How layernorm_backward is divided, with accesses of `width` elements; the workspace holds 2 C floats a
// block.
#define LAYERNORM_SHARED_BYTES     ((size_t)40 << 10) // what every GPU has for two blocks at least
#define LAYERNORM_BACKWARD_THREADS 512                // at most
struct layernorm_division {
    int row_threads, rows, blocks;
    bool staged;
};
struct layernorm_division layernorm_backward_divide(const struct cuda_properties *properties,
                                                    const struct layernorm_backward_args *args, int width);

// linear_forward, where it is a product and then a pass. fp32 results hold their own sums until they are
// finished; others wait in scratch, so many rows at a time.
static inline bool linear_sums_lie_in_out(const struct linear_forward_args *args) {
    return args->out_type == DTYPE_F32;
}
int linear_rows_at_a_time(const struct linear_forward_args *args);
// linear_backward, where the bias's gradient is summed by itself: sums of so many rows, to be added up.
#define LINEAR_SUMMED_ROWS 256
int linear_partial_sums(const struct linear_backward_args *args);
// The two pieces of scratch: of the products, which run one after the other, and of sums (0: none).
struct linear_scratch {
    size_t product_bytes, sums_bytes;
};
struct linear_scratch linear_forward_scratch(const struct cuda_properties *properties,
                                             const struct linear_forward_args *args);
struct linear_scratch linear_backward_scratch(const struct cuda_properties *properties,
                                              const struct linear_backward_args *args);

// sample: what is sorted of each token.
#define CUDA_CANDIDATE_BYTES 8

// What ops->workspace_bytes answers.
size_t cuda_workspace_bytes(const struct cuda_properties *properties, enum operation operation,
                            const void *args);

#endif
