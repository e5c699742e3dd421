// Causal attention (kernels/ops.h: attention_forward with S == T, attention_backward) by cuDNN. It is
// expressed as graphs of matrix products, pointwise operations and reductions, which cuDNN fuses into one
// kernel (the composed form of scaled dot-product attention, supported by all versions of cuDNN 9).
#ifndef ZERO_KERNELS_CUDA_CUDNN_ATTENTION_H
#define ZERO_KERNELS_CUDA_CUDNN_ATTENTION_H

#include "base/dtype.h"
#include "kernels/attention.h"
#include "kernels/cuda/cudnn/graph.h"

// Strides of a tensor in elements: between positions and between sequences.
struct cudnn_strides {
    int64_t position, sequence;
};

// Everything that a plan depends on. Compared as bytes, so every byte must be set.
struct cudnn_problem {
    struct cudnn_strides q, k, v; // also of their gradients
    int32_t B, T, H, K, D;
    int32_t window; // 0: none, or it covers every key
    int32_t type;   // DTYPE_BF16 or DTYPE_F16
    int32_t kind;   // enum cudnn_attention_kind
};
enum cudnn_attention_kind { CUDNN_FORWARD, CUDNN_FORWARD_LSE, CUDNN_BACKWARD }; // LSE: writes lse too

// A plan and its problem. For the backward pass, the workspace of a call begins with delta_bytes of this
// project's own data: (B, H, T) fp32, row sums of dout * out.
struct cudnn_attention {
    struct cudnn_problem problem;
    struct cudnn_graph graph;
    bool supported;                      // otherwise graph.reason says why not
    size_t delta_bytes, workspace_bytes; // workspace_bytes: the total, including delta
    float scale, hidden, one;            // by-value tensors, read when the plan is executed
    int32_t window;
};

// The problem of a call, with rotated queries and keys. Returns false for calls that are never given to
// cuDNN: those not for ATTENTION_CUDNN, fp32, documents, T != S, T == 1, and tensors or rows not aligned to
// 16 bytes (NULL pointers count as aligned, since workspace_bytes passes them).
bool cudnn_forward_problem(const struct attention_forward_args *args, struct cudnn_problem *problem);
bool cudnn_backward_problem(const struct attention_backward_args *args, struct cudnn_problem *problem);
// The same for a call of any operation; false for operations other than attention.
bool cudnn_problem_of(enum operation operation, const void *args, struct cudnn_problem *problem);

// The workspace that ./train plan assumes when there is no library to ask: at least what cuDNN 9 needs. For
// the backward pass that is (B, H, T, T) 16-bit elements, with T rounded up to its tiles, and with K < H also
// the gradients of k and v per query head.
size_t cudnn_assumed_workspace(const struct cudnn_problem *problem);

// Makes the plan. If the problem is not supported, *attention can still be passed to cudnn_attention_free.
void cudnn_attention_init(struct cudnn_attention *attention, const struct cudnn *api,
                          struct cudnn_target target, const struct cudnn_problem *problem);
void cudnn_attention_free(struct cudnn_attention *attention);

// Executes a supported plan on the handle's stream; `workspace` has workspace_bytes.
enum status cudnn_attention_forward(struct cudnn_attention *attention,
                                    const struct attention_forward_args *args, void *workspace) MUST_CHECK;
enum status cudnn_attention_backward(struct cudnn_attention *attention,
                                     const struct attention_backward_args *args, void *workspace) MUST_CHECK;

#endif
