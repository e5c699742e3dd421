#include "options/unused.h"

#include <stdlib.h>
#include <string.h>

struct dependence {
    const char *option, *choice; // the option has an effect only with some values of the choice,
    const char *values;          // these words; after "!", all but these
    const char *rest;            // values that ask for nothing; NULL: the default
    const char *decides;         // what decides the choice where that is left open, or NULL
    const char *why;             // NULL: the common sentence
};

#define FAMILIES "llama modern"
static const struct dependence dependences[] = {
    {"comm.backend", "device", "!cpu", "auto mpi", NULL, "which has no NCCL"},
    {"attention", "precision.compute", "!fp32", "auto flash", NULL, NULL},
    {"offload_activations", "recompute", "block", NULL, NULL,
     "and it moves the block inputs that only recompute=block keeps (as DeepSpeed's cpu_checkpointing needs "
     "activation checkpointing)"},
    {"model.n_kv_head", "model.family", FAMILIES, NULL, NULL, NULL},
    {"model.head_dim", "model.family", FAMILIES, NULL, NULL, NULL},
    {"model.intermediate_size", "model.family", FAMILIES, NULL, NULL, NULL},
    {"model.rope_theta", "model.family", FAMILIES, NULL, NULL, NULL},
    {"model.norm_eps", "model.family", FAMILIES, NULL, NULL, NULL},
    {"model.qkv_bias", "model.family", "llama", NULL, NULL, NULL},
    {"model.o_bias", "model.family", "llama", NULL, NULL, NULL},
    {"model.qk_norm", "model.family", FAMILIES, NULL, NULL, NULL},
    {"model.tied", "model.family", FAMILIES, NULL, NULL, NULL},
    {"model.window", "model.family", FAMILIES, NULL, NULL, NULL},
    {"model.activation", "model.family", FAMILIES, "gelu", NULL, "whose activation is gelu"},
    {"model.activation", "model.family", "gpt2 modern", "swiglu", NULL, "whose activation is swiglu"},
    {"model.partial_rotary_factor", "model.family", FAMILIES, NULL, NULL, NULL},
    {"model.partial_rotary_factor", "model.family", "gpt2 modern", "0 1", NULL, NULL},
    {"model.soft_cap", "model.family", "modern", NULL, NULL, NULL},
    {"model.zero_init", "model.family", "modern", NULL, NULL, NULL},
    {"model.embedding_skip", "model.family", "modern", NULL, NULL, NULL},
    {"model.value_embeddings", "model.family", "modern", NULL, NULL, NULL},
    {"model.rope_scaling.rope_type", "model.family", FAMILIES, NULL, NULL, NULL},
    {"model.rope_scaling.factor", "model.rope_scaling.rope_type", "linear llama3 yarn", NULL, NULL, NULL},
    {"model.rope_scaling.low_freq_factor", "model.rope_scaling.rope_type", "llama3", NULL, NULL, NULL},
    {"model.rope_scaling.high_freq_factor", "model.rope_scaling.rope_type", "llama3", NULL, NULL, NULL},
    {"model.rope_scaling.beta_fast", "model.rope_scaling.rope_type", "yarn", NULL, NULL, NULL},
    {"model.rope_scaling.beta_slow", "model.rope_scaling.rope_type", "yarn", NULL, NULL, NULL},
    {"model.rope_scaling.attention_factor", "model.rope_scaling.rope_type", "yarn", NULL, NULL, NULL},
    {"model.rope_scaling.original_max_position_embeddings", "model.rope_scaling.rope_type", "llama3 yarn",
     NULL, NULL, NULL},
    {"data.val_split", "data.val", "[]", NULL, NULL, "which is evaluated in its place"},
    {"train.min_batch_size", "train.train_batch_size", "auto", NULL, NULL, NULL},
    {"train.max_batch_size", "train.noise_scale_every", "!0", NULL, "train.train_batch_size",
     "and the batch grows by the noise scale, which is not measured"},
    {"train.sample_tokens", "train.sample_every", "!0", NULL, NULL, NULL},
    {"train.sample_prompt", "train.sample_every", "!0", NULL, NULL, NULL},
    {"train.spike_window", "train.on_spike", "!off", NULL, NULL, NULL},
    {"train.spike_window", "train.spike_threshold", "!0", NULL, NULL, NULL},
    {"train.spike_threshold", "train.on_spike", "!off", NULL, NULL, NULL},
    {"train.max_spikes", "train.on_spike", "skip", NULL, NULL, NULL},
    {"train.ema.decay", "train.ema.type", "exponential", NULL, NULL, NULL},
    {"eval.every", "eval.tasks", "![]", NULL, NULL, NULL},
    {"eval.limit", "eval.tasks", "![]", NULL, NULL, NULL},
    {"fp16.loss_scale", "fp16.loss_scaling", "on", NULL, "precision.compute", NULL},
    {"fp16.initial_scale_power", "fp16.loss_scaling", "on", NULL, "precision.compute", NULL},
    {"fp16.loss_scale_window", "fp16.loss_scaling", "on", NULL, "precision.compute", NULL},
    {"fp16.hysteresis", "fp16.loss_scaling", "on", NULL, "precision.compute", NULL},
    {"fp16.min_loss_scale", "fp16.loss_scaling", "on", NULL, "precision.compute", NULL},
    {"fp16.initial_scale_power", "fp16.loss_scale", "0", NULL, NULL, NULL},
    {"fp16.loss_scale_window", "fp16.loss_scale", "0", NULL, NULL, NULL},
    {"fp16.hysteresis", "fp16.loss_scale", "0", NULL, NULL, NULL},
    {"fp16.min_loss_scale", "fp16.loss_scale", "0", NULL, NULL, NULL},
    {"optimizer.betas", "optimizer.type", "!sgd", NULL, NULL, NULL},
    {"optimizer.eps", "optimizer.type", "adamw adam muon schedulefree_adamw", NULL, NULL, NULL},
    {"optimizer.momentum", "optimizer.type", "sgd", NULL, NULL, NULL},
    {"optimizer.muon_momentum", "optimizer.type", "muon", NULL, NULL, NULL},
    {"optimizer.muon_scale", "optimizer.type", "muon", NULL, NULL, NULL},
    {"optimizer.adamw_lr", "optimizer.type", "muon", NULL, NULL, NULL},
    {"optimizer.state_dtype", "optimizer.momentum", "!0", NULL, "optimizer.type", "so there are no moments"},
    {"zero_optimization.stage3_param_persistence_threshold", "zero_optimization.stage", "3", NULL, NULL,
     NULL},
    {"zero_optimization.stage3_prefetch_bucket_size", "zero_optimization.stage", "3", NULL, NULL, NULL},
    {"zero_optimization.stage3_prefetch_bucket_size", "zero_optimization.overlap_comm", "true", "0 50000000",
     NULL, NULL},
    {"zero_optimization.offload_optimizer.ratio", "zero_optimization.offload_optimizer.device", "cpu", NULL,
     NULL, NULL},
    {"zero_optimization.offload_param.device", "zero_optimization.stage", "3", NULL, NULL,
     "and it is valid only with ZeRO stage 3: below it every rank keeps all parameters on its device"},
    {"scheduler.type", "optimizer.type", "!schedulefree_adamw", "constant", NULL,
     "which needs a constant rate after warm-up, as its average takes the place of a schedule"},
    {"scheduler.decay_steps", "scheduler.type", "!constant", NULL, "optimizer.type", NULL},
    {"scheduler.decay_steps", "train.max_minutes", "0", NULL, NULL, "from which the schedule follows"},
    {"scheduler.min_lr_ratio", "scheduler.type", "!constant", NULL, "optimizer.type", NULL},
    {"scheduler.decay_ratio", "scheduler.type", "warmup-stable-decay", NULL, "optimizer.type", NULL},
};
enum { N_DEPENDENCES = sizeof dependences / sizeof *dependences };

// The value as words of the table, without quotes. Loss scaling is resolved.
static void add_value(const char *name, const struct config *config, struct text *out) {
    const struct option *option = option_find(name);
    if (strcmp(name, "fp16.loss_scaling") == 0)
        text_add(out, "%s", config_scales_losses(config) ? "on" : "off");
    else if (option->type == OPTION_CHOICE)
        text_add(out, "%s", option_word(option, config));
    else if (option->type == OPTION_AUTO_INTEGER && *(int64_t *)option_value(option, config) == CONFIG_AUTO)
        text_add(out, "auto");
    else
        option_print(option, config, out);
}

static bool has_value(const char *words, const char *name, const struct config *config) {
    struct text value = {0};
    add_value(name, config, &value);
    const bool found = text_has_word(words, value.data, value.length);
    text_free(&value);
    return found;
}

static bool is_used(const struct dependence *row, const struct config *config) {
    const bool all_but = row->values[0] == '!';
    return has_value(row->values + all_but, row->choice, config) != all_but;
}

static bool asks_for_nothing(const struct dependence *row, const struct config *config) {
    return row->rest ? has_value(row->rest, row->option, config)
                     : option_is_default(option_find(row->option), config);
}

static bool is_faulty(const struct dependence *row, const bool *faulty) {
    return faulty[option_find(row->option) - options] || faulty[option_find(row->choice) - options] ||
           (row->decides && faulty[option_find(row->decides) - options]);
}

// ---- refused

// "optimizer.type=sgd", "model.family=llama or modern"; of all but some values none is named.
static void add_way(const struct dependence *row, const struct config *config, struct text *out) {
    const bool is_empty = has_value("0 []", row->choice, config);
    if (row->values[0] == '!') {
        text_add(out, "%s%s", is_empty ? "" : "another ", row->choice);
        return;
    }
    text_add(out, "%s=", row->choice);
    for (const char *word = row->values; *word; word++)
        text_add(out, *word == ' ' ? (strchr(word + 1, ' ') ? ", " : " or ") : "%c", *word);
}

static enum status check(const struct dependence *row, const struct config *config) {
    struct text value = {0}, choice = {0}, initial = {0}, way = {0};
    const struct option *option = option_find(row->option);
    if (!option_given(row->option, config) || is_used(row, config) || asks_for_nothing(row, config))
        return STATUS_OK;
    option_print(option, config, &value);
    add_value(row->choice, config, &choice);
    add_way(row, config, &way);
    if (!row->rest)
        text_add(&initial, " (its default is %s)",
                 option->initial ? option->initial : option->choices[option->chosen]);
    enum status status = FAIL(STATUS_INVALID, "%s: %s is %s, but %s is %s, %s; leave it out%s, or set %s",
                              config->source, row->option, value.data, row->choice, choice.data,
                              row->why                                          ? row->why
                              : option_find(row->choice)->type == OPTION_CHOICE ? "which does not use it"
                                                                                : "so it has no effect",
                              initial.length ? initial.data : "", way.data);
    text_free(&value);
    text_free(&choice);
    text_free(&initial);
    text_free(&way);
    return status;
}

enum status unused_check(const struct config *config, const bool *faulty, struct faults *faults) {
    for (const struct dependence *row = dependences; row < dependences + N_DEPENDENCES; row++) {
        const bool from_files =
            strncmp(row->option, "model.", 6) == 0 && option_given("model.init_from", config);
        if (!faulty || (!is_faulty(row, faulty) && !from_files))
            TRY(faults_take(faults, check(row, config)));
    }
    return STATUS_OK;
}

// ---- dropped

// The option counts as decided by the command line, so that what depends on it is dropped too.
static void reset(const struct dependence *row, struct config *config, struct text *why) {
    const struct option *option = option_find(row->option);
    text_add(why, "%s is ", row->choice);
    add_value(row->choice, config, why);
    option_reset(option, config);
    config->given[option - options] = false;
    config->overridden[option - options] = true;
    rules_derive_choices(config);
}

static bool is_overridden(const char *name, const struct config *config) {
    return name && config->overridden[option_find(name) - options];
}

void unused_drop(struct config *config, const bool *faulty, bool is_printed) {
    rules_derive_choices(config);
    for (const struct dependence *row = dependences; row < dependences + N_DEPENDENCES; row++) {
        const bool replaced = is_overridden(row->choice, config) || is_overridden(row->decides, config);
        if (!option_given(row->option, config) || is_overridden(row->option, config) ||
            is_faulty(row, faulty) || is_used(row, config) ||
            (is_printed || row->rest ? asks_for_nothing(row, config) : false) || !(is_printed || replaced))
            continue;
        text_add(&config->replaced, "%s%s=", config->replaced.length ? ", " : "", row->option);
        option_print(option_find(row->option), config, &config->replaced);
        text_add(&config->replaced, " (");
        reset(row, config, &config->replaced);
        text_add(&config->replaced, ")");
    }
}

const struct option *unused_reset_first(struct config *config, struct text *why) {
    for (const struct dependence *row = dependences; row < dependences + N_DEPENDENCES; row++)
        if (option_given(row->option, config) && !is_used(row, config) && !asks_for_nothing(row, config)) {
            reset(row, config, why);
            return option_find(row->option);
        }
    return NULL;
}

bool unused_on_resume(const struct option *option, const struct config *config) {
    for (const struct dependence *row = dependences; row < dependences + N_DEPENDENCES; row++)
        if (option_find(row->option) == option && option_find(row->choice)->resume != FREE &&
            !is_used(row, config))
            return true;
    return false;
}
