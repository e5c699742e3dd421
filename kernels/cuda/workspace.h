// Formulas for the scratch of the CUDA backend's operations, and for the number of their launches. Launchers
// use them to divide the workspace. The planning device (cuda_device_plan) uses them without a GPU or CUDA in
// the build. Plain C, so that every build has them.
#ifndef ZERO_KERNELS_CUDA_WORKSPACE_H
#define ZERO_KERNELS_CUDA_WORKSPACE_H

#include "kernels/attention.h"

#define CUDA_WARP                32
#define CUDA_WORKSPACE_ALIGNMENT 256 // bytes, of each buffer in a call's scratch

// The properties of a GPU that the formulas depend on.
struct cuda_properties {
    int n_processors;             // streaming multiprocessors
    size_t max_product_workspace; // bytes: the limit for one matrix product
};
// The workspace NVIDIA recommends for cuBLAS, in bytes, by compute capability.
static inline size_t cuda_max_product_workspace(int capability_major) {
    return (size_t)(capability_major >= 9 ? 32 : 4) << 20;
}

// Bytes of workspace for an m x n product. The size may decide which algorithms cuBLASLt offers, so it
// depends on the problem and the GPU model only. It never shrinks as m or n grow.
size_t cuda_product_workspace(const struct cuda_properties *properties, int64_t m, int64_t n);

// The widest heads, in elements, of attention's kernels for tensor cores.
#define CUDA_ATTENTION_TENSOR_WIDTH 128
// True if attention's CUDA-core kernels support heads of D elements.
static inline bool cuda_attends_on_cores(enum dtype type, int D) {
    return type == DTYPE_F32 || D > CUDA_ATTENTION_TENSOR_WIDTH;
}

// True if attention's tensor-core kernels rotate queries as they load them, and rotate the gradients of
// queries and keys back as they store them. A separate launch rotates the keys once beforehand, since each
// tile of queries loads them again.
static inline bool cuda_attention_rotates(const struct attention_rope *rope, enum attention_kernel kernel,
                                          enum dtype type, int D) {
    return rope->table && !rope->norm && kernel == ATTENTION_FLASH && !cuda_attends_on_cores(type, D);
}

// embedding_backward: each of CUDA_TOKEN_OWNERS blocks finds the occurrences of the tokens that are equal to
// its number modulo CUDA_TOKEN_OWNERS. The workspace holds the number of distinct tokens of each block, these
// tokens, CUDA_OCCURRENCE_BYTES per token of the vocabulary, and for each of N places another place of the
// same token.
#define CUDA_TOKEN_OWNERS     32
#define CUDA_OCCURRENCE_BYTES 16

// How layernorm_backward and rmsnorm_backward are divided into blocks, with accesses of `width` elements.
// Their workspace is n_sums C floats per block. Of every NORM_GROUP blocks, the last to finish adds up their
// sums; the last of these blocks adds up the rest. Ticket counters (CUDA_TICKETS) tell a block whether it is
// last.
#define NORM_GROUP            16
#define NORM_SHARED_BYTES     ((size_t)40 << 10) // fits twice on a processor of every GPU
#define NORM_BACKWARD_THREADS 512                // at most
struct norm_division {
    int row_threads, rows; // per block: threads per row, and rows at a time
    int blocks;
    bool staged; // sums are in shared memory, otherwise in the workspace
};
struct norm_division norm_backward_divide(const struct cuda_properties *properties, int N, int C, int n_sums,
                                          int width);

// rope_backward with norm: each block has 2 D floats of workspace for the gradients of the weights, which are
// added up as in norms.
#define CUDA_ROPE_THREADS 256
#define CUDA_ROPE_BLOCKS  3   // resident blocks per multiprocessor
#define CUDA_ROPE_WIDTH   256 // elements of the widest heads
int cuda_rope_backward_blocks(const struct cuda_properties *properties,
                              const struct rope_backward_args *args);

// mix_backward: one thread block per MIX_BLOCK elements, and the bytes of its two sums.
#define CUDA_MIX_SUMS_BYTES 8
static inline int cuda_mix_blocks(const struct mix_backward_args *args) {
    return (int)((args->n + MIX_BLOCK - 1) / MIX_BLOCK);
}

// Counters per stream in device memory, zero between kernels. A kernel's blocks increment them to find out
// which block is the last to finish.
#define CUDA_TICKETS 64

// linear_forward without a fused epilogue: a product, then a kernel that applies the epilogue. The product is
// stored to `out` itself if that is fp32, otherwise to scratch, linear_rows_at_a_time rows at a time.
static inline bool linear_sums_in_out(const struct linear_forward_args *args) {
    return args->out_type == DTYPE_F32;
}
int linear_rows_at_a_time(const struct linear_forward_args *args);
// linear_backward without a fused bias gradient: the number of partial sums, each of LINEAR_SUMMED_ROWS rows.
#define LINEAR_SUMMED_ROWS 256
int linear_partial_sums(const struct linear_backward_args *args);
// The two scratch buffers of a linear layer's call: the workspace of its products, which run one after
// another, and the buffer of sums (0 bytes: none).
struct linear_scratch {
    size_t product_bytes, sums_bytes;
};
struct linear_scratch linear_forward_scratch(const struct cuda_properties *properties,
                                             const struct linear_forward_args *args);
struct linear_scratch linear_backward_scratch(const struct cuda_properties *properties,
                                              const struct linear_backward_args *args);

// sample: bytes per token that is sorted.
#define CUDA_CANDIDATE_BYTES 8

// The number of launches that ops->launches reports.
int cuda_launches(enum operation operation, const void *args, bool by_cudnn);

// The bytes that ops->workspace_bytes reports for a call (0 for operations without scratch).
size_t cuda_workspace_bytes(const struct cuda_properties *properties, enum operation operation,
                            const void *args);

#endif
