// Derived values, and rules between options.
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "options/batches.h"
#include "options/foreign.h"
#include "options/model_rules.h"
#include "options/option.h"
#include "options/rules.h"

// ---- deriving

enum status config_derive_run_folder(struct config *config) {
    if (config->run.dir[0])
        return STATUS_OK;
    const char *slash = strrchr(config->source, '/'), *name = slash ? slash + 1 : config->source;
    size_t length = strlen(name);
    if (length > 5 &&
        strcmp(name + length - 5, ".json") == 0) // cut only ".json": gpt3-2.7b.json gives gpt3-2.7b
        length -= 5;
    char *folder = file_path("runs/%.*s", (int)length, name);
    if (!folder)
        return STATUS_FAILED;
    free(config->run.dir);
    config->run.dir = folder;
    return STATUS_OK;
}

// ---- rules

// Each rule returns STATUS_OK or fails with the values that conflict and what to change. Those of the model
// are in model_rules.c.
static enum status check_sequence(const struct config *c) {
    if (c->train.seq_len <= c->model.n_positions)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: train.seq_len %lld is above model.n_positions %lld; lower the first or raise the second",
                c->source, (long long)c->train.seq_len, (long long)c->model.n_positions);
}

static enum status check_max_batch(const struct config *c) {
    if (c->train.max_batch_size == 0)
        return STATUS_OK;
    if (c->train.noise_scale_every == 0)
        return FAIL(STATUS_INVALID,
                    "%s: train.max_batch_size is %lld, but the batch grows by the noise scale, which is not "
                    "measured; set train.noise_scale_every",
                    c->source, (long long)c->train.max_batch_size);
    if (c->train.batch_size_schedule.n > 0)
        return FAIL(
            STATUS_INVALID,
            "%s: both train.max_batch_size and train.batch_size_schedule are set; leave out one of them",
            c->source);
    if (c->train.max_batch_size < c->train.train_batch_size)
        return FAIL(
            STATUS_INVALID,
            "%s: train.max_batch_size is %lld, less than train.train_batch_size=%lld, from which the batch "
            "grows",
            c->source, (long long)c->train.max_batch_size, (long long)c->train.train_batch_size);
    return STATUS_OK;
}

// A tokenizer that is not given may come with the shards of data.train; the trainer checks that.
static enum status check_samples(const struct config *c) {
    bool comes_with_data = c->data.train.n > 0 && !option_given("data.tokenizer", c);
    if (c->train.sample_every == 0 || c->data.tokenizer[0] || comes_with_data)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: train.sample_every is %lld, but samples need a tokenizer; set data.tokenizer", c->source,
                (long long)c->train.sample_every);
}

static enum status check_documents(const struct config *c) {
    if (!c->data.mask_documents || c->top.attention != CONFIG_ATTENTION_CUDNN)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: data.mask_documents is true, but attention is cudnn, which is causal only; set "
                "attention=flash or attention=auto",
                c->source);
}

static enum status check_offload_activations(const struct config *c) {
    if (c->top.offload_activations == CONFIG_OFFLOAD_NONE || c->top.recompute == CONFIG_RECOMPUTE_BLOCK)
        return STATUS_OK;
    return FAIL(
        STATUS_INVALID,
        "%s: offload_activations=cpu moves block inputs, so it needs recompute=block, which keeps only "
        "those (as DeepSpeed's cpu_checkpointing needs activation checkpointing); recompute is %s; "
        "set recompute=block, or offload_activations=none",
        c->source, config_recompute_name(c->top.recompute));
}

// As in DeepSpeed, whose documentation says "offload_param ... is valid only with stage 3", and whose partial
// optimizer offload keeps whole parameters on the device.
static enum status check_offload_param(const struct config *c) {
    if (c->zero_optimization.offload_param.device == CONFIG_OFFLOAD_NONE)
        return STATUS_OK;
    if (c->zero_optimization.stage != 3)
        return FAIL(
            STATUS_INVALID,
            "%s: zero_optimization.offload_param.device is cpu, which is valid only with ZeRO stage 3, "
            "and zero_optimization.stage is %lld: below stage 3 every rank keeps all parameters on its "
            "device; set stage=3, or offload_param.device=none",
            c->source, (long long)c->zero_optimization.stage);
    if (c->zero_optimization.offload_optimizer.device == CONFIG_OFFLOAD_CPU &&
        c->zero_optimization.offload_optimizer.ratio == 1)
        return STATUS_OK;
    return FAIL(
        STATUS_INVALID,
        "%s: with zero_optimization.offload_param.device=cpu the host must update all parameters, but "
        "offload_optimizer.device is %s with ratio %g; set offload_optimizer.device=cpu and ratio=1",
        c->source, config_offload_name(c->zero_optimization.offload_optimizer.device),
        c->zero_optimization.offload_optimizer.ratio);
}

// Matrices are gathered and multiplied by devices; none is split between a device and the host.
static enum status check_matrices(const struct config *c) {
    if (c->optimizer.type != CONFIG_OPTIMIZER_MUON) {
        if (c->optimizer.adamw_lr > 0)
            return FAIL(STATUS_INVALID,
                        "%s: optimizer.adamw_lr is of the tensors that optimizer.type=muon leaves to "
                        "adamw, but the type is %s; leave it out (its default is 0), and set optimizer.lr",
                        c->source, config_optimizer_name(c->optimizer.type));
        return STATUS_OK;
    }
    if (c->zero_optimization.offload_optimizer.device != CONFIG_OFFLOAD_NONE)
        return FAIL(STATUS_INVALID,
                    "%s: zero_optimization.offload_optimizer updates elements on the host, but "
                    "optimizer.type=muon multiplies whole matrices on the device; set "
                    "offload_optimizer.device=none",
                    c->source);
    if (c->optimizer.adamw_lr > 0 && c->optimizer.lr == 0)
        return FAIL(STATUS_INVALID,
                    "%s: optimizer.adamw_lr follows the schedule of optimizer.lr, which is 0; set an "
                    "optimizer.lr above 0",
                    c->source);
    return STATUS_OK;
}

// A group's rate follows the schedule of optimizer.lr; only muon leaves tensors to adamw.
static enum status check_groups(const struct config *c) {
    for (int i = 0; i < c->optimizer.groups.n; i++) {
        const struct config_group *group = &c->optimizer.groups.list[i];
        if (group->has_lr && c->optimizer.lr == 0)
            return FAIL(
                STATUS_INVALID,
                "%s: optimizer.groups[%d].lr follows the schedule of optimizer.lr, which is 0; set an "
                "optimizer.lr above 0, and freeze the tensors that are not to change",
                c->source, i);
        if (group->by_adamw && c->optimizer.type != CONFIG_OPTIMIZER_MUON &&
            c->optimizer.type != CONFIG_OPTIMIZER_ADAMW)
            return FAIL(STATUS_INVALID,
                        "%s: optimizer.groups[%d].type is adamw, but optimizer.type=%s updates all tensors; "
                        "leave the group's type out, or set optimizer.type to muon or adamw",
                        c->source, i, config_optimizer_name(c->optimizer.type));
    }
    return STATUS_OK;
}

// z is a copy of the weights, so it is kept in fp32. An average of the average would be of no use.
static enum status check_schedule_free(const struct config *c) {
    if (c->optimizer.type != CONFIG_OPTIMIZER_SCHEDULEFREE_ADAMW)
        return STATUS_OK;
    if (c->optimizer.state_dtype != CONFIG_STATE_DTYPE_FP32)
        return FAIL(
            STATUS_INVALID,
            "%s: optimizer.state_dtype is %s, but optimizer.type=schedulefree_adamw keeps weights in the "
            "place of the first moment, in fp32; set state_dtype=fp32",
            c->source, config_state_dtype_name(c->optimizer.state_dtype));
    if (c->scheduler.type != CONFIG_SCHEDULE_CONSTANT && option_given("scheduler.type", c))
        return FAIL(
            STATUS_INVALID,
            "%s: scheduler.type is %s, but optimizer.type=schedulefree_adamw needs a constant rate after "
            "warm-up, as its average takes the place of a schedule; leave scheduler.type out",
            c->source, config_schedule_name(c->scheduler.type));
    if (c->optimizer.betas.value[0] <= 0)
        return FAIL(
            STATUS_INVALID,
            "%s: the first of optimizer.betas is %g, but optimizer.type=schedulefree_adamw divides by "
            "it; set it above 0, such as 0.9",
            c->source, c->optimizer.betas.value[0]);
    if (c->train.ema.type != CONFIG_EMA_NONE)
        return FAIL(STATUS_INVALID,
                    "%s: train.ema.type is %s, but optimizer.type=schedulefree_adamw averages the weights by "
                    "itself; set train.ema.type=none",
                    c->source, config_ema_name(c->train.ema.type));
    return STATUS_OK;
}

// Options that one choice of optimizer uses, or an average. A resolved config has the others at their
// defaults. train.ema.type=none on the command line switches off what the file sets.
static enum status check_unused(const struct config *c) {
    const unsigned averages = option_given("train.ema.type", c) ? ~0u : ~(1u << CONFIG_EMA_NONE);
    const struct {
        const char *option, *type;
        unsigned types; // choices of `type` with which it is accepted
        const char *named;
    } all[] = {{"optimizer.momentum", "optimizer.type", 1 << CONFIG_OPTIMIZER_SGD, "sgd"},
               {"optimizer.muon_momentum", "optimizer.type", 1 << CONFIG_OPTIMIZER_MUON, "muon"},
               {"optimizer.muon_scale", "optimizer.type", 1 << CONFIG_OPTIMIZER_MUON, "muon"},
               {"train.ema.decay", "train.ema.type", averages, "exponential"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const struct option *option = option_find(all[i].option), *type = option_find(all[i].type);
        const int chosen = *(const int *)option_value(type, c);
        struct text value = {0};
        if (all[i].types & 1u << chosen || option_is_default(option, c))
            continue;
        option_print(option, c, &value);
        enum status status = text_status(&value);
        if (status == STATUS_OK)
            status = FAIL(STATUS_INVALID,
                          "%s: %s is %s, but %s is %s, which does not use it; leave it out (its default is "
                          "%s), or set %s=%s",
                          c->source, all[i].option, value.data, all[i].type, type->choices[chosen],
                          option->initial ? option->initial : option->choices[option->chosen], all[i].type,
                          all[i].named);
        text_free(&value);
        return status;
    }
    return STATUS_OK;
}

static enum status check_resume_with(const struct config *c) {
    for (const char *at = c->checkpoint.resume_with + strspn(c->checkpoint.resume_with, ", "); *at;
         at += strspn(at, ", ")) {
        char name[128];
        const char *names[MAX_OPTIONS];
        const size_t n = strcspn(at, ", ");
        snprintf(name, sizeof name, "%.*s", (int)n, at);
        at += n;
        const struct option *option = option_find(name);
        if (option && option->resume == FIXED)
            return FAIL(
                STATUS_INVALID,
                "%s: checkpoint.resume_with lists %s, which cannot change in a run; start a new run from its "
                "weights with model.init_from=RUN and another run.dir",
                c->source, name);
        if (option || gone_option(name)) // of a run that changed what is gone
            continue;
        if (section_exists(name, strlen(name)))
            return FAIL(STATUS_INVALID,
                        "%s: checkpoint.resume_with lists %s, which is a section; list its options that "
                        "change, such as %s",
                        c->source, name, option_full_name(option_first_of(name)));
        for (int i = 0; i < n_options; i++)
            names[i] = option_full_name(&options[i]);
        const char *nearest = text_nearest(name, names, n_options);
        return FAIL(STATUS_INVALID,
                    "%s: checkpoint.resume_with lists %s, which is no option%s%s; expected names such as "
                    "\"optimizer.lr,train.train_batch_size\"",
                    c->source, name, nearest ? "; did you mean " : "", nearest ? nearest : "");
    }
    return STATUS_OK;
}

enum { MOST_OF_RULE = 7 };
static const struct {
    enum status (*check)(const struct config *);
    bool from_files;                   // what it checks may come from model.init_from, or from the data
    const char *options[MOST_OF_RULE]; // that it reads
} rules[] = {
    {model_rules_heads, true, {"model.n_embd", "model.n_head", "model.n_kv_head", "model.head_dim"}},
    {model_rules_rotation,
     true,
     {"model.n_embd", "model.n_head", "model.head_dim", "model.partial_rotary_factor"}},
    {model_rules_rope_scaling,
     true,
     {"model.rope_scaling.rope_type", "model.rope_scaling.factor", "model.rope_scaling.low_freq_factor",
      "model.rope_scaling.high_freq_factor", "model.rope_scaling.beta_fast", "model.rope_scaling.beta_slow",
      "model.rope_scaling.attention_factor"}},
    {model_rules_family, true, {"model.family"}},
    {model_rules_activation, true, {"model.family", "model.activation"}},
    {model_rules_window, true, {"model.window", "model.n_layer"}},
    {model_rules_value_embeddings, true, {"model.value_embeddings", "model.n_layer"}},
    {check_sequence, true, {"train.seq_len", "model.n_positions"}},
    {check_max_batch,
     false,
     {"train.max_batch_size", "train.noise_scale_every", "train.batch_size_schedule",
      "train.train_batch_size"}},
    {check_samples, true, {"train.sample_every", "data.tokenizer", "data.train"}},
    {check_documents, false, {"data.mask_documents", "attention"}},
    {check_offload_activations, false, {"offload_activations", "recompute"}},
    {check_offload_param,
     false,
     {"zero_optimization.offload_param.device", "zero_optimization.stage",
      "zero_optimization.offload_optimizer.device", "zero_optimization.offload_optimizer.ratio"}},
    {check_matrices,
     false,
     {"optimizer.type", "optimizer.lr", "optimizer.adamw_lr", "zero_optimization.offload_optimizer.device"}},
    {check_groups, false, {"optimizer.groups", "optimizer.type", "optimizer.lr"}},
    {check_schedule_free,
     false,
     {"optimizer.type", "optimizer.state_dtype", "optimizer.betas", "scheduler.type", "train.ema.type"}},
    {check_unused, false, {"optimizer.type", "train.ema.type"}},
    {check_resume_with, false, {"checkpoint.resume_with"}},
};
enum { N_RULES = sizeof rules / sizeof *rules };

enum status rules_check_rest(const struct config *config, const bool *faulty, struct faults *faults) {
    for (int i = 0; i < N_RULES; i++) {
        bool skip = rules[i].from_files && option_given("model.init_from", config);
        for (int k = 0; k < MOST_OF_RULE && rules[i].options[k]; k++)
            skip |= faulty[option_find(rules[i].options[k]) - options];
        if (!skip)
            TRY(faults_take(faults, rules[i].check(config)));
    }
    return STATUS_OK;
}

// With train.max_minutes, the steps are as many as fit, unless the user limits them.
static void derive_max_steps(struct config *config) {
    if (config->train.max_minutes > 0 && !option_given("train.max_steps", config))
        config->train.max_steps = (int64_t)option_find("train.max_steps")->maximum;
}

static void derive_schedule(struct config *config) {
    if (config->optimizer.type == CONFIG_OPTIMIZER_SCHEDULEFREE_ADAMW &&
        !option_given("scheduler.type", config))
        config->scheduler.type = CONFIG_SCHEDULE_CONSTANT;
}

enum status config_resolve(struct config *config, int world) {
    struct faults faults = faults_begin();
    derive_max_steps(config);
    derive_schedule(config);
    if (!config->train.seq_len)
        config->train.seq_len = config->model.n_positions;
    enum status status = faults_take(&faults, batches_derive(config, world));
    if (status == STATUS_OK)
        status = config_derive_run_folder(config);
    for (int i = 0; i < N_RULES && status == STATUS_OK; i++)
        status = faults_take(&faults, rules[i].check(config));
    return faults_end(&faults, status, NULL);
}

enum status config_require_training(const struct config *config) {
    if (config->data.train.n > 0)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: data.train names no token shards; create them with ./train tokenize, then set "
                "\"data\": {\"train\": \"corpus/train-*.bin\"}",
                config->source);
}

bool config_compute_type(const struct config *config, enum dtype *type) {
    static const enum dtype types[] = {[CONFIG_COMPUTE_FP32] = DTYPE_F32,
                                       [CONFIG_COMPUTE_BF16] = DTYPE_BF16,
                                       [CONFIG_COMPUTE_FP16] = DTYPE_F16};
    if (config->precision.compute == CONFIG_COMPUTE_AUTO)
        return false;
    *type = types[config->precision.compute];
    return true;
}

int64_t config_decay_steps(const struct config *config) {
    return config->scheduler.decay_steps ? config->scheduler.decay_steps : config->train.max_steps;
}

bool config_scales_losses(const struct config *config) {
    if (config->fp16.loss_scaling == CONFIG_LOSS_SCALING_AUTO)
        return config->precision.compute == CONFIG_COMPUTE_FP16;
    return config->fp16.loss_scaling == CONFIG_LOSS_SCALING_ON;
}
