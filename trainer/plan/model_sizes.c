// An option that the config gives is never changed: a value that disagrees with it is an error.
#include "trainer/plan/model_sizes.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"

// enum mlp_activation begins with MLP_DEFAULT.
static enum config_activation activation_of(const struct gpt_config *config) {
    return (enum config_activation)((int)config->activation - 1);
}

// The options that are no numbers of the table below.
static void take_variants(struct config *config, const struct gpt_config *found) {
    config->model.qkv_bias = found->qkv_bias;
    config->model.qk_norm = found->qk_norm;
    config->model.tied = !found->untied;
    config->model.activation = activation_of(found);
    config->model.soft_cap = found->soft_cap;
    config->model.embedding_skip = found->embedding_skip;
    config->model.value_embeddings.n = found->n_value_embeddings;
    for (int i = 0; i < found->n_value_embeddings; i++)
        config->model.value_embeddings.values[i] = found->value_embeddings[i];
}

// The options that the config gives and the weights contradict.
struct contradictions {
    const struct config *config;
    bool other_context; // n_positions, RoPE and windows may differ: no tensor depends on them
    struct text list;
    int n;
};

static void compare(struct contradictions *found, const char *option, double given, double of_weights) {
    if (config_given(found->config, option) && given != of_weights)
        text_add(&found->list, "%s%s %.10g (given: %.10g)", found->n++ ? ", " : "", option, of_weights,
                 given);
}

static void compare_word(struct contradictions *found, const char *option, const char *given,
                         const char *of_weights) {
    if (config_given(found->config, option) && strcmp(given, of_weights) != 0)
        text_add(&found->list, "%s%s %s (given: %s)", found->n++ ? ", " : "", option, of_weights, given);
}

static const char *truth(bool value) {
    return value ? "true" : "false";
}

static bool same_list(const struct config_integers *given, const int *found, int n) {
    bool same = given->n == n;
    for (int i = 0; i < given->n && same; i++)
        same = given->values[i] == found[i];
    return same;
}

static void compare_list(struct contradictions *all, const char *option, const struct config_integers *given,
                         const int *found, int n) {
    if (config_given(all->config, option) && !same_list(given, found, n))
        text_add(&all->list, "%sanother %s", all->n++ ? ", " : "", option);
}

static bool gives_rope_scaling(const struct config *config) {
    static const char *const options[] = {
        "rope_type", "factor",    "low_freq_factor",  "high_freq_factor",
        "beta_fast", "beta_slow", "attention_factor", "original_max_position_embeddings"};
    bool any = false;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        char name[80];
        snprintf(name, sizeof name, "model.rope_scaling.%s", options[i]);
        any = any || config_given(config, name);
    }
    return any;
}

// The original context of scaled positions, if it is not given: that of the weights.
static void default_original(struct config *config, const struct gpt_config *found) {
    const enum config_rope_type type = config->model.rope_scaling.rope_type;
    int64_t *original = &config->model.rope_scaling.original_max_position_embeddings;
    if (*original == 0 && (type == CONFIG_ROPE_TYPE_LLAMA3 || type == CONFIG_ROPE_TYPE_YARN))
        *original = found->rope.original_positions ? found->rope.original_positions : found->n_positions;
}

// All of model.rope_scaling is the config's or the weights'.
static void take_rope_scaling(struct config *config, const struct gpt_config *found,
                              struct contradictions *all) {
    const struct rope_config *rope = &found->rope;
    const struct {
        const char *option;
        double *value, found;
    } numbers[] = {{"model.rope_scaling.factor", &config->model.rope_scaling.factor, rope->factor},
                   {"model.rope_scaling.low_freq_factor", &config->model.rope_scaling.low_freq_factor,
                    rope->low_freq_factor},
                   {"model.rope_scaling.high_freq_factor", &config->model.rope_scaling.high_freq_factor,
                    rope->high_freq_factor},
                   {"model.rope_scaling.beta_fast", &config->model.rope_scaling.beta_fast, rope->beta_fast},
                   {"model.rope_scaling.beta_slow", &config->model.rope_scaling.beta_slow, rope->beta_slow},
                   {"model.rope_scaling.attention_factor", &config->model.rope_scaling.attention_factor,
                    rope->attention_factor}};
    int64_t *original = &config->model.rope_scaling.original_max_position_embeddings;
    if (all->other_context && gives_rope_scaling(config)) {
        default_original(config, found);
        return;
    }
    compare_word(all, "model.rope_scaling.rope_type",
                 config_rope_type_name(config->model.rope_scaling.rope_type),
                 config_rope_type_name((enum config_rope_type)rope->type));
    config->model.rope_scaling.rope_type = (enum config_rope_type)rope->type;
    if (rope->type == ROPE_DEFAULT)
        return;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        compare(all, numbers[i].option, *numbers[i].value, numbers[i].found);
        *numbers[i].value = numbers[i].found;
    }
    if (*original)
        compare(all, "model.rope_scaling.original_max_position_embeddings", (double)*original,
                rope->original_positions);
    *original = rope->original_positions;
}

// What decides how positions are told apart, n_positions apart.
static void take_context(struct config *config, const struct gpt_config *found, struct contradictions *all) {
    if (!(all->other_context && config_given(config, "model.rope_theta"))) {
        compare(all, "model.rope_theta", config->model.rope_theta, found->rope.theta);
        config->model.rope_theta = found->rope.theta;
    }
    take_rope_scaling(config, found, all);
    if (all->other_context && config_given(config, "model.window"))
        return;
    compare_list(all, "model.window", &config->model.window, found->windows, found->n_windows);
    config->model.window.n = found->n_windows;
    for (int i = 0; i < found->n_windows; i++)
        config->model.window.values[i] = found->windows[i];
}

// A given partial_rotary_factor of 0 stands for the default.
static void take_modern(struct config *config, const struct gpt_config *found, struct contradictions *all) {
    if (config->model.partial_rotary_factor > 0)
        compare(all, "model.partial_rotary_factor", config->model.partial_rotary_factor,
                found->partial_rotary_factor);
    compare(all, "model.soft_cap", config->model.soft_cap, found->soft_cap);
    compare_word(all, "model.embedding_skip", truth(config->model.embedding_skip),
                 truth(found->embedding_skip));
    compare_list(all, "model.value_embeddings", &config->model.value_embeddings, found->value_embeddings,
                 found->n_value_embeddings);
    if (found->family == FAMILY_MODERN)
        config->model.partial_rotary_factor = found->partial_rotary_factor;
}

// The options of the families but GPT-2's. A given 0 stands for the default, so it agrees with whatever that
// is.
static void take_options(struct config *config, const struct gpt_config *found, struct contradictions *all) {
    const struct {
        const char *option;
        int64_t *value;
        int found;
    } sizes[] = {{"model.n_kv_head", &config->model.n_kv_head, found->n_kv_head},
                 {"model.head_dim", &config->model.head_dim, found->head_dim},
                 {"model.intermediate_size", &config->model.intermediate_size, found->intermediate_size}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (*sizes[i].value)
            compare(all, sizes[i].option, (double)*sizes[i].value, sizes[i].found);
        *sizes[i].value = sizes[i].found;
    }
    compare(all, "model.norm_eps", config->model.norm_eps, found->norm_eps);
    compare_word(all, "model.qkv_bias", truth(config->model.qkv_bias), truth(found->qkv_bias));
    compare_word(all, "model.qk_norm", truth(config->model.qk_norm), truth(found->qk_norm));
    compare_word(all, "model.tied", truth(config->model.tied), truth(!found->untied));
    compare_word(all, "model.activation", config_activation_name(config->model.activation),
                 config_activation_name(activation_of(found)));
    take_modern(config, found, all);
    config->model.norm_eps = found->norm_eps;
    take_variants(config, found);
    take_context(config, found, all);
}

enum status model_sizes_from_weights(struct config *config, const struct gpt_config *found, const char *path,
                                     bool resumes) {
    const struct {
        const char *option;
        int64_t *value;
        int found;
    } sizes[] = {{"model.n_layer", &config->model.n_layer, found->n_layer},
                 {"model.n_head", &config->model.n_head, found->n_head},
                 {"model.n_embd", &config->model.n_embd, found->n_embd},
                 {"model.vocab_size", &config->model.vocab_size, found->vocab_size},
                 {"model.n_positions", &config->model.n_positions, found->n_positions}};
    struct contradictions all = {.config = config, .other_context = !resumes && found->family != FAMILY_GPT2};
    struct gpt_config of_weights = *found;
    gpt_config_resolve(&of_weights);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (all.other_context && sizes[i].value == &config->model.n_positions &&
            config_given(config, sizes[i].option))
            continue;
        compare(&all, sizes[i].option, (double)*sizes[i].value, sizes[i].found);
        *sizes[i].value = sizes[i].found;
    }
    compare_word(&all, "model.family", config_family_name(config->model.family),
                 config_family_name((enum config_family)found->family));
    config->model.family = (enum config_family)found->family;
    if (found->family != FAMILY_GPT2)
        take_options(config, &of_weights, &all);
    enum status status = text_status(&all.list);
    if (status == STATUS_OK && all.n > 0)
        status =
            FAIL(STATUS_INVALID, "%s: the weights in %s%s have %s; leave the option%s out", config->source,
                 path, resumes ? ", which the run resumes from," : "", all.list.data, all.n > 1 ? "s" : "");
    text_free(&all.list);
    return status;
}

void model_sizes_log_context(const struct config *config, const struct gpt_config *found) {
    struct gpt_config now = config_model(config), before = now;
    struct text list = {0};
    gpt_config_take_context(&before, found);
    gpt_config_resolve(&before);
    if (!gpt_config_difference(&now, &before))
        return;
    if (now.n_positions != before.n_positions)
        text_add(&list, ", model.n_positions %d", before.n_positions);
    if (now.rope.theta != before.rope.theta)
        text_add(&list, ", model.rope_theta %g", before.rope.theta);
    before.n_positions = now.n_positions;
    before.rope.theta = now.rope.theta;
    const char *other = gpt_config_difference(&now, &before);
    if (other)
        text_add(&list, ", another model.%s", strncmp(other, "rope", 4) == 0 ? "rope_scaling" : other);
    if (text_status(&list) == STATUS_OK)
        log_info("%s: the weights were trained with%s", config->model.init_from, list.data + 1);
    status_clear();
    text_free(&list);
}

bool model_sizes_want_tokenizer(const struct config *config) {
    return config->data.tokenizer[0] && !config_given(config, "model.vocab_size") &&
           !config->model.init_from[0];
}

enum status model_sizes_from_tokenizer(struct config *config, const char *path, int n_ids) {
    if (model_sizes_want_tokenizer(config))
        config->model.vocab_size = n_ids;
    if (n_ids <= config->model.vocab_size)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: the tokenizer %s (data.tokenizer) has %d ids, more than model.vocab_size %lld",
                config->source, path, n_ids, (long long)config->model.vocab_size);
}
