// A device for planning that needs no GPU, driver, runtime or CUDA in the build. It reports how much
// workspace an operation needs, by the CUDA backend's own formulas, and refuses everything else.
#include <stdlib.h>

#include "base/alloc.h"
#include "kernels/cuda/cudnn/attention.h"
#include "kernels/cuda/workspace.h"
#include "kernels/device.h"

// The largest values of any GPU so far, so that scratch which grows with the GPU is never planned too small.
static const struct cuda_properties largest_gpu = {
    .n_processors = 192, // of NVIDIA's whole GB202; an H200 has 132
    .max_product_workspace = (size_t)32 << 20,
};

static enum status refuse(void) {
    return FAIL(STATUS_UNSUPPORTED, "this device is for planning only: no operation runs on it");
}

#define REFUSED_OPERATION(name)                                                                              \
    static enum status refuse_##name(struct stream *stream, const struct name##_args *args) {                \
        (void)stream, (void)args;                                                                            \
        return refuse();                                                                                     \
    }
OPERATIONS(REFUSED_OPERATION)
#undef REFUSED_OPERATION

static enum status workspace_bytes(struct device *device, enum operation operation, const void *args,
                                   size_t *bytes) {
    struct cudnn_problem problem;
    *bytes = cuda_workspace_bytes(&largest_gpu, operation, args);
    if (device->attention == ATTENTION_CUDNN &&
        ((operation == OP_attention_forward && cudnn_forward_problem(args, &problem)) ||
         (operation == OP_attention_backward && cudnn_backward_problem(args, &problem))) &&
        cudnn_assumed_workspace(&problem) > *bytes)
        *bytes = cudnn_assumed_workspace(&problem);
    return STATUS_OK;
}

// Those of flash: more than cuDNN's, as the workspace is at least either's.
static int launches(struct device *device, enum operation operation, const void *args) {
    (void)device;
    return cuda_launches(operation, args);
}

#define PLAN_ENTRY(name) .name = refuse_##name,
static const struct ops plan_ops = {OPERATIONS(PLAN_ENTRY).workspace_bytes = workspace_bytes,
                                    .launches = launches};
#undef PLAN_ENTRY

static enum status refuse_memory(struct device *device, size_t bytes, const char *purpose, void **out) {
    (void)device, (void)bytes, (void)purpose, (void)out;
    return refuse();
}

static void delete_memory(struct device *device, void *memory, size_t bytes) {
    (void)device, (void)memory, (void)bytes; // there is none
}

static enum status refuse_copy(struct stream *stream, void *to, const void *from, size_t bytes) {
    (void)stream, (void)to, (void)from, (void)bytes;
    return refuse();
}

static enum status refuse_synchronize(struct stream *stream) {
    (void)stream;
    return refuse();
}

static void close_device(struct device *device) {
    free(device);
}

struct device *cuda_device_plan(void) {
    struct device *device = allocate(1, sizeof *device);
    *device = (struct device){.name = "cuda",
                              .description = "a GPU, for planning only",
                              .ops = &plan_ops,
                              .place = REGION_DEVICE,
                              .n_threads = 1,
                              .capability = 90, // where attention=auto takes cuDNN
                              .rotating_attention = CUDA_ATTENTION_TENSOR_WIDTH,
                              .attention = ATTENTION_CUDNN, // takes the larger workspace
                              .memory_new = refuse_memory,
                              .memory_delete = delete_memory,
                              .copy = refuse_copy,
                              .synchronize = refuse_synchronize,
                              .close = close_device};
    return device;
}
