#include "options/model_rules.h"

#include "options/option.h"

static enum config_activation activation_of(enum config_family family) {
    return family == CONFIG_FAMILY_GPT2    ? CONFIG_ACTIVATION_GELU
           : family == CONFIG_FAMILY_LLAMA ? CONFIG_ACTIVATION_SWIGLU
                                           : CONFIG_ACTIVATION_RELU_SQUARED;
}

void model_rules_take_defaults(struct config *c) {
    const bool modern = c->model.family == CONFIG_FAMILY_MODERN;
    const struct {
        const char *option;
        bool *value, initial;
    } flags[] = {{"model.qk_norm", &c->model.qk_norm, modern},
                 {"model.tied", &c->model.tied, !modern},
                 {"model.zero_init", &c->model.zero_init, modern},
                 {"model.embedding_skip", &c->model.embedding_skip, modern}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (!option_given(flags[i].option, c))
            *flags[i].value = flags[i].initial;
    if (!option_given("model.activation", c))
        c->model.activation = activation_of(c->model.family);
    if (!option_given("model.soft_cap", c))
        c->model.soft_cap = modern ? 15 : 0;
}

enum status model_rules_heads(const struct config *c) {
    const long long kv_heads = (long long)c->model.n_kv_head;
    if (kv_heads > 0 && c->model.n_head % kv_heads != 0)
        return FAIL(STATUS_INVALID, "%s: model.n_head %lld is not a multiple of model.n_kv_head %lld",
                    c->source, (long long)c->model.n_head, kv_heads);
    if (c->model.head_dim > 0 || c->model.n_embd % c->model.n_head == 0)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s: model.n_embd %lld is not a multiple of model.n_head %lld", c->source,
                (long long)c->model.n_embd, (long long)c->model.n_head);
}

// RoPE rotates pairs.
enum status model_rules_rotation(const struct config *c) {
    const long long width = c->model.head_dim ? c->model.head_dim : c->model.n_embd / c->model.n_head;
    const double factor = c->model.partial_rotary_factor;
    if (c->model.family == CONFIG_FAMILY_GPT2)
        return STATUS_OK;
    if (width % 2 != 0)
        return FAIL(STATUS_INVALID,
                    "%s: a head is %lld wide, but rotary positions rotate pairs; make model.head_dim even",
                    c->source, width);
    if (factor > 0 && (double)width * factor < 2)
        return FAIL(STATUS_INVALID,
                    "%s: model.partial_rotary_factor %g of heads that are %lld wide is less than one pair; "
                    "expected at least %g",
                    c->source, factor, width, 2 / (double)width);
    return STATUS_OK;
}

// Each rope_type has its options; a resolved config has the others at their defaults, or 0.
enum status model_rules_rope_scaling(const struct config *c) {
    enum {
        LINEAR = 1 << CONFIG_ROPE_TYPE_LINEAR,
        LLAMA3 = 1 << CONFIG_ROPE_TYPE_LLAMA3,
        YARN = 1 << CONFIG_ROPE_TYPE_YARN
    };
    const struct {
        const char *option;
        double value, initial;
        unsigned types; // that have it
        const char *named;
    } all[] = {{"factor", c->model.rope_scaling.factor, 1, LINEAR | LLAMA3 | YARN, "linear, llama3 or yarn"},
               {"low_freq_factor", c->model.rope_scaling.low_freq_factor, 1, LLAMA3, "llama3"},
               {"high_freq_factor", c->model.rope_scaling.high_freq_factor, 4, LLAMA3, "llama3"},
               {"beta_fast", c->model.rope_scaling.beta_fast, 32, YARN, "yarn"},
               {"beta_slow", c->model.rope_scaling.beta_slow, 1, YARN, "yarn"},
               {"attention_factor", c->model.rope_scaling.attention_factor, 0, YARN, "yarn"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].value != 0 && all[i].value != all[i].initial &&
            !(all[i].types & 1u << c->model.rope_scaling.rope_type))
            return FAIL(
                STATUS_INVALID,
                "%s: model.rope_scaling.%s is %g, but rope_type is %s, which has none; leave it out, or set "
                "model.rope_scaling.rope_type to %s",
                c->source, all[i].option, all[i].value,
                config_rope_type_name(c->model.rope_scaling.rope_type), all[i].named);
    const bool low_first = c->model.rope_scaling.rope_type != CONFIG_ROPE_TYPE_LLAMA3 ||
                           c->model.rope_scaling.low_freq_factor < c->model.rope_scaling.high_freq_factor,
               slow_first = c->model.rope_scaling.rope_type != CONFIG_ROPE_TYPE_YARN ||
                            c->model.rope_scaling.beta_slow < c->model.rope_scaling.beta_fast;
    if (low_first && slow_first)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s: model.rope_scaling.%s must be less than %s", c->source,
                low_first ? "beta_slow" : "low_freq_factor", low_first ? "beta_fast" : "high_freq_factor");
}

enum status model_rules_family(const struct config *c) {
    enum { LLAMA = 1 << CONFIG_FAMILY_LLAMA, MODERN = 1 << CONFIG_FAMILY_MODERN };
    const bool rotates_all = c->model.family == CONFIG_FAMILY_LLAMA && c->model.partial_rotary_factor == 1;
    const struct {
        const char *option;
        bool is_set;
        unsigned families; // that have it
    } all[] = {
        {"model.n_kv_head", c->model.n_kv_head != 0, LLAMA | MODERN},
        {"model.head_dim", c->model.head_dim != 0, LLAMA | MODERN},
        {"model.intermediate_size", c->model.intermediate_size != 0, LLAMA | MODERN},
        {"model.rope_theta", c->model.rope_theta != 0, LLAMA | MODERN},
        {"model.norm_eps", c->model.norm_eps != 0, LLAMA | MODERN},
        {"model.qkv_bias", c->model.qkv_bias, LLAMA},
        {"model.qk_norm", c->model.qk_norm, LLAMA | MODERN},
        {"model.tied=false", !c->model.tied, LLAMA | MODERN},
        {"model.window", c->model.window.n > 0, LLAMA | MODERN},
        {"model.rope_scaling", c->model.rope_scaling.rope_type != CONFIG_ROPE_TYPE_DEFAULT, LLAMA | MODERN},
        {"model.partial_rotary_factor", c->model.partial_rotary_factor != 0 && !rotates_all, MODERN},
        {"model.soft_cap", c->model.soft_cap != 0, MODERN},
        {"model.zero_init", c->model.zero_init, MODERN},
        {"model.embedding_skip", c->model.embedding_skip, MODERN},
        {"model.value_embeddings", c->model.value_embeddings.n > 0, MODERN}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!all[i].is_set || all[i].families & 1u << c->model.family)
            continue;
        return FAIL(STATUS_INVALID,
                    "%s: model.family is %s, which has no %s; leave it out, or set model.family=%s%s",
                    c->source, config_family_name(c->model.family), all[i].option,
                    all[i].families & LLAMA ? "llama" : "modern",
                    all[i].families == (LLAMA | MODERN) ? " or modern" : "");
    }
    return STATUS_OK;
}

enum status model_rules_activation(const struct config *c) {
    const enum config_activation own = activation_of(c->model.family), is = c->model.activation;
    const bool modern = c->model.family == CONFIG_FAMILY_MODERN;
    if (is == own || (modern && is == CONFIG_ACTIVATION_GELU))
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: model.family is %s, whose model.activation is %s%s, not %s; leave it out", c->source,
                config_family_name(c->model.family), config_activation_name(own), modern ? " or gelu" : "",
                config_activation_name(is));
}

enum status model_rules_window(const struct config *c) {
    if (c->model.window.n <= c->model.n_layer)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: model.window has %d entries, but model.n_layer is %lld; expected one for each block, or "
                "fewer, which are repeated",
                c->source, c->model.window.n, (long long)c->model.n_layer);
}

enum status model_rules_value_embeddings(const struct config *c) {
    const struct config_integers *blocks = &c->model.value_embeddings;
    for (int i = 0; i < blocks->n; i++) {
        if (blocks->values[i] >= c->model.n_layer)
            return FAIL(
                STATUS_INVALID,
                "%s: model.value_embeddings has block %lld, but model.n_layer is %lld; expected 0 to %lld",
                c->source, (long long)blocks->values[i], (long long)c->model.n_layer,
                (long long)c->model.n_layer - 1);
        for (int k = 0; k < i; k++)
            if (blocks->values[k] == blocks->values[i])
                return FAIL(STATUS_INVALID, "%s: model.value_embeddings has block %lld twice; leave one out",
                            c->source, (long long)blocks->values[i]);
    }
    return STATUS_OK;
}
