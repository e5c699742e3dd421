// Causal attention by cuDNN (kernels/ops_layers.h: attention_forward with S == T, and attention_backward).
// Each call is a graph of matrix products, pointwise operations and reductions, which cuDNN fuses. All
// versions of cuDNN 9 support this composed form of scaled dot-product attention.
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
    int32_t window; // 0 if there is none or it is at least T
    int32_t type;   // DTYPE_BF16 or DTYPE_F16
    int32_t kind;   // enum cudnn_attention_kind
};
// CUDNN_FORWARD_LSE also writes lse, for backward.
enum cudnn_attention_kind { CUDNN_FORWARD, CUDNN_FORWARD_LSE, CUDNN_BACKWARD };

// A plan and its problem. For the backward pass, the workspace of a call begins with delta, a tensor of the
// graph that cuDNN does not allocate itself: (B, H, T) fp32, the row sums of dout * out. It takes
// delta_bytes.
struct cudnn_attention {
    struct cudnn_problem problem;
    struct cudnn_graph graph;
    bool supported;                      // if false, graph.reason says why
    size_t delta_bytes, workspace_bytes; // workspace_bytes: the total, delta included
    float scale, hidden, one; // data of by-value tensors of the graph, read when the plan is executed
    int32_t window;           // likewise
};

// Sets *problem to the problem of a call, as it is once queries and keys have been rotated. Returns false
// for calls that are never given to cuDNN: those without ATTENTION_CUDNN, in fp32, with documents, with S
// != T, with T == 1, or with tensors or rows not aligned to 16 bytes. NULL pointers count as aligned, since
// ops->workspace_bytes passes them.
bool cudnn_forward_problem(const struct attention_forward_args *args, struct cudnn_problem *problem);
bool cudnn_backward_problem(const struct attention_backward_args *args, struct cudnn_problem *problem);
// Does the same for a call of any operation. Returns false for operations other than attention.
bool cudnn_problem_of(enum operation operation, const void *args, struct cudnn_problem *problem);

// Returns the bytes of workspace that ./train plan assumes if cuDNN is not there to report them. They are
// at least what cuDNN 9 needs, delta included. The backward pass needs (B, H, T, T) 16-bit elements, with T
// rounded up to a multiple of cuDNN's largest tile. With K < H, it also needs the gradients of k and v of
// every query head.
size_t cudnn_assumed_workspace(const struct cudnn_problem *problem);

// Makes the plan, and sets attention->supported. Pass *attention to cudnn_attention_free in either case.
void cudnn_attention_init(struct cudnn_attention *attention, const struct cudnn *api,
                          struct cudnn_target target, const struct cudnn_problem *problem);
void cudnn_attention_free(struct cudnn_attention *attention);

// These execute a supported plan on the handle's stream. `workspace` has workspace_bytes.
enum status cudnn_attention_forward(struct cudnn_attention *attention,
                                    const struct attention_forward_args *args, void *workspace) MUST_CHECK;
enum status cudnn_attention_backward(struct cudnn_attention *attention,
                                     const struct attention_backward_args *args, void *workspace) MUST_CHECK;

#endif
