// Internal to the CUDA backend: its device, and the launchers of its operations, one for each in
// kernels/ops.h.
#ifndef ZERO_KERNELS_CUDA_CUDA_H
#define ZERO_KERNELS_CUDA_CUDA_H

#include "kernels/cuda/workspace.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "kernels/symmetric.h"

struct matmuls;      // matmul.cuh: cuBLASLt and the plans of products
struct cudnns;       // cudnn/device.cu: cuDNN and the plans of attention
struct cuda_tickets; // common.cuh: the tickets of each open stream

struct cuda_device {
    struct device device; // first: this backend's struct device * points to a cuda_device
    int index;            // of the GPU
    struct cuda_properties properties;
    struct matmuls *matmuls;
    struct cuda_tickets *tickets;
    struct cudnns *cudnns; // NULL until cudnn_support is first called
};

#define CUDA_PROTOTYPE(name)                                                                                 \
    enum status cuda_##name(struct stream *stream, const struct name##_args *args) MUST_CHECK;
OPERATIONS(CUDA_PROTOTYPE)
#undef CUDA_PROTOTYPE

// sum_squares of n_matrices of n elements, `distance` apart.
//   partial   [w] (n_matrices, ceil(n / SUM_SQUARES_BLOCK))
enum status cuda_sum_squares_of(struct stream *stream, double *partial, const void *x, size_t n,
                                int n_matrices, size_t distance, enum dtype type) MUST_CHECK;
enum status cuda_mirror(struct stream *stream, const struct mirror_args *args) MUST_CHECK;

// Plan (and, for large products, measure) the matrix products of a call. ops->workspace_bytes calls them, so
// plans exist before the first step.
enum status cuda_matrix_product_prepare(struct device *device,
                                        const struct matrix_product_args *args) MUST_CHECK;
enum status cuda_linear_forward_prepare(struct device *device,
                                        const struct linear_forward_args *args) MUST_CHECK;
enum status cuda_linear_backward_prepare(struct device *device,
                                         const struct linear_backward_args *args) MUST_CHECK;

enum status matmuls_new(struct matmuls **out) MUST_CHECK; // for the current GPU
void matmuls_delete(struct matmuls *matmuls);

// Attention by cuDNN (cudnn/device.cu), where device->attention is ATTENTION_CUDNN.
enum status cuda_cudnn_support(struct device *device, const struct attention_shape *shape,
                               struct cudnn_support *out) MUST_CHECK;
// Raises *bytes to the workspace that cuDNN wants for the call.
void cuda_cudnn_workspace(struct device *device, enum operation operation, const void *args, size_t *bytes);
// Whether cuDNN computes the call, in a workspace of that size.
bool cuda_cudnn_computes(struct device *device, enum operation operation, const void *args);
// Issues the call to cuDNN, or leaves *issued false where it is flash's: another attention, a shape that
// cuDNN does not compute, or more workspace than the stream has.
enum status cuda_cudnn_forward(struct stream *stream, const struct attention_forward_args *args,
                               bool *issued) MUST_CHECK;
enum status cuda_cudnn_backward(struct stream *stream, const struct attention_backward_args *args,
                                bool *issued) MUST_CHECK;
void cudnns_delete(struct cudnns *cudnns); // NULL is a no-op

#endif
