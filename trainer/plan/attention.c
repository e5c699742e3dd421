// These functions choose for one rank; trainer/machine.c makes the ranks of a run agree.
#include "trainer/plan/attention.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"

// The rule of attention=auto, for heads that cuDNN can compute.
//
// Heads of 64 to 128 on compute capability 9.0: cuDNN is faster. Measured on an H200 (benchmarks/gpu.md,
// "Training") with GPT-2 124M, heads of 64 and T = 1024: a step of 64 sequences takes 140.8 ms with cuDNN and
// 154.6 ms with flash. About 19 ms of the former are attention ("Where a step goes"), so flash takes 1.7
// times as long. Flash saves most of the passes for RoPE, but these take only 0.26 of 9.61 ms
// (benchmarks/gpu_step.md). With T, FLOPs and bytes of both kernels grow alike. With the head's width the
// FLOPs grow, but not the bytes of the score gradients that cuDNN's backward stores. So wider heads favor
// cuDNN even more, and narrower ones may not. Other GPUs were not measured.
//
// Heads that are too wide for flash's tensor-core kernels (tensor_core_heads), on any GPU: cuDNN is faster.
// Flash multiplies such heads on CUDA cores, with at most 50 of the 755 TFLOP/s of tensor cores (gpu.md).
static bool cudnn_is_faster(const struct device *device, int head_dim) {
    return head_dim > device->tensor_core_heads || (head_dim >= 64 && device->capability == 90);
}

static enum status find_support(struct device *device, const struct config *config,
                                const struct gpt_config *model, enum dtype type, struct cudnn_support *out) {
    *out = (struct cudnn_support){.usable = !device->cudnn_support};
    for (int block = 0; block == 0 || block < model->n_windows; block++) {
        const int window = gpt_window(model, block);
        const struct attention_shape shape = {.B = (int)config->train.micro_batch_size,
                                              .T = (int)config->train.seq_len,
                                              .H = model->n_head,
                                              .K = model->n_kv_head,
                                              .D = model->head_dim,
                                              .window = window,
                                              .type = type};
        if (device->cudnn_support)
            TRY(device->cudnn_support(device, &shape, out));
        if (!out->usable && window > 0) {
            char reason[sizeof out->reason];
            memcpy(reason, out->reason, sizeof reason);
            snprintf(out->reason, sizeof out->reason, "a window of %d: %.350s", window, reason);
        }
        if (!out->usable)
            break;
    }
    return STATUS_OK;
}

enum status attention_choose(struct device *device, const struct config *config,
                             const struct gpt_config *model, enum dtype type, enum config_attention recorded,
                             struct attention_choice *out) {
    const enum config_attention named = config->top.attention;
    const bool on_gpu = device->place == REGION_DEVICE;
    *out = (struct attention_choice){.kernel = named == CONFIG_ATTENTION_AUTO ? recorded : named};
    char *reason = out->cudnn.reason;
    if (config->data.mask_documents) {
        out->kernel = CONFIG_ATTENTION_FLASH;
        if (on_gpu && type != DTYPE_F32)
            snprintf(reason, sizeof out->cudnn.reason, "it cannot mask documents (data.mask_documents)");
    }
    if (out->kernel == CONFIG_ATTENTION_FLASH)
        return STATUS_OK;
    if (!on_gpu || type == DTYPE_F32) {
        snprintf(reason, sizeof out->cudnn.reason, "%s",
                 on_gpu ? "it computes only in bf16 and fp16, and precision.compute is fp32"
                        : "it needs a GPU, and the run computes on the CPU");
        out->kernel = named;
        return STATUS_OK;
    }
    TRY(find_support(device, config, model, type, &out->cudnn));
    if (out->kernel != CONFIG_ATTENTION_AUTO)
        return STATUS_OK;
    out->kernel = CONFIG_ATTENTION_FLASH;
    if (out->cudnn.usable && cudnn_is_faster(device, model->head_dim))
        out->kernel = CONFIG_ATTENTION_CUDNN;
    else if (out->cudnn.usable)
        snprintf(reason, sizeof out->cudnn.reason,
                 "with heads of %d it was not measured to be faster on such a GPU (attention=cudnn uses it)",
                 model->head_dim);
    return STATUS_OK;
}

enum status attention_plan(struct device *device, const struct config *config, const struct gpt_config *model,
                           enum dtype type, enum attention_kernel *out, const char **name) {
    struct attention_choice choice;
    TRY(attention_choose(device, config, model, type, CONFIG_ATTENTION_AUTO, &choice));
    const bool by_cudnn = choice.kernel == CONFIG_ATTENTION_CUDNN;
    if (by_cudnn && !choice.cudnn.usable)
        return FAIL(STATUS_UNSUPPORTED,
                    "%s: attention is cudnn, and cuDNN cannot be used: %s; set attention=auto",
                    config->source, choice.cudnn.reason);
    *out = by_cudnn ? ATTENTION_CUDNN : ATTENTION_FLASH;
    *name = config_attention_name(!by_cudnn               ? CONFIG_ATTENTION_FLASH
                                  : device->cudnn_support ? CONFIG_ATTENTION_CUDNN
                                                          : config->top.attention);
    return STATUS_OK;
}
