// Rank 0 chooses for the run and tells all. What was asked for by name, or recorded by the run that is
// resumed, is done or refused; the other ranks must have the same version of cuDNN.
#include "trainer/attention.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "trainer/trainer_internal.h"

#define REMEDY                                                                                               \
    "install cuDNN 9 (package cudnn9-cuda-13, or nvidia-cudnn-cu13 from PyPI with its lib folder in "        \
    "LD_LIBRARY_PATH)"

// The rule of attention=auto, for heads that cuDNN computes.
//
// Heads of 64 to 128 on compute capability 9.0: measured on an H200 (benchmarks/gpu.md, "Training") with
// GPT-2 124M, heads of 64 and T = 1024. A step of 64 sequences takes 140.8 ms by cuDNN and 154.6 ms by flash;
// attention by cuDNN is 16 % of one ("Where a step goes"), so flash takes 1.7 times as long. RoPE's passes,
// most of which flash saves, are 0.26 of 9.61 ms in that model (benchmarks/gpu_step.md), less than the tenth
// of a step that cuDNN saves. FLOPs and bytes of both grow alike with T. With the width of heads the FLOPs
// grow, and the scores' gradients that cuDNN's backward stores do not: wider heads favour it, narrower ones
// do not. Other GPUs were not measured.
// Wider heads on any GPU: flash multiplies them on ordinary cores, at most at 50 of 755 TFLOP/s (the same
// page).
static bool cudnn_is_faster(const struct device *device, int head_dim) {
    return head_dim > device->rotating_attention || (head_dim >= 64 && device->capability == 90);
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
            snprintf(reason, sizeof out->cudnn.reason, "it knows no documents (data.mask_documents)");
    }
    if (out->kernel == CONFIG_ATTENTION_FLASH)
        return STATUS_OK;
    if (!on_gpu || type == DTYPE_F32) {
        snprintf(reason, sizeof out->cudnn.reason, "%s",
                 on_gpu ? "it computes bf16 and fp16, and precision.compute is fp32"
                        : "it computes on a GPU, and the run on the CPU");
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
                           enum dtype type, const char **name) {
    struct attention_choice choice;
    TRY(attention_choose(device, config, model, type, CONFIG_ATTENTION_AUTO, &choice));
    const bool by_cudnn = choice.kernel == CONFIG_ATTENTION_CUDNN;
    if (by_cudnn && !choice.cudnn.usable)
        return FAIL(STATUS_UNSUPPORTED,
                    "%s: attention is cudnn, and cuDNN cannot be used: %s; set attention=auto",
                    config->source, choice.cudnn.reason);
    device->attention = by_cudnn ? ATTENTION_CUDNN : ATTENTION_FLASH;
    *name = config_attention_name(!by_cudnn               ? CONFIG_ATTENTION_FLASH
                                  : device->cudnn_support ? CONFIG_ATTENTION_CUDNN
                                                          : config->top.attention);
    return STATUS_OK;
}

// ---- a run

static enum status choose(struct trainer *trainer, struct attention_choice *out) {
    return attention_choose(trainer->device, trainer->config, &trainer->params.config, trainer->type,
                            trainer->resumed ? trainer->resumed->attention.kernel : CONFIG_ATTENTION_AUTO,
                            out);
}

enum status trainer_may_use_cudnn(struct trainer *trainer, bool *out) {
    struct attention_choice choice;
    TRY(choose(trainer, &choice));
    *out = choice.kernel == CONFIG_ATTENTION_CUDNN;
    return STATUS_OK;
}

static enum status refuse(const struct trainer *trainer, const char *reason) {
    const char *source = trainer->config->source;
    if (trainer->config->top.attention == CONFIG_ATTENTION_CUDNN)
        return FAIL(STATUS_UNSUPPORTED,
                    "%s: attention is cudnn, and cuDNN cannot be used: %s; " REMEDY ", or set attention=auto "
                    "or attention=flash",
                    source, reason);
    if (!trainer->resumed || trainer->resumed->attention.kernel != CONFIG_ATTENTION_CUDNN)
        return FAIL(STATUS_UNSUPPORTED,
                    "%s: rank 0 computes attention by cuDNN %s (attention=auto), and rank %d cannot: %s; "
                    "give all ranks the same cuDNN, or set attention=flash",
                    source, trainer->attention.cudnn, trainer->comm->rank, reason);
    return FAIL(
        STATUS_UNSUPPORTED,
        "%s: the run computes attention by cuDNN %s, as %s says, and cuDNN cannot be used now: %s; " REMEDY
        ", or change it on purpose with attention=flash checkpoint.resume_with=attention",
        source, trainer->resumed->attention.cudnn, trainer->resumed->path, reason);
}

// Rank 0 decides. A run on CPUs decides nothing, and keeps what the run before it decided.
static enum status decide(struct trainer *trainer, const struct attention_choice *choice) {
    const struct cudnn_support *cudnn = &choice->cudnn;
    const struct checkpoint_attention *before = trainer->resumed ? &trainer->resumed->attention : NULL;
    trainer->attention = before ? *before : (struct checkpoint_attention){.kernel = CONFIG_ATTENTION_AUTO};
    if (choice->kernel == CONFIG_ATTENTION_AUTO)
        return STATUS_OK;
    if (choice->kernel == CONFIG_ATTENTION_CUDNN && !cudnn->usable)
        return refuse(trainer, cudnn->reason);
    trainer->attention = (struct checkpoint_attention){.kernel = choice->kernel};
    if (choice->kernel == CONFIG_ATTENTION_CUDNN) {
        memcpy(trainer->attention.cudnn, cudnn->version, sizeof trainer->attention.cudnn);
        log_info("attention: cuDNN %s", cudnn->version);
        if (before && before->kernel == CONFIG_ATTENTION_CUDNN && strcmp(before->cudnn, cudnn->version) != 0)
            log_info("the checkpoint is of a run with cuDNN %s: results are equal to rounding",
                     before->cudnn);
    } else if (cudnn->reason[0])
        log_info("attention: flash; cuDNN is not used: %s", cudnn->reason);
    return STATUS_OK;
}

// Whether this rank can do what rank 0 decided.
static enum status follow(struct trainer *trainer, const struct attention_choice *choice) {
    const char *wanted = trainer->attention.cudnn, *version = choice->cudnn.version;
    char reason[128];
    if (trainer->attention.kernel != CONFIG_ATTENTION_CUDNN || trainer->type == DTYPE_F32 ||
        trainer->device->place == REGION_HOST)
        return STATUS_OK;
    if (!choice->cudnn.usable)
        return refuse(trainer, choice->cudnn.reason);
    snprintf(reason, sizeof reason, "rank 0 has version %s, and rank %d has %s", wanted, trainer->comm->rank,
             version);
    return strcmp(wanted, version) == 0 ? STATUS_OK : refuse(trainer, reason);
}

enum status trainer_choose_attention(struct trainer *trainer) {
    struct attention_choice mine;
    enum status status = choose(trainer, &mine);
    if (status == STATUS_OK && trainer->comm->rank == 0)
        status = decide(trainer, &mine);
    TRY(trainer_agree(trainer, status));
    TRY(comm_broadcast(trainer->comm, &trainer->attention, sizeof trainer->attention, 0));
    trainer->device->attention =
        trainer->attention.kernel == CONFIG_ATTENTION_CUDNN ? ATTENTION_CUDNN : ATTENTION_FLASH;
    return trainer_agree(trainer, follow(trainer, &mine));
}
