// Reads the config.json of Hugging Face's GPT-2 and Llama-family models.
#include "model/formats/huggingface.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"

#define LARGEST_CONFIG    ((size_t)1 << 20) // bytes; a larger file is not a config.json
#define LAYERNORM_EPSILON 1e-5              // the epsilon of GPT-2
#define EPSILON_RELATIVE  1e-6 // relative tolerance for 1e-5, which no binary type represents exactly

// Checks a key that changes what the model computes. Only one value is supported; absent or null means that
// value.
static enum status check_flag(const cJSON *object, const char *key, bool expected, const char *source) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item || cJSON_IsNull(item) || (expected ? cJSON_IsTrue(item) : cJSON_IsFalse(item)))
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s: \"%s\" must be %s; other variants cannot be read", source, key,
                expected ? "true" : "false");
}

// The names that transformers has for the same activation. The first is the usual one.
#define TANH_GELU "gelu_new gelu_pytorch_tanh gelu_python_tanh gelu_fast gelu_accurate"
#define SILU      "silu swish"
static enum status check_activation(const cJSON *object, const char *key, const char *names,
                                    const char *source) {
    const char *name;
    if (!cJSON_GetObjectItemCaseSensitive(object, key))
        return STATUS_OK;
    TRY(json_get_string(object, key, source, &name));
    if (text_has_word(names, name, strlen(name)))
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s: \"%s\" is \"%s\", expected \"%.*s\"", source, key, name,
                (int)strcspn(names, " "), names);
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
    TRY(check_activation(object, "activation_function", TANH_GELU, source));
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

// Reads a number. If it is absent or null, *value is unchanged.
static enum status get_optional(const cJSON *object, const char *key, const char *source, double *value) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return !item || cJSON_IsNull(item) ? STATUS_OK : json_get_number(object, key, source, value);
}

// Reads a number that must be greater than 0. If it is absent or null, *value is unchanged.
static enum status get_positive(const cJSON *object, const char *key, const char *source, double *value) {
    double found = 1;
    TRY(get_optional(object, key, source, &found));
    if (!(found > 0 && isfinite(found)))
        return FAIL(STATUS_INVALID, "%s: \"%s\" is %g, expected a number greater than 0", source, key, found);
    return get_optional(object, key, source, value);
}

// Refuses an unsupported variant: the key must be absent or null.
static enum status check_absent(const cJSON *object, const char *key, const char *source) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item || cJSON_IsNull(item))
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s: has \"%s\", which is not supported; expected a model without it", source,
                key);
}

// Refuses an unsupported variant: the key must be absent, null or 1.
static enum status check_one(const cJSON *object, const char *key, const char *source) {
    double value = 1;
    TRY(get_optional(object, key, source, &value));
    return value == 1 ? STATUS_OK
                      : FAIL(STATUS_INVALID,
                             "%s: \"%s\" is %g, expected 1 or no such key: other variants cannot be read",
                             source, key, value);
}

static enum status get_optional_size(const cJSON *object, const char *key, const char *source, int *value) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return !item || cJSON_IsNull(item) ? STATUS_OK : get_size(object, key, source, value);
}

// Reads the fields that have a key of config.json in gpt_fields.
//   of_rope  true: the fields of struct rope_config; false: the others
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
        return FAIL(STATUS_INVALID, "%s: has a RoPE \"factor\", but no \"rope_type\" beside it", source);
    for (int i = 0; i < N_ROPE_TYPES; i++)
        if (strcmp(rope_type_names[i], name) == 0) {
            *type = (enum rope_type)i;
            return STATUS_OK;
        }
    return FAIL(STATUS_INVALID, "%s: \"%s\" is \"%s\", expected default, linear, llama3 or yarn", source, key,
                name);
}

// Finds the object with RoPE's settings. Refuses one that has settings per type of layer.
//   name     "rope_parameters" or "rope_scaling"
//   scaling  [out] the object; NULL if it is absent, null or empty
static enum status find_scaling(const cJSON *object, const char *name, const char *source,
                                const cJSON **scaling) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    bool one_for_all = cJSON_IsObject(item);
    *scaling = NULL;
    if (!item || cJSON_IsNull(item))
        return STATUS_OK;
    for (const cJSON *member = item->child; member; member = member->next)
        one_for_all = one_for_all && !cJSON_IsObject(member);
    if (!one_for_all)
        return FAIL(
            STATUS_INVALID,
            "%s: \"%s\" must be one object of rope_type, factor and the like, the same for all layers",
            source, name);
    *scaling = item->child ? item : NULL;
    return STATUS_OK;
}

static double yarn_attention(double factor, double mscale) {
    return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

// Reads RoPE's settings from "rope_parameters" or "rope_scaling".
//   scaling  the object; NULL: config.json has neither, so RoPE is not scaled
//   theta    RoPE's base, if the object has no "rope_theta"
static enum status read_scaling(const cJSON *scaling, double theta, const char *source,
                                struct gpt_config *config) {
    struct rope_config *rope = &config->rope;
    double mscale = 0, mscale_all_dim = 0;
    *rope = (struct rope_config){.theta = theta};
    if (!scaling)
        return STATUS_OK;
    json_warn_of_unknown(
        scaling,
        "rope_theta rope_type type factor low_freq_factor high_freq_factor beta_fast beta_slow "
        "attention_factor original_max_position_embeddings partial_rotary_factor mscale "
        "mscale_all_dim truncate finetuned",
        source);
    TRY(get_positive(scaling, "rope_theta", source, &rope->theta));
    TRY(check_one(scaling, "partial_rotary_factor", source));
    TRY(read_rope_type(scaling, source, &rope->type));
    if (rope->type == ROPE_DEFAULT)
        return STATUS_OK;
    TRY(json_get_number(scaling, "factor", source, &rope->factor));
    TRY(read_fields(scaling, source, true, config));
    if (rope->type != ROPE_YARN)
        return STATUS_OK;
    TRY(check_flag(scaling, "truncate", true, source));
    TRY(get_positive(scaling, "mscale", source, &mscale));
    TRY(get_positive(scaling, "mscale_all_dim", source, &mscale_all_dim));
    // As in transformers, mscale and mscale_all_dim have an effect only together.
    if (mscale > 0 && mscale_all_dim > 0 && !(rope->attention_factor > 0))
        rope->attention_factor =
            yarn_attention(rope->factor, mscale) / yarn_attention(rope->factor, mscale_all_dim);
    return STATUS_OK;
}

// Reads RoPE's settings: "rope_theta" and "rope_scaling" or, since transformers 5, "rope_parameters".
static enum status read_rope(const cJSON *object, const char *source, struct gpt_config *config) {
    const cJSON *parameters, *scaling;
    double theta = 10000;
    TRY(find_scaling(object, "rope_parameters", source, &parameters));
    TRY(find_scaling(object, "rope_scaling", source, &scaling));
    TRY(get_positive(object, "rope_theta", source, &theta));
    TRY(check_one(object, "partial_rotary_factor", source));
    TRY(read_scaling(parameters ? parameters : scaling, theta, source, config));
    if (!parameters || !scaling)
        return STATUS_OK;
    const struct gpt_config by_parameters = *config;
    TRY(read_scaling(scaling, theta, source, config));
    const char *difference = gpt_config_difference(&by_parameters, config);
    if (!difference)
        return STATUS_OK;
    return FAIL(
        STATUS_INVALID,
        "%s: has \"rope_parameters\" and a \"rope_scaling\" that differ in %s; transformers 5 uses "
        "\"rope_scaling\" alone, with a theta of %g. Remove \"rope_scaling\" to use \"rope_parameters\"; "
        "to use both, move the keys of \"rope_scaling\" into \"rope_parameters\" first",
        source, difference, config->rope.theta);
}

// Finds whether a layer has a window.
//   types  the value of "layer_types"; NULL: the layers from `first` on have a window
//   first  the value of "max_window_layers"
static enum status read_layer_type(const cJSON *types, int layer, int first, const char *source,
                                   bool *has_window) {
    const char *type = cJSON_GetStringValue(cJSON_GetArrayItem(types, layer));
    *has_window = types ? type && strcmp(type, "sliding_attention") == 0 : layer >= first;
    if (!types || *has_window || (type && strcmp(type, "full_attention") == 0))
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: \"layer_types\" is %s%.60s for layer %d, expected full_attention or sliding_attention",
                source, type ? "" : "not a string", type ? type : "", layer);
}

// Reads Qwen's windows. If "use_sliding_window" is true, some layers have a window of "sliding_window"
// positions: those that read_layer_type finds.
static enum status read_windows(const cJSON *object, const char *source, struct gpt_config *config) {
    const cJSON *types = cJSON_GetObjectItemCaseSensitive(object, "layer_types");
    int64_t first = 28; // transformers' default of "max_window_layers"
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

// Reads Mistral's window, which all layers have. A window as long as the context has no effect.
static enum status read_window(const cJSON *object, const char *source, struct gpt_config *config) {
    int window = cJSON_HasObjectItem(object, "sliding_window") ? 0 : 4096; // transformers' default
    TRY(get_optional_size(object, "sliding_window", source, &window));
    config->n_windows = window > 0 && window < config->n_positions;
    config->windows[0] = config->n_windows ? window : 0;
    return STATUS_OK;
}

static enum status read_llama(const cJSON *object, const char *source, const char *model_type,
                              struct gpt_config *config) {
    const cJSON *kv_heads = cJSON_GetObjectItemCaseSensitive(object, "num_key_value_heads");
    config->family = FAMILY_LLAMA;
    const bool is_qwen2 = strcmp(model_type, "qwen2") == 0, is_mistral = strcmp(model_type, "mistral") == 0;
    config->qkv_bias = is_qwen2;
    config->qk_norm = strcmp(model_type, "qwen3") == 0;
    config->norm_eps = 1e-6;
    // Where a key is absent, use transformers' default.
    if (config->qk_norm)
        config->head_dim = 128;
    if (!kv_heads)
        config->n_kv_head = is_mistral ? 8 : is_qwen2 || config->qk_norm ? 32 : 0;
    TRY(read_fields(object, source, false, config));
    config->untied = !cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, "tie_word_embeddings"));
    TRY(check_activation(object, "hidden_act", SILU, source));
    if (!is_qwen2) // Qwen2 has biases on queries, keys and values, whatever the key says
        config->qkv_bias = config->o_bias =
            cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, "attention_bias"));
    TRY(check_flag(object, "mlp_bias", false, source));
    TRY(check_absent(object, "quantization_config", source));
    TRY(read_rope(object, source, config));
    return is_mistral                         ? read_window(object, source, config)
           : strcmp(model_type, "llama") == 0 ? STATUS_OK
                                              : read_windows(object, source, config);
}

// ---- config.json

// Keys of which warn_of_unknown does not warn, besides those in gpt_fields: keys that this file reads, and
// keys that do not change logits.
#define COMMON                                                                                               \
    "architectures model_type transformers_version torch_dtype dtype use_cache initializer_range "           \
    "pad_token_id bos_token_id eos_token_id tie_word_embeddings is_causal _name_or_path "                    \
    "_attn_implementation "                                                                                  \
    "_attn_implementation_autoset output_attentions output_hidden_states return_dict "                       \
    "return_dict_in_generate "                                                                               \
    "chunk_size_feed_forward id2label label2id num_labels problem_type finetuning_task "                     \
    "task_specific_params "                                                                                  \
    "tokenizer_class prefix is_encoder_decoder is_decoder gradient_checkpointing torchscript use_bfloat16 "
#define OF_GPT2                                                                                              \
    "vocab_size n_ctx n_inner activation_function layer_norm_epsilon resid_pdrop embd_pdrop attn_pdrop "     \
    "scale_attn_weights scale_attn_by_inverse_layer_idx add_cross_attention reorder_and_upcast_attn "        \
    "summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout"
#define OF_LLAMA                                                                                             \
    "hidden_act attention_bias mlp_bias rope_theta rope_scaling rope_parameters partial_rotary_factor "      \
    "quantization_config attention_dropout pretraining_tp sliding_window use_sliding_window "                \
    "max_window_layers layer_types"

static void warn_of_unknown(const cJSON *object, const char *source, bool is_gpt2) {
    struct text known = {0};
    text_add(&known, "%s%s", COMMON, is_gpt2 ? OF_GPT2 : OF_LLAMA);
    for (int i = 0; i < gpt_n_fields; i++)
        if (is_gpt2 ? i < GPT_N_SIZES : gpt_fields[i].hf != NULL)
            text_add(&known, " %s", is_gpt2 ? gpt_fields[i].name : gpt_fields[i].hf);
    json_warn_of_unknown(object, known.data, source);
    text_free(&known);
}

static enum status read_config(const cJSON *object, const char *source, struct gpt_config *config) {
    static const char *const llamas[] = {"llama", "qwen2", "qwen3", "mistral"};
    const char *model_type;
    if (!cJSON_IsObject(object))
        return FAIL(STATUS_INVALID, "%s: expected an object", source);
    TRY(json_get_string(object, "model_type", source, &model_type));
    TRY(check_flag(object, "is_causal", true, source));
    if (strcmp(model_type, "gpt2") == 0)
        return read_gpt2(object, source, config);
    for (size_t i = 0; i < sizeof llamas / sizeof *llamas; i++)
        if (strcmp(model_type, llamas[i]) == 0) {
            TRY(read_llama(object, source, model_type, config));
            gpt_config_resolve(config);
            return gpt_config_check_read(config, source);
        }
    return FAIL(STATUS_INVALID, "%s: \"model_type\" is \"%s\", expected gpt2, llama, mistral, qwen2 or qwen3",
                source, model_type);
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
    if (status == STATUS_OK)
        warn_of_unknown(object, path, config->family == FAMILY_GPT2);
    cJSON_Delete(object);
    free(text);
    free(path);
    return status;
}
