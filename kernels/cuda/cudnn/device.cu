// Attention by cuDNN on a device. The first call of cuda_cudnn_support opens the library. A plan is made
// once per problem and kept until the device is closed.
#include "kernels/cuda/common.cuh"

#include <stdio.h>
#include <stdlib.h>

extern "C" {
#include "kernels/cuda/cudnn/attention.h"
}

struct cudnn_plan {
    cudnn_attention attention;
    cudnn_plan *next;
};

struct cudnns {
    bool loaded;
    char reason[CUDNN_REASON_BYTES]; // why the library cannot be used
    cudnn api;
    cudnnContext *handle;
    cudaStream_t queue; // the handle's stream
    cudnn_plan *plans;
};

namespace {

bool open_library(cudnns *all) {
    if (!cudnn_load(nullptr, &all->api, all->reason, sizeof all->reason))
        return false;
    unsigned error = all->api.Create(&all->handle);
    if (error == CUDNN9_STATUS_SUCCESS)
        return true;
    char detail[CUDNN_REASON_BYTES / 2] = "";
    all->api.GetLastErrorString(detail, sizeof detail);
    snprintf(all->reason, sizeof all->reason, "cuDNN does not start on this GPU: %s: %s",
             all->api.GetErrorString(error), detail);
    return false;
}

cudnn_plan *find_plan(cudnns *all, const cudnn_problem &problem) {
    for (cudnn_plan *plan = all->plans; plan; plan = plan->next)
        if (memcmp(&plan->attention.problem, &problem, sizeof problem) == 0)
            return plan;
    cudnn_plan *plan = static_cast<cudnn_plan *>(allocate(1, sizeof *plan));
    cudnn_target target = {};
    target.handle = all->handle;
    cudnn_attention_init(&plan->attention, &all->api, target, &problem);
    plan->next = all->plans;
    all->plans = plan;
    return plan;
}

bool is_loaded(const struct device *device) {
    const cudnns *all = cuda_of(device)->cudnns;
    return all && all->loaded;
}

// Returns the plan for a call of any operation; NULL if the library is not loaded or cuDNN does not compute
// the call.
const cudnn_plan *find_supported(struct device *device, enum operation operation, const void *args) {
    cudnn_problem problem;
    if (!is_loaded(device) || !cudnn_problem_of(operation, args, &problem))
        return nullptr;
    const cudnn_plan *plan = find_plan(cuda_of(device)->cudnns, problem);
    return plan->attention.supported ? plan : nullptr;
}

// Returns the plan of a problem, ready to execute on the stream. Returns NULL if cuDNN does not support the
// problem or needs more workspace than the stream has. Then this project's kernels must compute it.
cudnn_plan *find_issuable(struct stream *stream, const cudnn_problem &problem) {
    cudnn_plan *plan = find_plan(cuda_of(stream->device)->cudnns, problem);
    return plan->attention.supported && plan->attention.workspace_bytes <= stream->workspace_bytes ? plan
                                                                                                   : nullptr;
}

enum status use_stream(cudnns *all, const struct stream *stream) {
    TRY(cuda_enter(stream->device));
    if (all->queue == queue_of(stream))
        return STATUS_OK;
    unsigned error = all->api.SetStream(all->handle, queue_of(stream));
    if (error != CUDNN9_STATUS_SUCCESS)
        return FAIL(STATUS_FAILED, "cuDNN: setting the stream: %s", all->api.GetErrorString(error));
    all->queue = queue_of(stream);
    return STATUS_OK;
}

// Sets problems[0] to the forward problem of a training run's attention, and problems[1] to the backward
// problem. *possible is false if such calls are never given to cuDNN. There are no data: pointers are NULL,
// which counts as aligned. The forward problem is the one that writes lse, since backward needs it.
void shape_problems(const struct attention_shape *shape, cudnn_problem (&problems)[2], bool *possible) {
    attention_forward_args forward = {};
    attention_backward_args backward = {};
    size_t stride = static_cast<size_t>(shape->H + 2 * shape->K) * shape->D;
    size_t batch_stride = shape->T * stride;
    forward.q_stride = forward.k_stride = forward.v_stride = stride;
    backward.q_stride = backward.k_stride = backward.v_stride = stride;
    forward.q_batch_stride = forward.k_batch_stride = forward.v_batch_stride = batch_stride;
    backward.q_batch_stride = backward.k_batch_stride = backward.v_batch_stride = batch_stride;
    forward.B = backward.B = shape->B;
    forward.T = forward.S = backward.T = shape->T;
    forward.H = backward.H = shape->H;
    forward.K = backward.K = shape->K;
    forward.window = backward.window = shape->window;
    forward.D = backward.D = shape->D;
    forward.kernel = backward.kernel = ATTENTION_CUDNN;
    forward.type = backward.type = shape->type;
    *possible =
        cudnn_forward_problem(&forward, &problems[0]) && cudnn_backward_problem(&backward, &problems[1]);
    problems[0].kind = CUDNN_FORWARD_LSE;
}

cudnns *open_cudnns(cuda_device *cuda) {
    if (!cuda->cudnns) {
        cuda->cudnns = static_cast<cudnns *>(allocate(1, sizeof(cudnns)));
        cuda->cudnns->loaded = open_library(cuda->cudnns);
    }
    return cuda->cudnns;
}

} // namespace

extern "C" enum status cuda_cudnn_support(struct device *device, const struct attention_shape *shape,
                                          struct cudnn_support *out) {
    cudnn_problem problems[2];
    bool possible;
    *out = {};
    TRY(cuda_enter(device));
    cudnns *all = open_cudnns(reinterpret_cast<cuda_device *>(device));
    if (!all->loaded) {
        snprintf(out->reason, sizeof out->reason, "%s", all->reason);
        return STATUS_OK;
    }
    cudnn_version_name(all->api.GetVersion(), out->version, sizeof out->version);
    shape_problems(shape, problems, &possible);
    if (!possible) {
        snprintf(
            out->reason, sizeof out->reason,
            "it needs bf16 or fp16, seq_len above 1 and head dimensions that are multiples of 8; this run "
            "has %s, seq_len %d and head dimension %d",
            dtype_name(shape->type), shape->T, shape->D);
        return STATUS_OK;
    }
    out->usable = true;
    for (const cudnn_problem &problem : problems) {
        const cudnn_plan *plan = find_plan(all, problem);
        if (out->usable && !plan->attention.supported) {
            out->usable = false;
            snprintf(out->reason, sizeof out->reason, "%s: %s",
                     problem.kind == CUDNN_BACKWARD ? "backward" : "forward", plan->attention.graph.reason);
        }
    }
    return STATUS_OK;
}

extern "C" void cuda_cudnn_workspace(struct device *device, enum operation operation, const void *args,
                                     size_t *bytes) {
    const cudnn_plan *plan = find_supported(device, operation, args);
    if (plan && plan->attention.workspace_bytes > *bytes)
        *bytes = plan->attention.workspace_bytes;
}

extern "C" bool cuda_cudnn_computes(struct device *device, enum operation operation, const void *args) {
    return find_supported(device, operation, args);
}

extern "C" enum status cuda_cudnn_forward(struct stream *stream, const struct attention_forward_args *args,
                                          bool *issued) {
    cudnn_problem problem;
    cudnn_plan *plan = nullptr;
    if (is_loaded(stream->device) && cudnn_forward_problem(args, &problem))
        plan = find_issuable(stream, problem);
    *issued = plan != nullptr;
    if (!plan)
        return STATUS_OK;
    TRY(use_stream(cuda_of(stream->device)->cudnns, stream));
    count_launch(stream);
    return cudnn_attention_forward(&plan->attention, args, stream->workspace);
}

extern "C" enum status cuda_cudnn_backward(struct stream *stream, const struct attention_backward_args *args,
                                           bool *issued) {
    cudnn_problem problem;
    cudnn_plan *plan = nullptr;
    if (is_loaded(stream->device) && cudnn_backward_problem(args, &problem))
        plan = find_issuable(stream, problem);
    *issued = plan != nullptr;
    if (!plan)
        return STATUS_OK;
    TRY(use_stream(cuda_of(stream->device)->cudnns, stream));
    count_launch(stream);
    return cudnn_attention_backward(&plan->attention, args, stream->workspace);
}

extern "C" void cudnns_delete(struct cudnns *cudnns) {
    if (!cudnns)
        return;
    while (cudnns->plans) {
        cudnn_plan *plan = cudnns->plans;
        cudnns->plans = plan->next;
        cudnn_attention_free(&plan->attention);
        free(plan);
    }
    if (cudnns->handle)
        (void)cudnns->api.Destroy(cudnns->handle);
    free(cudnns);
}

extern "C" const char *cuda_device_cudnn(char *buffer, size_t size) {
    cudnn api;
    char reason[CUDNN_REASON_BYTES];
    if (cudnn_load(nullptr, &api, reason, sizeof reason))
        return cudnn_version_name(api.GetVersion(), buffer, size);
    snprintf(buffer, size, "no: %s", reason);
    return buffer;
}
