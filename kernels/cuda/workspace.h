// Formulas for the workspace of the CUDA backend's operations, and for the number of their launches. The
// operations also use them to divide their workspace into buffers. The planning device (cuda_device_plan)
// uses them without a GPU or CUDA in the build. Plain C, so that every build has them.
#ifndef ZERO_KERNELS_CUDA_WORKSPACE_H
#define ZERO_KERNELS_CUDA_WORKSPACE_H

#include "kernels/attention.h"

#define CUDA_WARP                32
#define CUDA_WORKSPACE_ALIGNMENT 256 // bytes: alignment of each buffer in a call's workspace

// What the formulas depend on. They do not depend on a GPU's number of multiprocessors, since that would let
// it decide the order of sums.
struct cuda_properties {
    size_t max_product_workspace; // bytes: the limit for one matrix product
};
// Returns the bytes of workspace that NVIDIA recommends for cuBLAS, by major compute capability.
static inline size_t cuda_max_product_workspace(int capability_major) {
    return (size_t)(capability_major >= 9 ? 32 : 4) << 20;
}

// Bytes of workspace for an m x n product. The size may decide which algorithms cuBLASLt offers, and so the
// bits of the result. Therefore it depends on m, n and the GPU model only. It never shrinks as m or n grow.
size_t cuda_product_workspace(const struct cuda_properties *properties, int64_t m, int64_t n);

// Maximum head dimension D of attention's tensor-core kernels.
#define CUDA_ATTENTION_TENSOR_WIDTH 128
// True if attention with heads of D elements runs on CUDA cores: fp32 (without TF32), and heads too wide
// for the tensor-core kernels.
static inline bool cuda_attends_on_cores(enum dtype type, int D) {
    return type == DTYPE_F32 || D > CUDA_ATTENTION_TENSOR_WIDTH;
}

// True if rotary embedding is fused into attention's tensor-core kernels. Forward then rotates queries as
// it loads them; backward rotates the gradients of queries and keys back as it stores them. Keys are
// rotated by a separate launch beforehand, since forward loads each key once per tile of queries.
static inline bool cuda_attention_rotates(const struct attention_rope *rope, enum attention_kernel kernel,
                                          enum dtype type, int D) {
    return rope->table && !rope->norm && kernel == ATTENTION_FLASH && !cuda_attends_on_cores(type, D);
}

// embedding_backward: block b of CUDA_TOKEN_OWNERS blocks finds the occurrences in the batch of all tokens
// with token % CUDA_TOKEN_OWNERS == b. The workspace holds:
// - the number of distinct tokens of each block, and these tokens
// - CUDA_OCCURRENCE_BYTES per token of the vocabulary
// - for each of the batch's N tokens, the index of another occurrence of the same token
#define CUDA_TOKEN_OWNERS     32
#define CUDA_OCCURRENCE_BYTES 16

// How layernorm_backward and rmsnorm_backward divide N rows of C elements among thread blocks, with
// accesses of `width` elements. Each block has n_sums * C floats of workspace for its sums (dweight and
// dbias: n_sums is 2; dweight alone: 1). Of every NORM_GROUP blocks, the last to finish adds up the sums of
// its group. The last of these blocks adds up the groups' sums. Ticket counters (CUDA_TICKETS) tell a block
// whether it is last. The number of blocks decides the order of the sums, so its maximum is a constant: about
// as many as a data-center GPU runs at once, at two per multiprocessor.
#define NORM_BLOCKS           256
#define NORM_GROUP            16
#define NORM_SHARED_BYTES     ((size_t)40 << 10) // maximum per block; an SM of any GPU fits two such blocks
#define NORM_BACKWARD_THREADS 512                // maximum number of threads per block
struct norm_division {
    int row_threads, rows; // threads per row; rows that a block processes at a time
    int blocks;
    bool staged; // a block sums in shared memory, otherwise in the workspace
};
struct norm_division norm_backward_divide(int N, int C, int n_sums, int width);

// rope_backward with gradients of the norm's weights: each block has 2 * D floats of workspace for its
// sums. The sums of at most NORM_BLOCKS blocks are added up in groups, as described above struct
// norm_division.
#define CUDA_ROPE_THREADS 256
#define CUDA_ROPE_BLOCKS  3   // minimum resident blocks per multiprocessor, for the launch bounds
#define CUDA_ROPE_WIDTH   256 // maximum head dimension D
int cuda_rope_backward_blocks(const struct rope_backward_args *args);

// mix_backward runs one thread block per MIX_BLOCK elements. A block's two sums take CUDA_MIX_SUMS_BYTES.
#define CUDA_MIX_SUMS_BYTES 8
static inline int cuda_mix_blocks(const struct mix_backward_args *args) {
    return (int)((args->n + MIX_BLOCK - 1) / MIX_BLOCK);
}

// Counters per stream in device memory, zero between kernels. A kernel's blocks increment them to find out
// which block is the last to finish.
#define CUDA_TICKETS 64

// If cuBLASLt cannot compute the epilogue, linear_forward computes the product, then applies the epilogue
// in a second kernel. An fp32 `out` itself holds the product meanwhile. Otherwise the workspace holds it,
// linear_rows_at_a_time rows at a time.
static inline bool linear_sums_in_out(const struct linear_forward_args *args) {
    return args->out_type == DTYPE_F32;
}
int linear_rows_at_a_time(const struct linear_forward_args *args);
// If cuBLASLt cannot compute the bias gradient, linear_backward sums each column of dout over
// LINEAR_SUMMED_ROWS rows at a time, then adds these partial sums. linear_partial_sums is their number per
// column.
#define LINEAR_SUMMED_ROWS 256
int linear_partial_sums(const struct linear_backward_args *args);
// How a linear layer's call divides its workspace: into the workspace of its products, which run one after
// another and share it, and a buffer of sums (0 bytes: none).
struct linear_scratch {
    size_t product_bytes, sums_bytes;
};
struct linear_scratch linear_forward_scratch(const struct cuda_properties *properties,
                                             const struct linear_forward_args *args);
struct linear_scratch linear_backward_scratch(const struct cuda_properties *properties,
                                              const struct linear_backward_args *args);

// sample: bytes per logit in each of the two buffers of its sort.
#define CUDA_CANDIDATE_BYTES 8

// Returns the number of launches that ops->launches reports for a call. by_cudnn: true if cuDNN computes the
// call, an attention operation.
int cuda_launches(enum operation operation, const void *args, bool by_cudnn);

// Returns the bytes of workspace that a call needs, without cuDNN's; 0 for operations without workspace.
size_t cuda_workspace_bytes(const struct cuda_properties *properties, enum operation operation,
                            const void *args);

#endif
