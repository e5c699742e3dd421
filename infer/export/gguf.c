// Writes a model as a GGUF file (model/formats/gguf.h).
#include "model/formats/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/gguf.h"
#include "base/log.h"
#include "data/tokenizer/export.h"
#include "infer/export/export.h"

#define QUANTIZATION_VERSION 2 // version of ggml's formats of quantized blocks

static uint32_t file_type(enum value_type type) {
    static const uint32_t types[N_VALUE_TYPES] = {
        [VALUE_F32] = 0, [VALUE_F16] = 1, [VALUE_Q8_0] = 7, [VALUE_BF16] = 32};
    return types[type];
}

static uint32_t tensor_type(enum value_type type) {
    static const uint32_t types[N_VALUE_TYPES] = {
        [VALUE_F32] = GGUF_F32, [VALUE_F16] = GGUF_F16, [VALUE_Q8_0] = GGUF_Q8_0, [VALUE_BF16] = GGUF_BF16};
    return types[type];
}

// True if YaRN's beta_fast and beta_slow are llama.cpp's defaults. llama.cpp takes other values only from
// its command line, not from a GGUF file.
static bool has_usual_betas(const struct rope_config *rope) {
    return fabs(rope->beta_fast - 32) < 1e-6 && fabs(rope->beta_slow - 1) < 1e-6;
}

// What llama.cpp's loader supports for each architecture. It ignores keys that it does not know, and refuses
// tensors that it does not know.
static const struct architecture {
    const char *name;
    unsigned rope_types;   // the supported values of enum rope_type, as bits 1 << rope_type
    bool has_any_head_dim; // false: n_head * head_dim must be n_embd
} architectures[] = {
    {"gpt2", 1u << ROPE_DEFAULT, false},
    {"llama", 1u << ROPE_DEFAULT | 1u << ROPE_LINEAR | 1u << ROPE_YARN | 1u << ROPE_LLAMA3, true},
    {"qwen2", 1u << ROPE_DEFAULT | 1u << ROPE_LINEAR | 1u << ROPE_YARN, false},
    {"qwen3", 1u << ROPE_DEFAULT | 1u << ROPE_LINEAR | 1u << ROPE_YARN, true},
};

// Returns an option or a feature of the model that llama.cpp does not support in this architecture, worded
// to follow "a model with" in a message. NULL: it supports all.
static const char *find_lack(const struct gpt_config *config, const struct architecture *architecture) {
    if (!(architecture->rope_types & 1u << config->rope.type))
        return "model.rope_scaling.rope_type=llama3, which llama.cpp does not have for Qwen2 and Qwen3";
    if (!architecture->has_any_head_dim && config->n_head * config->head_dim != config->n_embd)
        return "both model.qkv_bias and a model.head_dim that is not n_embd / n_head";
    if (config->rope.type == ROPE_YARN && !has_usual_betas(&config->rope))
        return "a beta_fast or beta_slow in model.rope_scaling other than llama.cpp's 32 and 1";
    for (int block = 0; block < config->n_layer; block++)
        if (gpt_window(config, block) > 0)
            return "model.window";
    return NULL;
}

static enum status check_model(const struct exporter *exporter) {
    const struct gpt_config *config = &exporter->params.config;
    const char *name = gguf_architecture(config), *lacks = NULL;
    if (!name)
        lacks = config->family == FAMILY_MODERN ? "model.family=modern"
                : config->o_bias                ? "model.o_bias"
                                                : "both model.qkv_bias and model.qk_norm";
    for (size_t i = 0; name && i < sizeof architectures / sizeof *architectures; i++)
        if (strcmp(name, architectures[i].name) == 0)
            lacks = find_lack(config, &architectures[i]);
    return lacks ? FAIL(STATUS_INVALID, "%s: cannot write a GGUF file of a model with %s%s", exporter->folder,
                        lacks, name ? "; export it with --to hf instead" : "")
                 : STATUS_OK;
}

// ---- key-value pairs

// The name of a key that begins with the architecture, such as "llama.block_count".
struct key {
    char text[64];
};

static struct key key_of(const struct gpt_config *config, const char *name) {
    struct key key;
    snprintf(key.text, sizeof key.text, "%s.%s", gguf_architecture(config), name);
    return key;
}

static void add_rope(const struct gpt_config *config, struct gguf_keys *keys) {
    const struct rope_config *rope = &config->rope;
    gguf_add_f32(keys, key_of(config, "rope.freq_base").text, (float)rope->theta);
    gguf_add_u32(keys, key_of(config, "rope.dimension_count").text, (uint32_t)config->head_dim);
    if (rope->type != ROPE_LINEAR && rope->type != ROPE_YARN)
        return;
    gguf_add_string(keys, key_of(config, "rope.scaling.type").text, rope_type_names[rope->type]);
    gguf_add_f32(keys, key_of(config, "rope.scaling.factor").text, (float)rope->factor);
    if (rope->type != ROPE_YARN)
        return;
    gguf_add_u32(keys, key_of(config, "rope.scaling.original_context_length").text,
                 (uint32_t)rope->original_positions);
    // llama.cpp multiplies the key's value by 0.1 log(factor) + 1, so attention_factor is divided by that.
    const double usual = 0.1 * log(rope->factor) + 1;
    if (rope->attention_factor > 0)
        gguf_add_f32(keys, key_of(config, "rope.scaling.attn_factor").text,
                     (float)(rope->attention_factor / usual));
}

static void add_model(const struct exporter *exporter, struct gguf_keys *keys) {
    const struct gpt_config *config = &exporter->params.config;
    const bool is_gpt2 = config->family == FAMILY_GPT2;
    gguf_add_string(keys, "general.architecture", gguf_architecture(config));
    gguf_add_string(keys, "general.type", "model");
    gguf_add_u32(keys, "general.file_type", file_type(exporter->options->type));
    gguf_add_u32(keys, "general.quantization_version", QUANTIZATION_VERSION);
    gguf_add_u32(keys, key_of(config, "vocab_size").text, (uint32_t)config->vocab_size);
    for (const struct gpt_field *field = gpt_fields; field < gpt_fields + gpt_n_fields; field++) {
        const double value = gpt_field_get(field, config);
        if (!field->gguf || (is_gpt2 && !field->is_needed))
            continue;
        const struct key key = key_of(config, field->gguf);
        if (field->type == FIELD_NUMBER)
            gguf_add_f32(keys, key.text, (float)value);
        else
            gguf_add_u32(keys, key.text, (uint32_t)value);
    }
    if (is_gpt2) {
        gguf_add_f32(keys, key_of(config, "attention.layer_norm_epsilon").text, (float)config->norm_eps);
        return;
    }
    gguf_add_u32(keys, key_of(config, "attention.value_length").text, (uint32_t)config->head_dim);
    add_rope(config, keys);
}

// ---- the list of tensors

// Where a tensor's values come from.
struct source {
    int param; // index of the parameter; -1: RoPE's frequency factors
    int part;  // index of named rows of a fused parameter; -1: all rows
    int heads; // above 0: the rows are those of this many heads, and are reordered as llama.cpp expects
    enum value_type type;
};

struct tensor_list {
    struct gguf_tensor *tensors;
    struct source *sources;
    int n;
};

// ---- tokenizer

// Adds the spelling and the type of each of the n ids of the model's vocabulary. An id that the tokenizer
// does not have becomes an unused token named [PADid].
static void add_tokens(const struct tokenizer *tokenizer, int n, struct gguf_keys *keys) {
    const int n_ids = tokenizer_n_ids(tokenizer);
    struct text spelling = {0};
    gguf_begin_strings(keys, "tokenizer.ggml.tokens", (uint64_t)n);
    for (int id = 0; id < n; id++) {
        spelling.length = 0;
        if (id < n_ids)
            tokenizer_add_spelling(tokenizer, id, &spelling);
        else
            text_add(&spelling, "[PAD%d]", id);
        gguf_put_string(keys, spelling.data, spelling.length);
    }
    text_free(&spelling);
    gguf_begin_i32s(keys, "tokenizer.ggml.token_type", (uint64_t)n);
    for (int id = 0; id < n; id++)
        gguf_put_i32(keys, id < n_ids ? (int32_t)tokenizer_type(tokenizer, id) : TOKEN_UNUSED);
}

static enum status add_merges(const struct tokenizer *tokenizer, struct gguf_keys *keys) {
    struct token_merge *merges;
    struct text spelling = {0};
    int n;
    TRY(tokenizer_derive_merges(tokenizer, &merges, &n));
    gguf_begin_strings(keys, "tokenizer.ggml.merges", (uint64_t)n);
    for (int i = 0; i < n; i++) {
        spelling.length = 0;
        tokenizer_add_merge(tokenizer, &merges[i], &spelling);
        gguf_put_string(keys, spelling.data, spelling.length);
    }
    text_free(&spelling);
    free(merges);
    return STATUS_OK;
}

static enum status add_scores(const struct tokenizer *tokenizer, int n, struct gguf_keys *keys) {
    const int n_ids = tokenizer_n_ids(tokenizer);
    float *scores = allocate((size_t)n_ids, sizeof *scores);
    enum status status = tokenizer_scores(tokenizer, scores);
    gguf_begin_f32s(keys, "tokenizer.ggml.scores", (uint64_t)n);
    for (int id = 0; id < n && status == STATUS_OK; id++)
        gguf_put_f32(keys, id < n_ids ? scores[id] : 0);
    free(scores);
    return status;
}

// Adds the tokens that end generation. GGUF has keys for three of them. llama.cpp recognizes some others by
// their names.
static void add_ends(const struct tokenizer *tokenizer, struct gguf_keys *keys) {
    static const char *const names[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id"};
    int32_t ends[TOKENIZER_MOST_ENDS];
    const int n = tokenizer_ends(tokenizer, ends), most = (int)(sizeof names / sizeof *names);
    for (int i = 0; i < n && i < most; i++)
        gguf_add_u32(keys, names[i], (uint32_t)ends[i]);
    if (n > most)
        log_warning("the tokenizer has %d end-of-generation tokens, but GGUF has keys for only %d; the "
                    "others are left out",
                    n, most);
}

static void add_chat_template(const struct tokenizer *tokenizer, struct gguf_keys *keys) {
    const char *json = tokenizer_chat_template(tokenizer);
    cJSON *template = json ? cJSON_Parse(json) : NULL;
    const cJSON *item;
    if (cJSON_IsString(template))
        gguf_add_string(keys, GGUF_CHAT_TEMPLATE, template->valuestring);
    cJSON_ArrayForEach(item, template) {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "name")),
                   *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "template"));
        char *key = name && strcmp(name, "default") != 0 ? file_path(GGUF_CHAT_TEMPLATE ".%s", name)
                                                         : file_path(GGUF_CHAT_TEMPLATE);
        if (text)
            gguf_add_string(keys, key, text);
        free(key);
    }
    cJSON_Delete(template);
}

// Adds the tokenizer as llama.cpp reads it: with merges for tokenizer.ggml.model "gpt2", with scores for
// "llama". Without a tokenizer, the model is "none".
static enum status add_tokenizer(const struct tokenizer *tokenizer, int vocab_size, struct gguf_keys *keys) {
    if (!tokenizer) {
        gguf_add_string(keys, "tokenizer.ggml.model", "none");
        return STATUS_OK;
    }
    if (tokenizer_rules(tokenizer).pattern >= TOKEN_PATTERN_CL100K)
        return FAIL(
            STATUS_INVALID,
            "GGUF has no name for the pattern by which this tokenizer splits text; export with --to hf, or "
            "without the tokenizer: --tokenizer none");
    const bool has_scores = tokenizer_adds_space(tokenizer);
    gguf_add_string(keys, "tokenizer.ggml.model", tokenizer_gguf_model(tokenizer));
    gguf_add_string(keys, "tokenizer.ggml.pre", tokenizer_gguf_pre(tokenizer));
    tokenizer_add_gguf_rules(tokenizer, keys);
    add_tokens(tokenizer, vocab_size, keys);
    TRY(has_scores ? add_scores(tokenizer, vocab_size, keys) : add_merges(tokenizer, keys));
    gguf_add_u32(keys, "tokenizer.ggml.bos_token_id", (uint32_t)tokenizer_document_start(tokenizer));
    add_ends(tokenizer, keys);
    if (has_scores && tokenizer_unknown(tokenizer) >= 0)
        gguf_add_u32(keys, "tokenizer.ggml.unknown_token_id", (uint32_t)tokenizer_unknown(tokenizer));
    gguf_add_bool(keys, "tokenizer.ggml.add_bos_token", tokenizer_has_bos(tokenizer));
    if (has_scores)
        gguf_add_bool(keys, "tokenizer.ggml.add_space_prefix", true);
    add_chat_template(tokenizer, keys);
    return STATUS_OK;
}

// ---- writing the tensors

static enum value_type choose_type(const struct params *params, const struct param *param,
                                   enum value_type type) {
    if (param->n_dims == 1 || param == params_tensor(params, 0, PARAM_WPE))
        return VALUE_F32;
    return type == VALUE_Q8_0 && param->shape[1] % VALUE_BLOCK != 0 ? VALUE_F16 : type;
}

static void add_tensor(const struct exporter *exporter, int index, int part, struct tensor_list *list) {
    const struct params *params = &exporter->params;
    const struct param *param = &params->params[index];
    const enum value_type type = choose_type(params, param, exporter->options->type);
    struct gguf_tensor *tensor = &list->tensors[list->n];
    *tensor = (struct gguf_tensor){
        .type = tensor_type(type),
        .n_dims = param->n_dims,
        .shape = {part < 0 ? param->shape[0] : param->parts[part].n_rows, param->shape[1]}};
    gguf_tensor_name(params, index, part, tensor->name, sizeof tensor->name);
    list->sources[list->n++] = (struct source){
        .param = index, .part = part, .heads = gguf_reordered_heads(params, index, part), .type = type};
}

// If the model has Llama 3's RoPE scaling, adds the tensor of divisors of RoPE's frequencies.
static void add_rope_factors(const struct gpt_config *config, struct tensor_list *list) {
    if (config->family == FAMILY_GPT2 || config->rope.type != ROPE_LLAMA3)
        return;
    list->tensors[list->n] = (struct gguf_tensor){
        .name = GGUF_ROPE_FACTORS, .type = GGUF_F32, .n_dims = 1, .shape = {config->head_dim / 2, 1}};
    list->sources[list->n++] = (struct source){.param = -1};
}

struct tensor_writing {
    const struct exporter *exporter;
    const struct tensor_list *list;
};

static void write_rope_factors(const struct gpt_config *config, struct file_writer *writer) {
    const size_t n = (size_t)config->head_dim / 2;
    float *factors = allocate(n, sizeof *factors);
    gguf_rope_factors(config, factors);
    file_write(writer, factors, n * sizeof *factors);
    free(factors);
}

static enum status write_tensor(void *context, int tensor, struct file_writer *writer) {
    const struct tensor_writing *writing = context;
    const struct source *from = &writing->list->sources[tensor];
    const struct param_source *values = &writing->exporter->source;
    if (from->param < 0) {
        write_rope_factors(&writing->exporter->params.config, writer);
        return STATUS_OK;
    }
    if (from->heads > 0)
        return param_values_write_heads(values, from->param, from->part, from->heads, from->type, writer);
    return from->part < 0 ? param_values_write(values, from->param, false, from->type, writer)
                          : param_values_write_part(values, from->param, from->part, from->type, writer);
}

static enum status write_file(struct exporter *exporter, const char *path, const struct gguf_keys *keys) {
    const struct params *params = &exporter->params;
    const size_t most = (size_t)params->n_params * PARAM_PARTS_MOST + 1;
    struct tensor_list list = {.tensors = allocate(most, sizeof *list.tensors),
                               .sources = allocate(most, sizeof *list.sources)};
    for (int i = 0; i < params->n_params; i++) {
        const struct param *param = &params->params[i];
        for (int part = 0; part < (param->hf_parts ? param->n_parts : 1); part++)
            add_tensor(exporter, i, param->hf_parts ? part : -1, &list);
    }
    add_rope_factors(&params->config, &list);
    enum status status =
        gguf_write(path, keys, list.tensors, list.n, write_tensor, &(struct tensor_writing){exporter, &list});
    free(list.tensors);
    free(list.sources);
    return status;
}

enum status export_gguf(struct exporter *exporter) {
    TRY(check_model(exporter));
    struct gguf_keys keys = {0};
    char *path = export_new_file(exporter, "model.gguf");
    add_model(exporter, &keys);
    enum status status = add_tokenizer(exporter->tokenizer, exporter->params.config.vocab_size, &keys);
    if (status == STATUS_OK)
        status = write_file(exporter, path, &keys);
    gguf_keys_free(&keys);
    free(path);
    return status;
}
