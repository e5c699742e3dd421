#include "model/gpt_config.h"

#include <limits.h>
#include <string.h>

#define LARGEST_MODEL 0x1p50 // weights, approximately

static int default_int(int value, int otherwise) {
    return value > 0 ? value : otherwise;
}

// GPT-2's, and Llama's (Meta's code): two thirds of 4 n_embd, up to a multiple of 256.
static int default_intermediate_size(const struct gpt_config *config) {
    int64_t C = config->n_embd, size = config->family == FAMILY_LLAMA ? (8 * C / 3 + 255) / 256 * 256 : 4 * C;
    return size < INT_MAX ? (int)size : INT_MAX;
}

static void set_default(double *value, double otherwise) {
    if (!(*value > 0))
        *value = otherwise;
}

static enum mlp_activation default_activation(enum model_family family) {
    static const enum mlp_activation defaults[N_FAMILIES] = {
        [FAMILY_GPT2] = MLP_GELU, [FAMILY_LLAMA] = MLP_SWIGLU, [FAMILY_MODERN] = MLP_RELU_SQUARED};
    return defaults[family];
}

// Defaults are those of transformers. What is not used is cleared, so that configs can be compared.
static void resolve_rope(struct rope_config *rope, int n_positions, double theta) {
    set_default(&rope->theta, theta);
    if (rope->type == ROPE_DEFAULT) {
        *rope = (struct rope_config){.theta = rope->theta};
        return;
    }
    set_default(&rope->factor, 1);
    set_default(&rope->low_freq_factor, 1);
    set_default(&rope->high_freq_factor, 4);
    set_default(&rope->beta_fast, 32);
    set_default(&rope->beta_slow, 1);
    rope->original_positions = default_int(rope->original_positions, n_positions);
}

void gpt_config_resolve(struct gpt_config *config) {
    const int C = config->n_embd;
    config->n_kv_head = default_int(config->n_kv_head, config->n_head);
    config->head_dim = default_int(config->head_dim, config->n_head > 0 ? C / config->n_head : 0);
    config->intermediate_size = default_int(config->intermediate_size, default_intermediate_size(config));
    set_default(&config->norm_eps, 1e-5);
    if (gpt_has_rope(config))
        resolve_rope(&config->rope, config->n_positions, config->family == FAMILY_MODERN ? 1024 : 10000);
    else
        config->rope = (struct rope_config){.type = ROPE_DEFAULT};
    if (config->activation == MLP_DEFAULT)
        config->activation = default_activation(config->family);
    set_default(&config->partial_rotary_factor, config->family == FAMILY_MODERN ? 0.5 : 1);
}

static enum status check_sizes(const struct gpt_config *config) {
    const struct {
        const char *name;
        int value;
    } sizes[] = {{"n_layer", config->n_layer},         {"n_head", config->n_head},
                 {"n_embd", config->n_embd},           {"vocab_size", config->vocab_size},
                 {"n_positions", config->n_positions}, {"n_kv_head", config->n_kv_head},
                 {"head_dim", config->head_dim},       {"intermediate_size", config->intermediate_size}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < 1)
            return FAIL(STATUS_INVALID, "the model's %s is %d, expected at least 1", sizes[i].name,
                        sizes[i].value);
    // Rows of a wide linear and of the embeddings are ints; counts of elements must stay far from 2^63.
    double C = config->n_embd, rows = (double)config->vocab_size * 2 + config->n_positions;
    double heads = (double)(config->n_head + (double)config->n_kv_head) * config->head_dim;
    double F = config->intermediate_size;
    double tables = (double)config->n_value_embeddings * config->n_kv_head * config->head_dim;
    if (config->n_embd > (1 << 24) || config->n_layer > (1 << 16) || heads > 1 << 28 || F > 1 << 28 ||
        (2 * heads + 3 * F) * C * config->n_layer + rows * C + config->vocab_size * tables > LARGEST_MODEL)
        return FAIL(STATUS_INVALID, "the model's n_embd %d or n_layer %d is too large", config->n_embd,
                    config->n_layer);
    return STATUS_OK;
}

// Of rotary positions.
static enum status check_rotation(const struct gpt_config *config) {
    if (config->head_dim % 2 != 0)
        return FAIL(STATUS_INVALID, "the model's head_dim %d is odd; RoPE rotates pairs", config->head_dim);
    if (!(config->partial_rotary_factor <= 1) || gpt_rotated_pairs(config) < 1)
        return FAIL(STATUS_INVALID,
                    "the model's partial_rotary_factor %g rotates no pair of a head of %d, or more than all; "
                    "expected %g to 1",
                    config->partial_rotary_factor, config->head_dim, 2.0 / config->head_dim);
    return STATUS_OK;
}

static enum status check_value_embeddings(const struct gpt_config *config) {
    for (int i = 0; i < config->n_value_embeddings; i++) {
        const int block = config->value_embeddings[i];
        if (block < 0 || block >= config->n_layer)
            return FAIL(STATUS_INVALID, "the model's value_embeddings has block %d, expected 0 to %d", block,
                        config->n_layer - 1);
        for (int k = 0; k < i; k++)
            if (config->value_embeddings[k] == block)
                return FAIL(STATUS_INVALID, "the model's value_embeddings has block %d twice", block);
    }
    return STATUS_OK;
}

enum status gpt_config_check(const struct gpt_config *config) {
    TRY(check_sizes(config));
    TRY(check_value_embeddings(config));
    if (config->n_head % config->n_kv_head != 0)
        return FAIL(STATUS_INVALID, "the model's n_head %d is not a multiple of its n_kv_head %d",
                    config->n_head, config->n_kv_head);
    if (config->family != FAMILY_GPT2)
        return check_rotation(config);
    if (config->n_embd % config->n_head != 0)
        return FAIL(STATUS_INVALID, "the model's n_embd %d is not a multiple of its n_head %d",
                    config->n_embd, config->n_head);
    return STATUS_OK;
}

enum status gpt_config_check_read(const struct gpt_config *config, const char *source) {
    char message[STATUS_MESSAGE_BYTES];
    if (gpt_config_check(config) == STATUS_OK)
        return STATUS_OK;
    strcpy(message, status_message());
    status_clear();
    return FAIL(STATUS_INVALID, "%s: %s", source, message);
}

const char *gpt_config_difference(const struct gpt_config *a, const struct gpt_config *b) {
    struct gpt_config x = *a, y = *b;
    gpt_config_resolve(&x);
    gpt_config_resolve(&y);
#define COMPARE(field)                                                                                       \
    if (x.field != y.field)                                                                                  \
        return #field;
    COMPARE(family)
    COMPARE(n_layer)
    COMPARE(n_head)
    COMPARE(n_embd)
    COMPARE(vocab_size)
    COMPARE(n_positions)
    COMPARE(n_kv_head)
    COMPARE(head_dim)
    COMPARE(intermediate_size)
    COMPARE(norm_eps)
    COMPARE(qkv_bias)
    COMPARE(qk_norm)
    COMPARE(untied)
    COMPARE(rope.theta)
    COMPARE(rope.type)
    COMPARE(rope.factor)
    COMPARE(rope.low_freq_factor)
    COMPARE(rope.high_freq_factor)
    COMPARE(rope.beta_fast)
    COMPARE(rope.beta_slow)
    COMPARE(rope.attention_factor)
    COMPARE(rope.original_positions)
    COMPARE(activation)
    COMPARE(partial_rotary_factor)
    COMPARE(soft_cap)
    COMPARE(embedding_skip)
    for (int block = 0; block < x.n_layer; block++) {
        if (gpt_window(&x, block) != gpt_window(&y, block))
            return "window";
        if (gpt_has_value_embedding(&x, block) != gpt_has_value_embedding(&y, block))
            return "value_embeddings";
    }
    return NULL;
#undef COMPARE
}

void gpt_config_take_context(struct gpt_config *config, const struct gpt_config *from) {
    if (config->family == FAMILY_GPT2)
        return;
    config->n_positions = from->n_positions;
    config->rope = from->rope;
    config->n_windows = from->n_windows;
    memcpy(config->windows, from->windows, sizeof config->windows);
}
