// The inside of the CUDA backend: its device, and the launchers of its operations, one for each in
// kernels/ops.h.
#ifndef ZERO_KERNELS_CUDA_CUDA_H
#define ZERO_KERNELS_CUDA_CUDA_H

#include "kernels/device.h"
#include "kernels/ops.h"

struct matmuls; // matmul.cu: cuBLASLt and the algorithms that were chosen

struct cuda_device {
    struct device device; // first: a struct device * of this backend is one of these
    int index;            // of the GPU
    int n_processors;     // streaming multiprocessors
    struct matmuls *matmuls;
};

#define CUDA_PROTOTYPE(name)                                                                                 \
    enum status cuda_##name(struct stream *stream, const struct name##_args *args) MUST_CHECK;
OPERATIONS(CUDA_PROTOTYPE)
#undef CUDA_PROTOTYPE

// Scratch that a call takes from the stream's workspace, in bytes. Operations that are not here take none.
#define CUDA_OPERATIONS_WITH_WORKSPACE(OP)                                                                   \
    OP(embedding_backward)                                                                                   \
    OP(layernorm_backward)                                                                                   \
    OP(linear_forward)                                                                                       \
    OP(linear_backward)                                                                                      \
    OP(attention_backward)                                                                                   \
    OP(sample)

#define CUDA_WORKSPACE_PROTOTYPE(name)                                                                       \
    enum status cuda_##name##_workspace(struct device *device, const struct name##_args *args,               \
                                        size_t *bytes) MUST_CHECK;
CUDA_OPERATIONS_WITH_WORKSPACE(CUDA_WORKSPACE_PROTOTYPE)
#undef CUDA_WORKSPACE_PROTOTYPE

enum status matmuls_new(struct matmuls **out) MUST_CHECK; // on the current GPU
void matmuls_delete(struct matmuls *matmuls);

#endif
