// A GGUF file as llama.cpp's loader wants it, and as its converter of Hugging Face models writes it: vectors
// and position embeddings in fp32; a tied lm_head is left out (the loader takes token_embd.weight). Of the
// Llama family, queries and keys are rotated in neighboring pairs in llama.cpp's "llama", so their rows are
// in another order there; in "qwen2" and "qwen3" they are as here.
#include "model/formats/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "infer/export/internal.h"
#include "model/rope_table.h"

#define QUANTIZATION_VERSION 2 // of ggml's block formats

static uint32_t file_type(enum value_type type) {
    static const uint32_t types[N_VALUE_TYPES] = {
        [VALUE_F32] = 0, [VALUE_F16] = 1, [VALUE_Q8_0] = 7, [VALUE_BF16] = 32};
    return types[type];
}

// llama.cpp's name of the architecture; NULL: it has none with all that the model has.
static const char *architecture_of(const struct gpt_config *config) {
    if (config->family == FAMILY_GPT2)
        return "gpt2";
    if (config->qkv_bias && config->qk_norm)
        return NULL;
    return config->qkv_bias ? "qwen2" : config->qk_norm ? "qwen3" : "llama";
}

// llama.cpp reads beta_fast and beta_slow from the command line only; these are its defaults.
static bool has_usual_betas(const struct rope_config *rope) {
    return fabs(rope->beta_fast - 32) < 1e-6 && fabs(rope->beta_slow - 1) < 1e-6;
}

static enum status check_model(const struct exporter *exporter) {
    const struct gpt_config *config = &exporter->params.config;
    const char *lacks = config->family == FAMILY_MODERN ? "model.family=modern"
                        : !architecture_of(config)      ? "both model.qkv_bias and model.qk_norm"
                        : config->rope.type == ROPE_YARN && !has_usual_betas(&config->rope)
                            ? "a beta_fast or beta_slow in model.rope_scaling other than llama.cpp's 32 and 1"
                            : NULL;
    const bool hf_has_it = lacks && config->family == FAMILY_LLAMA && architecture_of(config);
    for (int block = 0; block < config->n_layer && !lacks; block++)
        lacks = gpt_window(config, block) > 0 ? "model.window" : NULL;
    return lacks ? FAIL(STATUS_INVALID, "%s: GGUF files are not written of models with %s%s",
                        exporter->folder, lacks, hf_has_it ? "; export them with --to hf" : "")
                 : STATUS_OK;
}

// ---- key-value pairs

// The key of the architecture: "llama.block_count".
struct key {
    char text[64];
};

static struct key key_of(const struct gpt_config *config, const char *name) {
    struct key key;
    snprintf(key.text, sizeof key.text, "%s.%s", architecture_of(config), name);
    return key;
}

static void add_rope(const struct gpt_config *config, struct gguf_keys *keys) {
    const struct rope_config *rope = &config->rope;
    gguf_add_f32(keys, key_of(config, "rope.freq_base").text, (float)rope->theta);
    gguf_add_u32(keys, key_of(config, "rope.dimension_count").text, (uint32_t)config->head_dim);
    if (rope->type != ROPE_LINEAR && rope->type != ROPE_YARN)
        return;
    gguf_add_string(keys, key_of(config, "rope.scaling.type").text,
                    rope->type == ROPE_LINEAR ? "linear" : "yarn");
    gguf_add_f32(keys, key_of(config, "rope.scaling.factor").text, (float)rope->factor);
    if (rope->type != ROPE_YARN)
        return;
    gguf_add_u32(keys, key_of(config, "rope.scaling.original_context_length").text,
                 (uint32_t)rope->original_positions);
    // llama.cpp multiplies its own 0.1 log(factor) + 1 by this.
    const double usual = 0.1 * log(rope->factor) + 1;
    if (rope->attention_factor > 0)
        gguf_add_f32(keys, key_of(config, "rope.scaling.attn_factor").text,
                     (float)(rope->attention_factor / usual));
}

static void add_model(const struct exporter *exporter, struct gguf_keys *keys) {
    const struct gpt_config *config = &exporter->params.config;
    const bool is_gpt2 = config->family == FAMILY_GPT2;
    const struct {
        const char *name;
        int value;
    } sizes[] = {{"block_count", config->n_layer},
                 {"context_length", config->n_positions},
                 {"embedding_length", config->n_embd},
                 {"feed_forward_length", config->intermediate_size},
                 {"attention.head_count", config->n_head},
                 {"vocab_size", config->vocab_size},
                 {"attention.head_count_kv", is_gpt2 ? 0 : config->n_kv_head},
                 {"attention.key_length", is_gpt2 ? 0 : config->head_dim},
                 {"attention.value_length", is_gpt2 ? 0 : config->head_dim}};
    gguf_add_string(keys, "general.architecture", architecture_of(config));
    gguf_add_string(keys, "general.type", "model");
    gguf_add_u32(keys, "general.file_type", file_type(exporter->options->type));
    gguf_add_u32(keys, "general.quantization_version", QUANTIZATION_VERSION);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value > 0)
            gguf_add_u32(keys, key_of(config, sizes[i].name).text, (uint32_t)sizes[i].value);
    const char *epsilon = is_gpt2 ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
    gguf_add_f32(keys, key_of(config, epsilon).text, (float)config->norm_eps);
    if (!is_gpt2)
        add_rope(config, keys);
}

// ---- tensors

// Where a tensor's values come from.
struct source {
    int param, part; // part -1: all of it; param -1: the factors of RoPE's frequencies
    int heads;       // above 0: the rows of so many heads, in llama.cpp's order
};

struct tensor_list {
    struct gguf_tensor *tensors;
    struct source *sources;
    int n;
};

// The tensor (enum *_param) that is row `index` of the table.
static int tensor_of(const struct params *params, int index) {
    const struct param_unit *unit = &params->units[params->params[index].unit];
    int tensor = 0;
    while (unit->index[tensor] != index - unit->first_param)
        tensor++;
    return tensor;
}

static const char *part_name(const char *part) {
    static const char *const names[][2] = {{"q_proj", "attn_q"},
                                           {"k_proj", "attn_k"},
                                           {"v_proj", "attn_v"},
                                           {"gate_proj", "ffn_gate"},
                                           {"up_proj", "ffn_up"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(part, names[i][0]) == 0)
            return names[i][1];
    return part;
}

static void name_tensor(const struct params *params, int index, int part, char *name, size_t size) {
    static const char *const in_block[N_BLOCK_PARAMS] = {[PARAM_LN1_WEIGHT] = "attn_norm.weight",
                                                         [PARAM_LN1_BIAS] = "attn_norm.bias",
                                                         [PARAM_QKV_WEIGHT] = "attn_qkv.weight",
                                                         [PARAM_QKV_BIAS] = "attn_qkv.bias",
                                                         [PARAM_ATTN_PROJ_WEIGHT] = "attn_output.weight",
                                                         [PARAM_ATTN_PROJ_BIAS] = "attn_output.bias",
                                                         [PARAM_LN2_WEIGHT] = "ffn_norm.weight",
                                                         [PARAM_LN2_BIAS] = "ffn_norm.bias",
                                                         [PARAM_FC_WEIGHT] = "ffn_up.weight",
                                                         [PARAM_FC_BIAS] = "ffn_up.bias",
                                                         [PARAM_FC_PROJ_WEIGHT] = "ffn_down.weight",
                                                         [PARAM_FC_PROJ_BIAS] = "ffn_down.bias",
                                                         [PARAM_Q_NORM] = "attn_q_norm.weight",
                                                         [PARAM_K_NORM] = "attn_k_norm.weight"};
    static const char *const embedding[N_EMBEDDING_PARAMS] = {
        [PARAM_WTE] = "token_embd.weight", [PARAM_WPE] = "position_embd.weight"};
    static const char *const final[N_FINAL_PARAMS] = {[PARAM_LNF_WEIGHT] = "output_norm.weight",
                                                      [PARAM_LNF_BIAS] = "output_norm.bias",
                                                      [PARAM_LM_HEAD] = "output.weight"};
    const struct param *param = &params->params[index];
    const int tensor = tensor_of(params, index);
    if (param->unit == 0)
        snprintf(name, size, "%s", embedding[tensor]);
    else if (param->unit > params->config.n_layer)
        snprintf(name, size, "%s", final[tensor]);
    else if (part >= 0)
        snprintf(name, size, "blk.%d.%s.%s", param->unit - 1, part_name(param->parts[part].name),
                 param->n_dims > 1 ? "weight" : "bias");
    else
        snprintf(name, size, "blk.%d.%s", param->unit - 1, in_block[tensor]);
}

static enum value_type choose_type(const struct params *params, const struct param *param,
                                   enum value_type type) {
    if (param->n_dims == 1 || param == params_tensor(params, 0, PARAM_WPE))
        return VALUE_F32;
    return type == VALUE_Q8_0 && param->shape[1] % VALUE_BLOCK != 0 ? VALUE_F16 : type;
}

// The heads of a part whose rows change places: queries and keys of "llama".
static int reordered_heads(const struct params *params, int index, int part) {
    const struct gpt_config *config = &params->config;
    if (part < 0 || part > 1 || tensor_of(params, index) != PARAM_QKV_WEIGHT ||
        strcmp(architecture_of(config), "llama") != 0)
        return 0;
    return part == 0 ? config->n_head : config->n_kv_head;
}

static void add_tensor(const struct exporter *exporter, int index, int part, struct tensor_list *list) {
    const struct params *params = &exporter->params;
    const struct param *param = &params->params[index];
    struct gguf_tensor *tensor = &list->tensors[list->n];
    *tensor = (struct gguf_tensor){
        .type = choose_type(params, param, exporter->options->type),
        .n_dims = param->n_dims,
        .shape = {part < 0 ? param->shape[0] : param->parts[part].n_rows, param->shape[1]}};
    name_tensor(params, index, part, tensor->name, sizeof tensor->name);
    list->sources[list->n++] = (struct source){index, part, reordered_heads(params, index, part)};
}

// Llama 3's scaling of frequencies: what each is divided by.
static void add_rope_factors(const struct gpt_config *config, struct tensor_list *list) {
    if (config->family == FAMILY_GPT2 || config->rope.type != ROPE_LLAMA3)
        return;
    list->tensors[list->n] = (struct gguf_tensor){
        .name = "rope_freqs.weight", .type = VALUE_F32, .n_dims = 1, .shape = {config->head_dim / 2, 1}};
    list->sources[list->n++] = (struct source){.param = -1};
}

struct tensor_writing {
    const struct exporter *exporter;
    const struct tensor_list *list;
};

static enum status write_rope_factors(const struct gpt_config *config, struct file_writer *writer) {
    const int n = config->head_dim / 2;
    double *frequencies = malloc((size_t)n * sizeof *frequencies), scale;
    if (!frequencies)
        return FAIL(STATUS_FAILED, "out of memory writing %s", writer->path);
    rope_frequencies(config, frequencies, &scale);
    for (int i = 0; i < n; i++) {
        const float factor = (float)(pow(config->rope.theta, -2.0 * i / config->head_dim) / frequencies[i]);
        file_write(writer, &factor, sizeof factor);
    }
    free(frequencies);
    return STATUS_OK;
}

static enum status write_tensor(void *context, int tensor, struct file_writer *writer) {
    const struct tensor_writing *writing = context;
    const struct source *from = &writing->list->sources[tensor];
    const struct param_source *values = &writing->exporter->source;
    const enum value_type type = writing->list->tensors[tensor].type;
    if (from->param < 0)
        return write_rope_factors(&writing->exporter->params.config, writer);
    if (from->heads > 0)
        return param_values_write_heads(values, from->param, from->part, from->heads, type, writer);
    return from->part < 0 ? param_values_write(values, from->param, false, type, writer)
                          : param_values_write_part(values, from->param, from->part, type, writer);
}

static enum status write_file(struct exporter *exporter, const char *path, const struct gguf_keys *keys) {
    const struct params *params = &exporter->params;
    const size_t most = (size_t)params->n_params * PARAM_PARTS_MOST + 1;
    struct tensor_list list = {.tensors = calloc(most, sizeof *list.tensors),
                               .sources = calloc(most, sizeof *list.sources)};
    enum status status = list.tensors && list.sources
                             ? STATUS_OK
                             : FAIL(STATUS_FAILED, "out of memory for %d tensors", params->n_params);
    for (int i = 0; i < params->n_params && status == STATUS_OK; i++) {
        const struct param *param = &params->params[i];
        for (int part = 0; part < (param->hf_parts ? param->n_parts : 1); part++)
            add_tensor(exporter, i, param->hf_parts ? part : -1, &list);
    }
    if (status == STATUS_OK) {
        add_rope_factors(&params->config, &list);
        status = gguf_write(path, keys, list.tensors, list.n, write_tensor,
                            &(struct tensor_writing){exporter, &list});
    }
    free(list.tensors);
    free(list.sources);
    return status;
}

enum status export_gguf(struct exporter *exporter) {
    TRY(check_model(exporter));
    struct gguf_keys keys = {0};
    char *path = export_new_file(exporter, "model.gguf");
    add_model(exporter, &keys);
    enum status status =
        path ? export_add_gguf_tokenizer(exporter->tokenizer, exporter->params.config.vocab_size, &keys)
             : STATUS_FAILED;
    if (status == STATUS_OK)
        status = write_file(exporter, path, &keys);
    gguf_keys_free(&keys);
    free(path);
    return status;
}
