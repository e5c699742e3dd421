#include "options/unused.h"

#include <string.h>

struct dependence {
    const char *options; // separated by spaces
    // `options` have an effect only with these values of the option `choice`; after "!", with all but these.
    const char *choice, *values;
    const char *rest;    // values of `options` that are accepted even without effect; NULL: their defaults
    const char *decides; // the option that determines `choice` if `choice` is not given, or NULL
    const char *why;     // the reason in the message; NULL: add_why makes one
};

#define FAMILIES  "llama modern"
#define ROPE_TYPE "model.rope_scaling.rope_type"
#define NEEDS(options, choice, words)                                                                        \
    { options, choice, words, NULL, NULL, NULL }
static const struct dependence dependences[] = {
    {"comm.backend", "device", "!cpu", "auto mpi", NULL, "which has no NCCL"},
    {"attention", "precision.compute", "!fp32", "auto flash", NULL, NULL},
    {"offload_activations", "recompute", "block", NULL, NULL,
     "and it moves the block inputs that only recompute=block keeps (as DeepSpeed's cpu_checkpointing needs "
     "activation checkpointing)"},
    NEEDS("model.n_kv_head model.head_dim model.intermediate_size model.rope_theta model.norm_eps "
          "model.qk_norm model.tied model.window model.partial_rotary_factor " ROPE_TYPE,
          "model.family", FAMILIES),
    NEEDS("model.qkv_bias model.o_bias", "model.family", "llama"),
    NEEDS("model.soft_cap model.zero_init model.embedding_skip model.value_embeddings", "model.family",
          "modern"),
    {"model.partial_rotary_factor", "model.family", "modern", "0 1", NULL,
     "which has no model.partial_rotary_factor other than 1"},
    {"model.activation", "model.family", FAMILIES, "gelu", NULL, NULL},
    {"model.activation", "model.family", "gpt2 modern", "swiglu", NULL, NULL},
    {"model.activation", "model.family", "gpt2 llama", "relu_squared gelu", NULL, NULL},
    NEEDS("model.rope_scaling.factor", ROPE_TYPE, "linear llama3 yarn"),
    NEEDS("model.rope_scaling.low_freq_factor model.rope_scaling.high_freq_factor", ROPE_TYPE, "llama3"),
    NEEDS("model.rope_scaling.beta_fast model.rope_scaling.beta_slow model.rope_scaling.attention_factor",
          ROPE_TYPE, "yarn"),
    NEEDS("model.rope_scaling.original_max_position_embeddings", ROPE_TYPE, "llama3 yarn"),
    {"data.val_split", "data.val", "[]", NULL, NULL, "which is evaluated in its place"},
    NEEDS("train.min_batch_size", "train.train_batch_size", "auto"),
    {"train.max_batch_size", "train.noise_scale_every", "!0", NULL, "train.train_batch_size",
     "and the batch grows by the noise scale, which is not measured"},
    NEEDS("train.sample_tokens train.sample_prompt", "train.sample_every", "!0"),
    NEEDS("train.spike_window train.spike_threshold", "train.on_spike", "!off"),
    NEEDS("train.spike_window", "train.spike_threshold", "!0"),
    NEEDS("train.max_spikes", "train.on_spike", "skip"),
    NEEDS("checkpoint.keep_every", "checkpoint.keep", "!0"),
    NEEDS("run.audit_key", "run.audit_every", "!0"),
    NEEDS("train.ema.decay", "train.ema.type", "exponential"),
    NEEDS("eval.every eval.limit", "eval.tasks", "![]"),
    {"fp16.loss_scale fp16.initial_scale_power fp16.loss_scale_window fp16.hysteresis fp16.min_loss_scale",
     "fp16.loss_scaling", "on", NULL, "precision.compute", NULL},
    NEEDS("fp16.initial_scale_power fp16.loss_scale_window fp16.hysteresis fp16.min_loss_scale",
          "fp16.loss_scale", "0"),
    NEEDS("optimizer.betas", "optimizer.type", "!sgd"),
    NEEDS("optimizer.eps", "optimizer.type", "adamw adam muon schedulefree_adamw"),
    NEEDS("optimizer.momentum", "optimizer.type", "sgd"),
    NEEDS("optimizer.muon_momentum optimizer.muon_scale optimizer.adamw_lr", "optimizer.type", "muon"),
    {"optimizer.state_dtype", "optimizer.momentum", "!0", NULL, "optimizer.type", "so there are no moments"},
    NEEDS("zero_optimization.offload_optimizer.ratio", "zero_optimization.offload_optimizer.device", "cpu"),
    {"zero_optimization.offload_param.device", "zero_optimization.stage", "3", NULL, NULL,
     "and it is valid only with ZeRO stage 3: at lower stages every rank keeps all parameters on its device"},
    {"scheduler.type", "optimizer.type", "!schedulefree_adamw", "constant", NULL,
     "which needs a constant rate after warm-up, as its average takes the place of a schedule"},
    {"scheduler.decay_steps", "train.max_minutes", "0", NULL, NULL, "from which the schedule follows"},
    {"scheduler.decay_steps scheduler.min_lr_ratio", "scheduler.type", "!constant", NULL, "optimizer.type",
     NULL},
    {"scheduler.decay_ratio", "scheduler.type", "warmup-stable-decay", NULL, "optimizer.type", NULL},
};
enum { N_DEPENDENCES = sizeof dependences / sizeof *dependences };

// The next row that names the option, or the first if `row` is NULL. Returns NULL if there is none.
static const struct dependence *next_row(const struct dependence *row, const struct option *option) {
    const char *name = option_full_name(option);
    for (row = row ? row + 1 : dependences; row < dependences + N_DEPENDENCES; row++)
        if (text_has_word(row->options, name, strlen(name)))
            return row;
    return NULL;
}

// ---- choices that follow from other options

void unused_derive_choices(struct config *config) {
    if (config->optimizer.type == CONFIG_OPTIMIZER_SCHEDULEFREE_ADAMW &&
        !option_given("scheduler.type", config))
        config->scheduler.type = CONFIG_SCHEDULE_CONSTANT;
    if (config->train.train_batch_size == CONFIG_AUTO && !option_given("train.noise_scale_every", config))
        config->train.noise_scale_every = 10;
}

bool config_scales_losses(const struct config *config) {
    if (config->fp16.loss_scaling == CONFIG_LOSS_SCALING_AUTO)
        return config->precision.compute == CONFIG_COMPUTE_FP16;
    return config->fp16.loss_scaling == CONFIG_LOSS_SCALING_ON;
}

// Appends the value as a word of the table, without quotes. Loss scaling's "auto" is resolved.
static void add_value(const struct option *option, const struct config *config, struct text *out) {
    if (option == option_find("fp16.loss_scaling"))
        text_add(out, "%s", config_scales_losses(config) ? "on" : "off");
    else if (option->type == OPTION_CHOICE)
        text_add(out, "%s", option_word(option, config));
    else if (option->type == OPTION_AUTO_INTEGER && *(int64_t *)option_value(option, config) == CONFIG_AUTO)
        text_add(out, "auto");
    else
        option_print(option, config, out);
}

static bool has_value(const char *words, const struct option *option, const struct config *config) {
    struct text value = {0};
    add_value(option, config, &value);
    const bool found = text_has_word(words, value.data, value.length);
    text_free(&value);
    return found;
}

static bool is_used(const struct dependence *row, const struct config *config) {
    const bool all_but = row->values[0] == '!';
    return has_value(row->values + all_but, option_find(row->choice), config) != all_but;
}

// Whether the option is set without effect.
static bool is_unused(const struct dependence *row, const struct option *option,
                      const struct config *config) {
    return config->given[option - options] && !is_used(row, config) &&
           !(row->rest ? has_value(row->rest, option, config) : option_is_default(option, config));
}

// True if the value of `option` was refused already, or the value of an option that determines whether it has
// an effect (row->choice, row->decides).
static bool is_faulty(const struct dependence *row, const struct option *option, const bool *faulty) {
    return faulty[option - options] || faulty[option_find(row->choice) - options] ||
           (row->decides && faulty[option_find(row->decides) - options]);
}

// ---- refusing options without effect

// Joins words: "llama", "llama or modern", "linear, llama3 or yarn".
static void add_words(const char *words, struct text *out) {
    for (const char *c = words; *c; c++)
        text_add(out, *c == ' ' ? (strchr(c + 1, ' ') ? ", " : " or ") : "%c", *c);
}

// Appends why the option has no effect, to follow "... but CHOICE is VALUE, ".
static void add_why(const struct dependence *row, const struct option *option, const struct config *config,
                    struct text *out) {
    if (row->why) {
        text_add(out, "%s", row->why);
    } else if (row->rest) {
        text_add(out, "whose %s is ", option_full_name(option));
        add_words(row->rest, out);
        text_add(out, ", not ");
        add_value(option, config, out);
    } else if (strcmp(row->choice, "model.family") == 0) {
        text_add(out, "which has no %s", option_full_name(option));
    } else {
        text_add(out, "%s",
                 strcmp(row->choice, ROPE_TYPE) == 0               ? "which has none"
                 : option_find(row->choice)->type == OPTION_CHOICE ? "which does not use it"
                                                                   : "so it has no effect");
    }
}

// Appends the setting that gives the option an effect: "optimizer.type=sgd", "model.family=llama or modern".
// If all but some values do: "another train.on_spike", or only "eval.tasks" if that is empty or 0 now.
static void add_way(const struct dependence *row, const struct config *config, struct text *out) {
    const bool is_empty = has_value("0 []", option_find(row->choice), config);
    if (row->values[0] == '!') {
        text_add(out, "%s%s", is_empty ? "" : "another ", row->choice);
        return;
    }
    text_add(out, "%s=", row->choice);
    add_words(row->values, out);
}

static enum status refuse(const struct dependence *row, const struct option *option,
                          const struct config *config) {
    // rope_type and its options are in one section, so the message omits the section.
    const char *shown = strcmp(row->choice, ROPE_TYPE) == 0 ? "rope_type" : row->choice;
    struct text message = {0};
    text_add(&message, "%s: %s is ", config->source, option_full_name(option));
    option_print(option, config, &message);
    text_add(&message, ", but %s is ", shown);
    add_value(option_find(row->choice), config, &message);
    text_add(&message, ", ");
    add_why(row, option, config, &message);
    text_add(&message, "; leave it out");
    if (!row->rest)
        text_add(&message, " (its default is %s)",
                 option->initial ? option->initial : option->choices[option->chosen]);
    text_add(&message, ", or set ");
    add_way(row, config, &message);
    enum status status = FAIL(STATUS_INVALID, "%s", message.data);
    text_free(&message);
    return status;
}

enum status unused_check(const struct option *option, const struct config *config, const bool *faulty) {
    for (const struct dependence *row = NULL; (row = next_row(row, option));) {
        // If the configuration sets train.ema.type=none, it may set train.ema.decay too.
        const bool is_off = strcmp(row->choice, "train.ema.type") == 0 && option_given(row->choice, config);
        if (!is_off && !(faulty && is_faulty(row, option, faulty)) && is_unused(row, option, config))
            return refuse(row, option, config);
    }
    return STATUS_OK;
}

// ---- dropping options without effect

// Resets the option and appends the reason to `why`. Marks the option as overridden, so that options that
// depend on it are dropped too.
static void reset(const struct dependence *row, const struct option *option, struct config *config,
                  struct text *why) {
    text_add(why, "%s is ", row->choice);
    add_value(option_find(row->choice), config, why);
    option_reset(option, config);
    config->given[option - options] = false;
    config->overridden[option - options] = true;
    unused_derive_choices(config);
}

static bool is_replaced(const struct dependence *row, const struct config *config) {
    return config->overridden[option_find(row->choice) - options] ||
           (row->decides && config->overridden[option_find(row->decides) - options]);
}

static void drop(const struct option *option, struct config *config, const bool *faulty, bool is_printed) {
    for (const struct dependence *row = NULL; (row = next_row(row, option));) {
        if (!config->given[option - options] || config->overridden[option - options] ||
            is_faulty(row, option, faulty) || is_used(row, config) ||
            !(is_printed || is_replaced(row, config)))
            continue;
        if ((is_printed || row->rest) && !is_unused(row, option, config))
            continue; // keep a value that is accepted without effect
        text_add(&config->replaced, "%s%s=", config->replaced.length ? ", " : "", option_full_name(option));
        option_print(option, config, &config->replaced);
        text_add(&config->replaced, " (");
        reset(row, option, config, &config->replaced);
        text_add(&config->replaced, ")");
    }
}

void unused_drop(struct config *config, const bool *faulty, bool is_printed) {
    unused_derive_choices(config);
    for (int i = 0; i < n_options; i++) // an option comes after the choice that it depends on
        drop(&options[i], config, faulty, is_printed);
}

bool unused_reset(const struct option *option, struct config *config, struct text *why) {
    for (const struct dependence *row = NULL; (row = next_row(row, option));)
        if (is_unused(row, option, config)) {
            reset(row, option, config, why);
            return true;
        }
    return false;
}

bool unused_on_resume(const struct option *option, const struct config *config) {
    for (const struct dependence *row = NULL; (row = next_row(row, option));)
        if (option_find(row->choice)->resume != FREE && !is_used(row, config))
            return true;
    return false;
}
