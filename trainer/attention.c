// Which attention a run computes with. What was asked for by name, or recorded by the run that is resumed, is
// done or refused. "auto" takes the faster one where cuDNN is usable on every rank and fits into the memory
// of every rank, as rank 0 measures it or remembers it (attention_cache.h), and tells all.
//
// A run has one kernel for all windows of its model. cuDNN is usable if it computes each of these shapes:
// otherwise some layers would fall back to flash.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "trainer/attention_cache.h"
#include "trainer/trainer_internal.h"

#define REMEDY                                                                                               \
    "install cuDNN 9 (package cudnn9-cuda-13, or nvidia-cudnn-cu13 from PyPI with its lib folder in "        \
    "LD_LIBRARY_PATH)"

static struct attention_shape shape_of(const struct trainer *trainer, int window) {
    const struct gpt_config *model = &trainer->params.config;
    const struct config *config = trainer->config;
    return (struct attention_shape){.B = (int)config->train.micro_batch_size,
                                    .T = (int)config->train.seq_len,
                                    .H = model->n_head,
                                    .K = model->n_kv_head,
                                    .D = model->head_dim,
                                    .window = window,
                                    .rope = gpt_has_rope(model) && !model->qk_norm,
                                    .type = trainer->type};
}

// What the config or the checkpoint says; AUTO leaves it open. A config that names another kernel than the
// checkpoint's was allowed to by checkpoint.resume_with. Only flash knows documents.
static enum config_attention wanted(const struct trainer *trainer) {
    const enum config_attention named = trainer->config->top.attention;
    if (trainer->config->data.mask_documents)
        return CONFIG_ATTENTION_FLASH;
    return named == CONFIG_ATTENTION_AUTO && trainer->resumed ? trainer->resumed->attention.kernel : named;
}

// ---- cuDNN as the ranks have it

struct answer { // of a rank, or the judgement of all
    bool on_gpu;
    struct cudnn_support cudnn;
};

// Of every window; the first that cuDNN does not compute decides, and is named before the reason.
static enum status find_support(struct trainer *trainer, struct answer *out) {
    const struct gpt_config *model = &trainer->params.config;
    const int n_windows = model->n_windows > 0 ? model->n_windows : 1;
    *out =
        (struct answer){.on_gpu = trainer->device->cudnn_support, .cudnn.reason = "it computes on the CPU"};
    for (int block = 0; out->on_gpu && block < n_windows; block++) {
        const struct attention_shape shape = shape_of(trainer, gpt_window(model, block));
        TRY(trainer->device->cudnn_support(trainer->device, &shape, &out->cudnn));
        if (out->cudnn.usable)
            continue;
        char reason[sizeof out->cudnn.reason];
        memcpy(reason, out->cudnn.reason, sizeof reason);
        if (shape.window > 0)
            snprintf(out->cudnn.reason, sizeof reason, "a window of %d: %.300s", shape.window, reason);
        return STATUS_OK;
    }
    return STATUS_OK;
}

enum status trainer_may_use_cudnn(struct trainer *trainer, bool *out) {
    struct answer mine;
    *out = false;
    if (wanted(trainer) == CONFIG_ATTENTION_FLASH || trainer->type == DTYPE_F32)
        return STATUS_OK;
    TRY(find_support(trainer, &mine));
    *out = mine.cudnn.usable;
    return STATUS_OK;
}

// Judges all ranks together: cuDNN must be usable on each, in one version. The reason names the first rank
// that differs.
static void judge_ranks(const struct answer *all, int world, struct answer *out) {
    *out = all[0];
    for (int rank = 1; rank < world; rank++) {
        const struct cudnn_support *one = &all[rank].cudnn;
        if (!out->cudnn.usable)
            continue;
        out->cudnn.usable = one->usable && strcmp(one->version, all[0].cudnn.version) == 0;
        if (!one->usable)
            snprintf(out->cudnn.reason, sizeof out->cudnn.reason, "rank %d: %.380s", rank, one->reason);
        else if (!out->cudnn.usable)
            snprintf(out->cudnn.reason, sizeof out->cudnn.reason, "rank 0 has version %s, and rank %d has %s",
                     all[0].cudnn.version, rank, one->version);
    }
}

static enum status gather_support(struct trainer *trainer, struct answer *out) {
    struct answer mine, *all = calloc((size_t)trainer->comm->world, sizeof *all);
    enum status status = all ? STATUS_OK : FAIL(STATUS_FAILED, "out of memory for the answers of the ranks");
    if (status == STATUS_OK)
        status = find_support(trainer, &mine);
    status = trainer_agree(trainer, status);
    if (status == STATUS_OK)
        status = comm_gather(trainer->comm, &mine, sizeof mine, all);
    if (status == STATUS_OK)
        judge_ranks(all, trainer->comm->world, out);
    free(all);
    return status;
}

// ---- asked for by name, or recorded

static enum status refuse(const struct trainer *trainer, const char *reason) {
    const char *source = trainer->config->source;
    if (trainer->config->top.attention == CONFIG_ATTENTION_CUDNN)
        return FAIL(STATUS_UNSUPPORTED,
                    "%s: attention is cudnn, and cuDNN cannot be used: %s; " REMEDY ", or set attention=auto "
                    "or attention=flash",
                    source, reason);
    return FAIL(
        STATUS_UNSUPPORTED,
        "%s: the run computes attention by cuDNN %s, as %s says, and cuDNN cannot be used now: %s; " REMEDY
        ", or change it on purpose with attention=flash checkpoint.resume_with=attention",
        source, trainer->resumed->attention.cudnn, trainer->resumed->path, reason);
}

static enum status require_cudnn(struct trainer *trainer, const struct cudnn_support *support) {
    if (!support->usable)
        return refuse(trainer, support->reason);
    trainer->attention.kernel = CONFIG_ATTENTION_CUDNN;
    memcpy(trainer->attention.cudnn, support->version, sizeof trainer->attention.cudnn);
    log_info("attention: cuDNN %s", support->version);
    const struct checkpoint_attention *before = trainer->resumed ? &trainer->resumed->attention : NULL;
    if (before && before->kernel == CONFIG_ATTENTION_CUDNN && strcmp(before->cudnn, support->version) != 0)
        log_info("the checkpoint is of a run with cuDNN %s: results are equal to rounding", before->cudnn);
    return STATUS_OK;
}

// ---- auto

// The times of a shape, as they are kept or measured.
static bool measure_shape(struct trainer *trainer, const char *version, const struct attention_shape *shape,
                          struct attention_times *times) {
    const struct attention_cache_key key = {trainer->device->arithmetic, version, *shape};
    if (attention_cache_find(&key, times))
        return true;
    if (device_measure_attention(trainer->device, shape, times) != STATUS_OK)
        return false;
    attention_cache_add(&key, times);
    return true;
}

struct verdict { // of rank 0, as all ranks get it
    int32_t by_cudnn, measured;
    struct attention_times times;
    char reason[400];
};

// GPU memory of a rank with cuDNN's workspace, in bytes; wanted 0 where it could not be planned.
struct memory_answer {
    uint64_t wanted, available;
};

static struct memory_answer find_memory(struct trainer *trainer) {
    const struct engine_options options = trainer_engine_options(trainer);
    struct plan plan;
    uint64_t available;
    trainer->device->attention = ATTENTION_CUDNN;
    if (plan_make(&options, &plan) == STATUS_OK && trainer_device_limit(trainer, &available) == STATUS_OK)
        return (struct memory_answer){plan.taken[REGION_DEVICE], available};
    status_clear(); // the run plans again, and reports it
    return (struct memory_answer){0};
}

// Chooses flash where only that fits into the memory of each rank. The reason names the first rank that lacks
// memory.
static enum status check_memory(struct trainer *trainer, struct verdict *out) {
    const int world = trainer->comm->world;
    const struct memory_answer mine = find_memory(trainer);
    struct memory_answer *all = calloc((size_t)world, sizeof *all);
    char needed[32], there[32], who[24] = "";
    enum status status =
        trainer_agree(trainer, all ? STATUS_OK : FAIL(STATUS_FAILED, "out of memory for the ranks' plans"));
    if (status == STATUS_OK)
        status = comm_gather(trainer->comm, &mine, sizeof mine, all);
    for (int rank = 0; rank < world && status == STATUS_OK && out->by_cudnn; rank++) {
        if (all[rank].wanted <= all[rank].available)
            continue;
        out->by_cudnn = 0;
        if (world > 1)
            snprintf(who, sizeof who, " of rank %d", rank);
        snprintf(out->reason, sizeof out->reason,
                 "with its workspace the run would need %s of GPU memory, and %s%s are free",
                 text_bytes(needed, sizeof needed, (double)all[rank].wanted),
                 text_bytes(there, sizeof there, (double)all[rank].available), who);
    }
    free(all);
    return status;
}

static void judge_times(struct trainer *trainer, const char *version, struct verdict *out) {
    const struct attention_shape shape = shape_of(trainer, 0);
    *out = (struct verdict){0};
    out->measured = measure_shape(trainer, version, &shape, &out->times);
    if (!out->measured) {
        snprintf(out->reason, sizeof out->reason, "%s", status_message());
        status_clear(); // flash needs less memory
    } else if (!out->times.reproducible)
        snprintf(out->reason, sizeof out->reason, "its results differ from call to call, or from flash's");
    else
        out->by_cudnn = out->times.cudnn_s < out->times.flash_s;
}

static enum status choose_faster(struct trainer *trainer, const struct cudnn_support *support) {
    struct verdict verdict = {0};
    if (support->usable) {
        if (trainer_leads(trainer))
            judge_times(trainer, support->version, &verdict);
        TRY(comm_broadcast(trainer->comm, &verdict, sizeof verdict, 0));
        if (verdict.by_cudnn)
            TRY(check_memory(trainer, &verdict));
    } else
        snprintf(verdict.reason, sizeof verdict.reason, "%s", support->reason);
    trainer->attention.kernel = verdict.by_cudnn ? CONFIG_ATTENTION_CUDNN : CONFIG_ATTENTION_FLASH;
    if (verdict.by_cudnn)
        memcpy(trainer->attention.cudnn, support->version, sizeof trainer->attention.cudnn);
    if (verdict.reason[0])
        log_info("attention: flash; cuDNN is not used: %s", verdict.reason);
    else
        log_info("attention: %s%s, the faster; forward and backward of a layer take %.3g ms by cuDNN %s and "
                 "%.3g ms by flash%s",
                 verdict.by_cudnn ? "cuDNN " : "flash", trainer->attention.cudnn, 1e3 * verdict.times.cudnn_s,
                 support->version, 1e3 * verdict.times.flash_s,
                 shape_of(trainer, 0).rope ? ", with RoPE" : "");
    return STATUS_OK;
}

// For the 16-bit types. A run on CPUs decides nothing, and keeps what the run before it decided.
static enum status choose(struct trainer *trainer, enum config_attention kernel) {
    struct answer ranks;
    TRY(gather_support(trainer, &ranks));
    if (kernel == CONFIG_ATTENTION_CUDNN && (ranks.on_gpu || trainer->config->top.attention == kernel))
        return require_cudnn(trainer, &ranks.cudnn);
    return kernel == CONFIG_ATTENTION_AUTO && ranks.on_gpu ? choose_faster(trainer, &ranks.cudnn) : STATUS_OK;
}

enum status trainer_choose_attention(struct trainer *trainer) {
    const enum config_attention kernel = wanted(trainer);
    enum status status = STATUS_OK;
    trainer->attention = trainer->resumed ? trainer->resumed->attention : (struct checkpoint_attention){0};
    if (kernel == CONFIG_ATTENTION_FLASH)
        trainer->attention = (struct checkpoint_attention){.kernel = CONFIG_ATTENTION_FLASH};
    else if (trainer->type != DTYPE_F32)
        status = choose(trainer, kernel);
    else if (trainer->config->top.attention == CONFIG_ATTENTION_CUDNN)
        status = refuse(trainer, "it computes bf16 and fp16, and precision.compute is fp32");
    if (trainer->config->data.mask_documents && trainer->config->top.attention == CONFIG_ATTENTION_AUTO &&
        trainer->device->cudnn_support && trainer->type != DTYPE_F32)
        log_info("attention: flash, as cuDNN is not used with data.mask_documents");
    trainer->device->attention =
        trainer->attention.kernel == CONFIG_ATTENTION_CUDNN ? ATTENTION_CUDNN : ATTENTION_FLASH;
    return trainer_agree(trainer, status);
}
