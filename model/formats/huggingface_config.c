// Reads config.json: GPT-2, and the Llama family under the names that Hugging Face has for its members.
#include "model/formats/huggingface.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"

#define LARGEST_CONFIG    ((size_t)1 << 20) // bytes; a larger file is not a config.json
#define LAYERNORM_EPSILON 1e-5              // of GPT-2
#define EPSILON_RELATIVE  1e-6              // 1e-5 is not exact in any binary type

// A key that changes what the model computes. Only one value is supported; absent or null means that value.
static enum status check_flag(const cJSON *object, const char *key, bool expected, const char *source) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item || cJSON_IsNull(item) || (expected ? cJSON_IsTrue(item) : cJSON_IsFalse(item)))
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s: \"%s\" must be %s; other variants cannot be read", source, key,
                expected ? "true" : "false");
}

static enum status get_size(const cJSON *object, const char *key, const char *source, int *out) {
    int64_t value = 0;
    TRY(json_get_integer(object, key, 1, INT_MAX, source, &value));
    *out = (int)value;
    return STATUS_OK;
}

static void *member_of(const struct gpt_field *field, struct gpt_config *config) {
    return (char *)config + field->offset;
}

// ---- GPT-2

static enum status check_gpt2(const cJSON *object, const char *source) {
    const char *activation = "gelu_new";
    if (cJSON_GetObjectItemCaseSensitive(object, "activation_function"))
        TRY(json_get_string(object, "activation_function", source, &activation));
    if (strcmp(activation, "gelu_new") != 0)
        return FAIL(STATUS_INVALID, "%s: \"activation_function\" is \"%s\", expected \"gelu_new\"", source,
                    activation);
    double epsilon = LAYERNORM_EPSILON;
    if (cJSON_GetObjectItemCaseSensitive(object, "layer_norm_epsilon"))
        TRY(json_get_number(object, "layer_norm_epsilon", source, &epsilon));
    if (!(fabs(epsilon / LAYERNORM_EPSILON - 1) < EPSILON_RELATIVE))
        return FAIL(STATUS_INVALID, "%s: \"layer_norm_epsilon\" is %g, expected %g", source, epsilon,
                    LAYERNORM_EPSILON);
    if (cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(object, "tie_word_embeddings")))
        return FAIL(STATUS_INVALID,
                    "%s: \"tie_word_embeddings\" must be true; here GPT-2's lm_head always shares the "
                    "embedding's weights, so a model with an lm_head of its own cannot be read",
                    source);
    TRY(check_flag(object, "tie_word_embeddings", true, source));
    TRY(check_flag(object, "scale_attn_weights", true, source));
    TRY(check_flag(object, "scale_attn_by_inverse_layer_idx", false, source));
    return check_flag(object, "add_cross_attention", false, source);
}

static enum status read_gpt2(const cJSON *object, const char *source, struct gpt_config *config) {
    TRY(check_gpt2(object, source));
    for (int i = 0; i < GPT_N_SIZES; i++)
        TRY(get_size(object, gpt_fields[i].name, source, member_of(&gpt_fields[i], config)));
    if (config->n_embd % config->n_head != 0)
        return FAIL(STATUS_INVALID, "%s: \"n_embd\" %d is not a multiple of \"n_head\" %d", source,
                    config->n_embd, config->n_head);
    const cJSON *inner = cJSON_GetObjectItemCaseSensitive(object, "n_inner");
    if (inner && !cJSON_IsNull(inner) &&
        !(cJSON_IsNumber(inner) && inner->valuedouble == 4.0 * config->n_embd))
        return FAIL(STATUS_INVALID, "%s: \"n_inner\" must be absent, null or 4 x n_embd = %lld", source,
                    4 * (long long)config->n_embd);
    return STATUS_OK;
}

// ---- the Llama family

// A number that may be absent or null.
static enum status get_optional(const cJSON *object, const char *key, const char *source, double *value) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return !item || cJSON_IsNull(item) ? STATUS_OK : json_get_number(object, key, source, value);
}

// The same, greater than 0.
static enum status get_positive(const cJSON *object, const char *key, const char *source, double *value) {
    double found = 1;
    TRY(get_optional(object, key, source, &found));
    if (!(found > 0 && isfinite(found)))
        return FAIL(STATUS_INVALID, "%s: \"%s\" is %g, expected a number greater than 0", source, key, found);
    return get_optional(object, key, source, value);
}

// Variants that this program has not: a key that must be absent, and a factor that must be 1.
static enum status check_absent(const cJSON *object, const char *key, const char *source) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item || cJSON_IsNull(item))
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s: has \"%s\", which is not supported; expected a model without", source,
                key);
}

static enum status check_one(const cJSON *object, const char *key, const char *source) {
    double value = 1;
    TRY(get_optional(object, key, source, &value));
    return value == 1
               ? STATUS_OK
               : FAIL(STATUS_INVALID, "%s: \"%s\" is %g, expected 1 or none: other variants cannot be read",
                      source, key, value);
}

static enum status get_optional_size(const cJSON *object, const char *key, const char *source, int *value) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return !item || cJSON_IsNull(item) ? STATUS_OK : get_size(object, key, source, value);
}

// The fields that the table has keys of: those of RoPE, or the others.
static enum status read_fields(const cJSON *object, const char *source, bool of_rope,
                               struct gpt_config *config) {
    for (const struct gpt_field *field = gpt_fields; field < gpt_fields + gpt_n_fields; field++) {
        void *value = member_of(field, config);
        if (field->hf && gpt_field_is_rope(field) == of_rope)
            TRY(field->type == FIELD_NUMBER ? get_positive(object, field->hf, source, value)
                : field->is_needed          ? get_size(object, field->hf, source, value)
                                            : get_optional_size(object, field->hf, source, value));
    }
    return STATUS_OK;
}

static enum status read_rope_type(const cJSON *scaling, const char *source, enum rope_type *type) {
    const char *name = "default";
    const char *key = cJSON_GetObjectItemCaseSensitive(scaling, "rope_type") ? "rope_type" : "type";
    if (cJSON_GetObjectItemCaseSensitive(scaling, key))
        TRY(json_get_string(scaling, key, source, &name));
    else if (cJSON_GetObjectItemCaseSensitive(scaling, "factor"))
        return FAIL(STATUS_INVALID, "%s: has a \"factor\" of RoPE, but no \"rope_type\" beside it", source);
    for (int i = 0; i < N_ROPE_TYPES; i++)
        if (strcmp(rope_type_names[i], name) == 0) {
            *type = (enum rope_type)i;
            return STATUS_OK;
        }
    return FAIL(STATUS_INVALID, "%s: \"%s\" is \"%s\", expected default, linear, llama3 or yarn", source, key,
                name);
}

// "rope_theta" and "rope_scaling"; since transformers 5 both in "rope_parameters".
static enum status find_scaling(const cJSON *object, const char *source, const cJSON **scaling) {
    static const char *const names[] = {"rope_parameters", "rope_scaling"};
    *scaling = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !*scaling; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, names[i]);
        if (!item || cJSON_IsNull(item))
            continue;
        bool one_for_all = cJSON_IsObject(item);
        for (const cJSON *member = one_for_all ? item->child : NULL; member; member = member->next)
            one_for_all = one_for_all && !cJSON_IsObject(member);
        if (!one_for_all)
            return FAIL(STATUS_INVALID,
                        "%s: \"%s\" must be one object of rope_type, factor and the like, the same "
                        "for all layers",
                        source, names[i]);
        *scaling = item;
    }
    return STATUS_OK;
}

static enum status read_rope(const cJSON *object, const char *source, struct gpt_config *config) {
    struct rope_config *rope = &config->rope;
    const cJSON *scaling;
    *rope = (struct rope_config){.theta = 10000};
    TRY(find_scaling(object, source, &scaling));
    TRY(get_positive(object, "rope_theta", source, &rope->theta));
    TRY(check_one(object, "partial_rotary_factor", source));
    if (!scaling)
        return STATUS_OK;
    TRY(get_positive(scaling, "rope_theta", source, &rope->theta));
    TRY(check_one(scaling, "partial_rotary_factor", source));
    TRY(read_rope_type(scaling, source, &rope->type));
    if (rope->type == ROPE_DEFAULT)
        return STATUS_OK;
    if (rope->type == ROPE_YARN) { // YaRN's variants
        TRY(check_absent(scaling, "mscale", source));
        TRY(check_absent(scaling, "mscale_all_dim", source));
        TRY(check_flag(scaling, "truncate", true, source));
    }
    TRY(json_get_number(scaling, "factor", source, &rope->factor));
    return read_fields(scaling, source, true, config);
}

// Whether "layer_types" gives the layer a window; without it, the layers from "max_window_layers" on have
// one.
static enum status read_layer_type(const cJSON *types, int layer, int first, const char *source,
                                   bool *has_window) {
    const char *type = cJSON_GetStringValue(cJSON_GetArrayItem(types, layer));
    *has_window = types ? type && strcmp(type, "sliding_attention") == 0 : layer >= first;
    if (!types || *has_window || (type && strcmp(type, "full_attention") == 0))
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: \"layer_types\" is %s%.60s for layer %d, expected full_attention or sliding_attention",
                source, type ? "" : "no text", type ? type : "", layer);
}

// Qwen's windows: with "use_sliding_window" and a "sliding_window".
static enum status read_windows(const cJSON *object, const char *source, struct gpt_config *config) {
    const cJSON *types = cJSON_GetObjectItemCaseSensitive(object, "layer_types");
    int64_t first = 28; // transformers' default
    int window = 0;
    bool has_window, any = false;
    TRY(get_optional_size(object, "sliding_window", source, &window));
    if (!window || !cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, "use_sliding_window")))
        return STATUS_OK;
    if (cJSON_GetObjectItemCaseSensitive(object, "max_window_layers"))
        TRY(json_get_integer(object, "max_window_layers", 0, INT_MAX, source, &first));
    if (cJSON_IsNull(types))
        types = NULL;
    if (types && cJSON_GetArraySize(types) != config->n_layer)
        return FAIL(STATUS_INVALID, "%s: \"layer_types\" has %d entries, expected %d, one for each layer",
                    source, cJSON_GetArraySize(types), config->n_layer);
    if (config->n_layer > MODEL_WINDOWS_MOST)
        return FAIL(STATUS_INVALID, "%s: windows are read for at most %d layers, the model has %d", source,
                    MODEL_WINDOWS_MOST, config->n_layer);
    for (int i = 0; i < config->n_layer; i++) {
        TRY(read_layer_type(types, i, (int)first, source, &has_window));
        config->windows[i] = has_window ? window : 0;
        any = any || has_window;
    }
    config->n_windows = any ? config->n_layer : 0;
    return STATUS_OK;
}

static enum status read_llama(const cJSON *object, const char *source, const char *model_type,
                              struct gpt_config *config) {
    const char *activation = "silu";
    config->family = FAMILY_LLAMA;
    config->qkv_bias = strcmp(model_type, "qwen2") == 0;
    config->qk_norm = strcmp(model_type, "qwen3") == 0;
    config->norm_eps = 1e-6;
    if (config->qk_norm)
        config->head_dim = 128; // transformers' default for Qwen3
    TRY(read_fields(object, source, false, config));
    config->untied = !cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, "tie_word_embeddings"));
    if (cJSON_GetObjectItemCaseSensitive(object, "hidden_act"))
        TRY(json_get_string(object, "hidden_act", source, &activation));
    if (strcmp(activation, "silu") != 0)
        return FAIL(STATUS_INVALID, "%s: \"hidden_act\" is \"%s\", expected \"silu\"", source, activation);
    if (!config->qkv_bias) // Qwen2 has it whatever the key says
        TRY(check_flag(object, "attention_bias", false, source));
    TRY(check_flag(object, "mlp_bias", false, source));
    TRY(check_absent(object, "quantization_config", source));
    TRY(read_rope(object, source, config));
    return strcmp(model_type, "llama") == 0 ? STATUS_OK : read_windows(object, source, config);
}

// ---- config.json

static enum status read_config(const cJSON *object, const char *source, struct gpt_config *config) {
    static const char *const llamas[] = {"llama", "qwen2", "qwen3"};
    const char *model_type;
    if (!cJSON_IsObject(object))
        return FAIL(STATUS_INVALID, "%s: expected an object", source);
    TRY(json_get_string(object, "model_type", source, &model_type));
    if (strcmp(model_type, "gpt2") == 0)
        return read_gpt2(object, source, config);
    for (size_t i = 0; i < sizeof llamas / sizeof *llamas; i++)
        if (strcmp(model_type, llamas[i]) == 0) {
            TRY(read_llama(object, source, model_type, config));
            gpt_config_resolve(config);
            return gpt_config_check_read(config, source);
        }
    return FAIL(STATUS_INVALID, "%s: \"model_type\" is \"%s\", expected gpt2, llama, qwen2 or qwen3", source,
                model_type);
}

enum status huggingface_read_config(const char *folder, struct gpt_config *config) {
    char *path = file_path("%s/config.json", folder), *text = NULL;
    *config = (struct gpt_config){0};
    size_t length = 0;
    cJSON *object = NULL;
    enum status status = file_read(path, LARGEST_CONFIG, &text, &length);
    if (status == STATUS_OK)
        status = json_parse(text, length, path, &object);
    if (status == STATUS_OK)
        status = read_config(object, path, config);
    cJSON_Delete(object);
    free(text);
    free(path);
    return status;
}
