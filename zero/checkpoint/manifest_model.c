#include "zero/checkpoint/manifest_model.h"

#include <string.h>

#include "options/config.h"

// ---- printing

static void add_list(struct text *out, const char *name, const int *values, int n) {
    text_add(out, ", \"%s\": [", name);
    for (int i = 0; i < n; i++)
        text_add(out, "%s%d", i ? ", " : "", values[i]);
    text_add(out, "]");
}

static void add_rope(struct text *out, const struct rope_config *rope) {
    char number[32];
    const struct {
        const char *name;
        double value;
    } fields[] = {{"theta", rope->theta},
                  {"factor", rope->factor},
                  {"low_freq_factor", rope->low_freq_factor},
                  {"high_freq_factor", rope->high_freq_factor},
                  {"beta_fast", rope->beta_fast},
                  {"beta_slow", rope->beta_slow},
                  {"attention_factor", rope->attention_factor}};
    text_add(out, ", \"rope\": {\"type\": %d, \"original_positions\": %d", (int)rope->type,
             rope->original_positions);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        text_add(out, ", \"%s\": %s", fields[i].name, text_double(number, fields[i].value));
    text_add(out, "}");
}

// enum mlp_activation begins with MLP_DEFAULT.
static void add_modern(struct text *out, const struct gpt_config *model) {
    char factor[32], cap[32];
    text_add(
        out,
        ", \"activation\": \"%s\", \"partial_rotary_factor\": %s, \"soft_cap\": %s, \"embedding_skip\": %s",
        config_activation_name((enum config_activation)((int)model->activation - 1)),
        text_double(factor, model->partial_rotary_factor), text_double(cap, model->soft_cap),
        model->embedding_skip ? "true" : "false");
    add_list(out, "value_embeddings", model->value_embeddings, model->n_value_embeddings);
}

void manifest_add_model(struct text *out, const struct params *params) {
    const struct gpt_config *model = &params->config;
    char number[32];
    text_add(out,
             "  \"model\": {\"n_layer\": %d, \"n_head\": %d, \"n_embd\": %d, \"vocab_size\": %d, "
             "\"n_positions\": %d, \"n_weights\": %zu",
             model->n_layer, model->n_head, model->n_embd, model->vocab_size, model->n_positions,
             params->n_weights);
    if (model->family != FAMILY_GPT2) {
        text_add(out,
                 ", \"family\": \"%s\", \"n_kv_head\": %d, \"head_dim\": %d, \"intermediate_size\": %d, "
                 "\"norm_eps\": %s, \"qkv_bias\": %s, \"qk_norm\": %s, \"tied\": %s",
                 config_family_name((enum config_family)model->family), model->n_kv_head, model->head_dim,
                 model->intermediate_size, text_double(number, model->norm_eps),
                 model->qkv_bias ? "true" : "false", model->qk_norm ? "true" : "false",
                 model->untied ? "false" : "true");
        add_rope(out, &model->rope);
        add_list(out, "window", model->windows, model->n_windows);
        if (model->family == FAMILY_MODERN)
            add_modern(out, model);
    }
    text_add(out, "},\n");
}

// ---- reading

static enum status get_int(const cJSON *object, const char *key, int minimum, int maximum, const char *source,
                           int *out) {
    int64_t value;
    TRY(json_get_integer(object, key, minimum, maximum, source, &value));
    *out = (int)value;
    return STATUS_OK;
}

static enum status get_bool(const cJSON *object, const char *key, const char *source, bool *out) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!cJSON_IsBool(item))
        return FAIL(STATUS_INVALID, "%s: \"%s\" is missing or not true or false", source, key);
    *out = cJSON_IsTrue(item);
    return STATUS_OK;
}

static enum status read_rope(const cJSON *object, const char *source, struct rope_config *rope) {
    const cJSON *item;
    int type;
    TRY(json_get_object(object, "rope", source, &item));
    TRY(get_int(item, "type", ROPE_DEFAULT, ROPE_YARN, source, &type));
    rope->type = (enum rope_type)type;
    TRY(get_int(item, "original_positions", 0, 1048576, source, &rope->original_positions));
    TRY(json_get_number(item, "theta", source, &rope->theta));
    TRY(json_get_number(item, "factor", source, &rope->factor));
    TRY(json_get_number(item, "low_freq_factor", source, &rope->low_freq_factor));
    TRY(json_get_number(item, "high_freq_factor", source, &rope->high_freq_factor));
    TRY(json_get_number(item, "beta_fast", source, &rope->beta_fast));
    TRY(json_get_number(item, "beta_slow", source, &rope->beta_slow));
    return json_get_number(item, "attention_factor", source, &rope->attention_factor);
}

static enum status read_list(const cJSON *object, const char *key, int n_most, const char *source,
                             int *values, int *n) {
    const cJSON *list, *item;
    TRY(json_get_array(object, key, source, &list));
    cJSON_ArrayForEach(item, list) {
        if (*n == n_most || !cJSON_IsNumber(item) || !(item->valuedouble >= 0) ||
            !(item->valuedouble <= 1048576))
            return FAIL(STATUS_INVALID, "%s: \"%s\" is not a list of at most %d numbers up to 1048576",
                        source, key, n_most);
        values[(*n)++] = (int)item->valuedouble;
    }
    return STATUS_OK;
}

static enum status read_modern(const cJSON *object, const char *source, struct gpt_config *model) {
    const char *activation;
    TRY(json_get_string(object, "activation", source, &activation));
    model->activation =
        strcmp(activation, config_activation_name(CONFIG_ACTIVATION_GELU)) == 0 ? MLP_GELU : MLP_RELU_SQUARED;
    if (model->activation != MLP_GELU &&
        strcmp(activation, config_activation_name(CONFIG_ACTIVATION_RELU_SQUARED)) != 0)
        return FAIL(STATUS_INVALID, "%s: \"activation\" is \"%.40s\", expected \"relu_squared\" or \"gelu\"",
                    source, activation);
    TRY(json_get_number(object, "partial_rotary_factor", source, &model->partial_rotary_factor));
    TRY(json_get_number(object, "soft_cap", source, &model->soft_cap));
    if (!(model->soft_cap >= 0 && model->soft_cap <= 1e6))
        return FAIL(STATUS_INVALID, "%s: \"soft_cap\" is %g, expected 0 to 1e6", source, model->soft_cap);
    TRY(get_bool(object, "embedding_skip", source, &model->embedding_skip));
    return read_list(object, "value_embeddings", MODEL_VALUE_EMBEDDINGS_MOST, source, model->value_embeddings,
                     &model->n_value_embeddings);
}

static enum status read_family(const cJSON *object, const char *source, struct gpt_config *model) {
    const char *name;
    bool tied = false;
    TRY(json_get_string(object, "family", source, &name));
    const bool modern = strcmp(name, config_family_name(CONFIG_FAMILY_MODERN)) == 0;
    if (!modern && strcmp(name, config_family_name(CONFIG_FAMILY_LLAMA)) != 0)
        return FAIL(STATUS_INVALID, "%s: \"family\" is \"%.40s\", expected \"%s\" or \"%s\"", source, name,
                    config_family_name(CONFIG_FAMILY_LLAMA), config_family_name(CONFIG_FAMILY_MODERN));
    model->family = modern ? FAMILY_MODERN : FAMILY_LLAMA;
    TRY(get_int(object, "n_kv_head", 1, 1024, source, &model->n_kv_head));
    TRY(get_int(object, "head_dim", 1, 65536, source, &model->head_dim));
    TRY(get_int(object, "intermediate_size", 1, 1048576, source, &model->intermediate_size));
    TRY(json_get_number(object, "norm_eps", source, &model->norm_eps));
    TRY(get_bool(object, "qkv_bias", source, &model->qkv_bias));
    TRY(get_bool(object, "qk_norm", source, &model->qk_norm));
    TRY(get_bool(object, "tied", source, &tied));
    model->untied = !tied;
    TRY(read_rope(object, source, &model->rope));
    TRY(read_list(object, "window", MODEL_WINDOWS_MOST, source, model->windows, &model->n_windows));
    return modern ? read_modern(object, source, model) : STATUS_OK;
}

enum status manifest_read_model(const cJSON *object, const char *source, struct gpt_config *model) {
    *model = (struct gpt_config){0};
    TRY(get_int(object, "n_layer", 1, 1024, source, &model->n_layer));
    TRY(get_int(object, "n_head", 1, 1024, source, &model->n_head));
    TRY(get_int(object, "n_embd", 1, 65536, source, &model->n_embd));
    TRY(get_int(object, "vocab_size", 1, 8388608, source, &model->vocab_size));
    TRY(get_int(object, "n_positions", 1, 1048576, source, &model->n_positions));
    return cJSON_HasObjectItem(object, "family") ? read_family(object, source, model) : STATUS_OK;
}
