#include "model/gpt_config.h"

#include <limits.h>
#include <string.h>

#define LARGEST_MODEL 0x1p50 // limit of check_sizes's estimate of the number of weights

#define FIELD(member, kind, name_of_option, ...)                                                             \
    {                                                                                                        \
        .name = #member, .option = "model." name_of_option, .offset = offsetof(struct gpt_config, member),   \
        .type = FIELD_##kind, __VA_ARGS__                                                                    \
    }
#define SCALING(member, kind, key, types, ...)                                                               \
    FIELD(rope.member, kind, "rope_scaling." key, .hf = key, .rope_types = types, ##__VA_ARGS__)
enum { LINEAR = 1 << ROPE_LINEAR, LLAMA3 = 1 << ROPE_LLAMA3, YARN = 1 << ROPE_YARN };
const struct gpt_field gpt_fields[] = {
    FIELD(n_layer, SIZE, "n_layer", .hf = "num_hidden_layers", .gguf = "block_count", .is_needed = true),
    FIELD(n_head, SIZE, "n_head", .hf = "num_attention_heads", .gguf = "attention.head_count",
          .is_needed = true),
    FIELD(n_embd, SIZE, "n_embd", .hf = "hidden_size", .gguf = "embedding_length", .is_needed = true),
    FIELD(vocab_size, SIZE, "vocab_size", .hf = "vocab_size", .is_needed = true),
    FIELD(n_positions, SIZE, "n_positions", .hf = "max_position_embeddings", .gguf = "context_length",
          .is_needed = true),
    FIELD(family, CHOICE, "family"),
    FIELD(n_kv_head, SIZE, "n_kv_head", .hf = "num_key_value_heads", .gguf = "attention.head_count_kv",
          .zero_is_default = true),
    FIELD(head_dim, SIZE, "head_dim", .hf = "head_dim", .gguf = "attention.key_length",
          .zero_is_default = true),
    FIELD(intermediate_size, SIZE, "intermediate_size", .hf = "intermediate_size",
          .gguf = "feed_forward_length", .is_needed = true, .zero_is_default = true),
    FIELD(norm_eps, NUMBER, "norm_eps", .hf = "rms_norm_eps", .gguf = "attention.layer_norm_rms_epsilon"),
    FIELD(qkv_bias, BOOL, "qkv_bias"),
    FIELD(o_bias, BOOL, "o_bias"),
    FIELD(qk_norm, BOOL, "qk_norm"),
    FIELD(untied, BOOL, "tied", .is_negated = true),
    FIELD(rope.theta, NUMBER, "rope_theta", .hf = "rope_theta"),
    FIELD(rope.type, CHOICE, "rope_scaling.rope_type"),
    SCALING(factor, NUMBER, "factor", LINEAR | LLAMA3 | YARN),
    SCALING(low_freq_factor, NUMBER, "low_freq_factor", LLAMA3),
    SCALING(high_freq_factor, NUMBER, "high_freq_factor", LLAMA3),
    SCALING(beta_fast, NUMBER, "beta_fast", YARN),
    SCALING(beta_slow, NUMBER, "beta_slow", YARN),
    SCALING(attention_factor, NUMBER, "attention_factor", YARN),
    SCALING(original_positions, SIZE, "original_max_position_embeddings", LLAMA3 | YARN,
            .zero_is_default = true),
    FIELD(activation, CHOICE, "activation", .first_choice = MLP_DEFAULT + 1),
    FIELD(partial_rotary_factor, NUMBER, "partial_rotary_factor", .zero_is_default = true),
    FIELD(soft_cap, NUMBER, "soft_cap"),
    FIELD(zero_init, BOOL, "zero_init"),
    FIELD(embedding_skip, BOOL, "embedding_skip")};
const char *const rope_type_names[N_ROPE_TYPES] = {"default", "linear", "llama3", "yarn"};
const int gpt_n_fields = sizeof gpt_fields / sizeof *gpt_fields;

double gpt_field_get(const struct gpt_field *field, const struct gpt_config *config) {
    const void *member = (const char *)config + field->offset;
    if (field->type == FIELD_NUMBER)
        return *(const double *)member;
    if (field->type == FIELD_BOOL)
        return *(const bool *)member != field->is_negated;
    int value;
    memcpy(&value, member, sizeof value);
    return value - field->first_choice;
}

void gpt_field_set(const struct gpt_field *field, struct gpt_config *config, double value) {
    void *member = (char *)config + field->offset;
    const int whole = (int)value + field->first_choice;
    if (field->type == FIELD_NUMBER)
        *(double *)member = value;
    else if (field->type == FIELD_BOOL)
        *(bool *)member = (value != 0) != field->is_negated;
    else
        memcpy(member, &whole, sizeof whole);
}

static int default_int(int value, int otherwise) {
    return value > 0 ? value : otherwise;
}

// Returns 4 n_embd; for the Llama family, as in Meta's code, two thirds of this, rounded up to a multiple
// of 256.
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

// Fills in transformers' defaults. With ROPE_DEFAULT, clears all fields but theta, so that unused fields do
// not make two configs differ.
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
    for (const struct gpt_field *field = gpt_fields; field < gpt_fields + gpt_n_fields; field++)
        if (field->type == FIELD_SIZE && !gpt_field_is_rope(field) && gpt_field_get(field, config) < 1)
            return FAIL(STATUS_INVALID, "the model's %s is %.0f, expected at least 1", field->name,
                        gpt_field_get(field, config));
    // The rows of linear layers and embeddings must fit an int; element counts must stay far from 2^63.
    double C = config->n_embd, rows = (double)config->vocab_size * 2 + config->n_positions;
    double heads = (double)(config->n_head + (double)config->n_kv_head) * config->head_dim;
    double F = config->intermediate_size;
    double tables = (double)config->n_value_embeddings * config->n_kv_head * config->head_dim;
    if (config->n_embd > (1 << 24) || config->n_layer > (1 << 16) || heads > 1 << 28 || F > 1 << 28 ||
        (2 * heads + 3 * F) * C * config->n_layer + rows * C + config->vocab_size * tables > LARGEST_MODEL)
        return FAIL(STATUS_INVALID, "the model is too large: its n_embd is %d, its n_layer %d",
                    config->n_embd, config->n_layer);
    return STATUS_OK;
}

// Checks head_dim and partial_rotary_factor, from which the number of rotated pairs follows.
static enum status check_rotation(const struct gpt_config *config) {
    if (config->head_dim % 2 != 0)
        return FAIL(STATUS_INVALID, "the model's head_dim %d is odd; RoPE rotates pairs", config->head_dim);
    if (!(config->partial_rotary_factor <= 1) || gpt_rotated_pairs(config) < 1)
        return FAIL(
            STATUS_INVALID,
            "the model's partial_rotary_factor is %g; for heads of %d dimensions, expected %g (one pair) to "
            "1 (all pairs)",
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
    if (x.family != y.family)
        return "family";
    for (const struct gpt_field *field = gpt_fields; field < gpt_fields + gpt_n_fields; field++)
        if (!GPT_FIELD_IS(field, zero_init) && gpt_field_get(field, &x) != gpt_field_get(field, &y))
            return field->name;
    for (int block = 0; block < x.n_layer; block++) {
        if (gpt_window(&x, block) != gpt_window(&y, block))
            return "window";
        if (gpt_has_value_embedding(&x, block) != gpt_has_value_embedding(&y, block))
            return "value_embeddings";
    }
    return NULL;
}

void gpt_config_take_context(struct gpt_config *config, const struct gpt_config *from) {
    if (config->family == FAMILY_GPT2)
        return;
    config->n_positions = from->n_positions;
    config->rope = from->rope;
    config->n_windows = from->n_windows;
    memcpy(config->windows, from->windows, sizeof config->windows);
}
