// Writes a folder as transformers' save_pretrained does for GPT2LMHeadModel, LlamaForCausalLM,
// Qwen2ForCausalLM or Qwen3ForCausalLM, with its tokenizer. GPT-2's linear weights are stored as (in, out)
// (Conv1D). A tied lm_head is not stored.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/log.h"
#include "data/tokenizer/export.h"
#include "infer/export/export.h"

// Writes a text file of the export.
static enum status write_text(struct exporter *exporter, const char *name, struct text *text) {
    char *path = export_new_file(exporter, name);
    enum status status = file_write_all(path, text->data, text->length);
    free(path);
    return status;
}

// ---- weights

static enum dtype dtype_of(enum value_type type) {
    return type == VALUE_F32 ? DTYPE_F32 : type == VALUE_BF16 ? DTYPE_BF16 : DTYPE_F16;
}

static const char *torch_name(enum value_type type) {
    return type == VALUE_F32 ? "float32" : type == VALUE_BF16 ? "bfloat16" : "float16";
}

// A tensor in the files: a parameter, or named rows of a fused parameter.
struct tensor {
    int param, part; // index of the parameter, and of the named rows (-1: all rows)
    char name[64];
    size_t elements;
};

// All tensors in order, divided into n files. File i contains tensors first[i] to first[i + 1] - 1.
struct shards {
    struct tensor *tensors;
    int n_tensors;
    int *first; // (n + 1)
    int n;
};

static void add_tensor(const struct exporter *exporter, int index, int part, struct shards *shards) {
    const struct params *params = &exporter->params;
    const struct param *param = &params->params[index];
    struct tensor *tensor = &shards->tensors[shards->n_tensors++];
    char name[sizeof param->name];
    snprintf(name, sizeof name, "%s", param->name);
    if (part >= 0)
        params_part_name(param, part, name, sizeof name);
    const bool in_model = params->config.family != FAMILY_GPT2 && strcmp(name, "lm_head.weight") != 0;
    snprintf(tensor->name, sizeof tensor->name, "%s%s", in_model ? "model." : "", name);
    tensor->param = index;
    tensor->part = part;
    tensor->elements = part >= 0 ? (size_t)(param->parts[part].n_rows * param->shape[1]) : param->elements;
}

static void list_tensors(const struct exporter *exporter, struct shards *shards) {
    const struct params *params = &exporter->params;
    const size_t most = (size_t)params->n_params * PARAM_PARTS_MOST;
    shards->tensors = allocate(most, sizeof *shards->tensors);
    shards->first = allocate(most + 1, sizeof *shards->first);
    for (int i = 0; i < params->n_params; i++) {
        const struct param *param = &params->params[i];
        for (int part = 0; part < (param->hf_parts ? param->n_parts : 1); part++)
            add_tensor(exporter, i, param->hf_parts ? part : -1, shards);
    }
}

static void divide(const struct exporter *exporter, struct shards *shards) {
    uint64_t bytes = 0;
    for (int i = 0; i < shards->n_tensors; i++) {
        const uint64_t more = value_bytes(exporter->options->type, shards->tensors[i].elements);
        if (i == 0 || bytes + more > exporter->options->max_shard_bytes) {
            shards->first[shards->n++] = i;
            bytes = 0;
        }
        bytes += more;
    }
    shards->first[shards->n] = shards->n_tensors;
}

static char *shard_name(const struct shards *shards, int i) {
    return shards->n == 1 ? file_path("model.safetensors")
                          : file_path("model-%05d-of-%05d.safetensors", i + 1, shards->n);
}

struct shard_writing {
    const struct exporter *exporter;
    const struct tensor *tensors; // the tensors of this file
};

static enum status write_tensor(void *context, int index, struct file_writer *writer) {
    const struct shard_writing *writing = context;
    const struct exporter *exporter = writing->exporter;
    const struct tensor *tensor = &writing->tensors[index];
    if (tensor->part >= 0)
        return param_values_write_part(&exporter->source, tensor->param, tensor->part,
                                       exporter->options->type, writer);
    return param_values_write(&exporter->source, tensor->param,
                              exporter->params.params[tensor->param].hf_transposed, exporter->options->type,
                              writer);
}

static enum status write_shard(struct exporter *exporter, const char *name, const struct tensor *list,
                               int n) {
    struct safetensors_source *tensors = allocate((size_t)n, sizeof *tensors);
    char *path = export_new_file(exporter, name);
    for (int i = 0; i < n; i++) {
        const struct param *param = &exporter->params.params[list[i].param];
        const int rows = param->hf_transposed;
        tensors[i] = (struct safetensors_source){.name = list[i].name,
                                                 .type = dtype_of(exporter->options->type),
                                                 .n_dims = param->n_dims,
                                                 .shape = {param->shape[rows], param->shape[1 - rows]}};
        if (list[i].part >= 0)
            tensors[i].shape[0] = param->parts[list[i].part].n_rows;
    }
    enum status status =
        safetensors_write(path, tensors, n, write_tensor, &(struct shard_writing){exporter, list});
    free(tensors);
    free(path);
    return status;
}

static enum status write_shards(struct exporter *exporter, const struct shards *shards, struct text *index) {
    const struct params *params = &exporter->params;
    text_add(index, "{\n  \"metadata\": {\"total_size\": %zu},\n  \"weight_map\": {\n",
             value_bytes(exporter->options->type, params->n_weights));
    for (int i = 0; i < shards->n; i++) {
        const int first = shards->first[i], end = shards->first[i + 1];
        char *name = shard_name(shards, i);
        enum status status = write_shard(exporter, name, shards->tensors + first, end - first);
        for (int k = first; k < end && status == STATUS_OK; k++)
            text_add(index, "    \"%s\": \"%s\"%s\n", shards->tensors[k].name, name,
                     k + 1 < shards->n_tensors ? "," : "");
        free(name);
        TRY(status);
    }
    text_add(index, "  }\n}\n");
    return shards->n == 1 ? STATUS_OK : write_text(exporter, "model.safetensors.index.json", index);
}

static enum status write_weights(struct exporter *exporter) {
    struct text index = {0};
    struct shards shards = {0};
    list_tensors(exporter, &shards);
    divide(exporter, &shards);
    enum status status = write_shards(exporter, &shards, &index);
    text_free(&index);
    free(shards.tensors);
    free(shards.first);
    return status;
}

// ---- config.json and the other files of settings

// Adds the last members of a JSON file, the ids of the token that begins a text and of those that end it,
// and the closing brace.
static void add_ids(const struct exporter *exporter, struct text *out) {
    if (!exporter->tokenizer) {
        text_add(out, "  \"bos_token_id\": null,\n  \"eos_token_id\": null\n}\n");
        return;
    }
    text_add(out,
             "  \"bos_token_id\": %d,\n  \"eos_token_id\": ", tokenizer_document_start(exporter->tokenizer));
    tokenizer_add_ends(exporter->tokenizer, out);
    text_add(out, "\n}\n");
}

// Adds a value of the model's config as a member of a JSON object.
static void add_field(const struct gpt_field *field, const char *key, const struct gpt_config *config,
                      struct text *out) {
    char number[32];
    text_double(number, gpt_field_get(field, config));
    // transformers warns if a RoPE factor is written as an integer.
    const bool is_whole = field->type == FIELD_NUMBER && !strpbrk(number, ".e");
    text_add(out, "\"%s\": %s%s", key, number, is_whole ? ".0" : "");
}

static void add_line(const struct gpt_field *field, const char *key, const struct gpt_config *config,
                     struct text *out) {
    text_add(out, "  ");
    add_field(field, key, config, out);
    text_add(out, ",\n");
}

static void add_gpt2(const struct exporter *exporter, struct text *out) {
    const struct gpt_config *config = &exporter->params.config;
    text_add(out,
             "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n"
             "  \"activation_function\": \"gelu_new\",\n  \"attn_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n"
             "  \"resid_pdrop\": 0.0,\n  \"initializer_range\": 0.02,\n  \"layer_norm_epsilon\": 1e-05,\n"
             "  \"n_inner\": null,\n  \"n_ctx\": %d,\n  \"scale_attn_weights\": true,\n  "
             "\"tie_word_embeddings\": true,\n  \"use_cache\": true,\n"
             "  \"torch_dtype\": \"%s\",\n",
             config->n_positions, torch_name(exporter->options->type));
    for (int i = 0; i < GPT_N_SIZES; i++)
        add_line(&gpt_fields[i], gpt_fields[i].name, config, out);
    add_ids(exporter, out);
}

// Returns the name of transformers' class for a model of the Llama family, without "ForCausalLM"; NULL if
// no class has all features of the model.
static const char *llama_class(const struct gpt_config *config) {
    if (config->qkv_bias && !config->o_bias)
        return config->qk_norm ? NULL : "Qwen2";
    return config->qkv_bias != config->o_bias ? NULL : config->qk_norm ? "Qwen3" : "Llama";
}

static void add_rope_scaling(const struct gpt_config *config, struct text *out) {
    if (config->rope.type == ROPE_DEFAULT) {
        text_add(out, "  \"rope_scaling\": null,\n");
        return;
    }
    text_add(out, "  \"rope_scaling\": {\"rope_type\": \"%s\"", rope_type_names[config->rope.type]);
    for (const struct gpt_field *field = gpt_fields; field < gpt_fields + gpt_n_fields; field++)
        if (field->rope_types & 1u << config->rope.type && gpt_field_get(field, config) > 0) {
            text_add(out, ", ");
            add_field(field, field->hf, config, out);
        }
    text_add(out, "},\n");
}

// The model's sliding windows. In transformers, all windows of a model have the same length.
struct windows {
    int length; // positions in the window of block `first`; 0: no block has a window
    int other;  // a different length that another block has; 0: none
    int n;      // number of blocks with a window
    int first;  // index of the first block with a window; n_layer: none
};

static struct windows windows_of(const struct gpt_config *config) {
    struct windows windows = {.first = config->n_layer};
    for (int block = config->n_layer - 1; block >= 0; block--) {
        const int window = gpt_window(config, block);
        if (window == 0)
            continue;
        if (windows.length > 0 && window != windows.length)
            windows.other = windows.length;
        windows.length = window;
        windows.first = block;
        windows.n++;
    }
    return windows;
}

// Adds the sliding windows. transformers since 4.53 reads from "layer_types" which blocks have a window.
// Earlier versions use windows from block "max_window_layers" on with FlashAttention, and in all blocks
// with other attention kernels. "sliding_window" is written even if it is null: without it, the length is
// 4096, which versions before 4.52 apply even if windows are off.
static void add_windows(const struct gpt_config *config, struct text *out) {
    const struct windows windows = windows_of(config);
    char length[16] = "null";
    if (windows.n > 0)
        snprintf(length, sizeof length, "%d", windows.length);
    text_add(out, "  \"use_sliding_window\": %s,\n  \"sliding_window\": %s,\n  \"max_window_layers\": %d,\n",
             windows.n > 0 ? "true" : "false", length, windows.first);
    for (int block = 0; block < config->n_layer && windows.n > 0; block++)
        text_add(out, "%s\"%s_attention\"%s", block == 0 ? "  \"layer_types\": [" : ", ",
                 gpt_window(config, block) > 0 ? "sliding" : "full",
                 block == config->n_layer - 1 ? "],\n" : "");
}

static const char *model_type(const struct gpt_config *config) {
    return config->family == FAMILY_GPT2         ? "gpt2"
           : config->qkv_bias && !config->o_bias ? "qwen2"
           : config->qk_norm                     ? "qwen3"
                                                 : "llama";
}

static void add_llama(const struct exporter *exporter, struct text *out) {
    const struct gpt_config *config = &exporter->params.config;
    const char *name = llama_class(config);
    text_add(out,
             "{\n  \"architectures\": [\"%sForCausalLM\"],\n  \"model_type\": \"%s\",\n"
             "  \"hidden_act\": \"silu\",\n  \"initializer_range\": 0.02,\n  \"attention_dropout\": 0.0,\n"
             "  \"tie_word_embeddings\": %s,\n  \"use_cache\": true,\n  \"torch_dtype\": \"%s\",\n",
             name, model_type(config), config->untied ? "false" : "true",
             torch_name(exporter->options->type));
    for (const struct gpt_field *field = gpt_fields; field < gpt_fields + gpt_n_fields; field++)
        if (field->hf && !field->rope_types)
            add_line(field, field->hf, config, out);
    if (strcmp(name, "Qwen2") != 0)
        text_add(out, "  \"attention_bias\": %s,\n", config->o_bias ? "true" : "false");
    if (strcmp(name, "Llama") == 0)
        text_add(out, "  \"mlp_bias\": false,\n");
    else
        add_windows(config, out);
    add_rope_scaling(config, out);
    add_ids(exporter, out);
}

static void add_config(const struct exporter *exporter, struct text *out) {
    if (exporter->params.config.family == FAMILY_GPT2)
        add_gpt2(exporter, out);
    else
        add_llama(exporter, out);
}

static enum status check_windows(const struct exporter *exporter) {
    const struct gpt_config *config = &exporter->params.config;
    const struct windows windows = windows_of(config);
    if (windows.n == 0)
        return STATUS_OK;
    if (strcmp(llama_class(config), "Llama") == 0)
        return FAIL(
            STATUS_INVALID,
            "%s: transformers' Llama has no sliding windows (model.window); only Qwen2 (model.qkv_bias) and "
            "Qwen3 (model.qk_norm) have them",
            exporter->folder);
    if (windows.other > 0)
        return FAIL(STATUS_INVALID,
                    "%s: model.window has windows of %d and of %d positions, but transformers has one length "
                    "for all blocks with a window",
                    exporter->folder, windows.length, windows.other);
    if (windows.n < config->n_layer)
        log_warning(
            "%d of the %d blocks have a window; only transformers since 4.53 reads which ones. Earlier "
            "versions use the window in all blocks, or with FlashAttention in those from block %d on",
            windows.n, config->n_layer, windows.first);
    return STATUS_OK;
}

static void warn_of_yarn(const struct exporter *exporter) {
    const struct rope_config *rope = &exporter->params.config.rope;
    if (rope->type != ROPE_YARN)
        return;
    const double ratio = (double)exporter->params.config.n_positions / rope->original_positions;
    if (fabs(ratio / rope->factor - 1) > 1e-6)
        log_warning("%s: transformers before version 5 takes n_positions / original_max_position_embeddings "
                    "as YaRN's factor, which is %g instead of %g",
                    exporter->folder, ratio, rope->factor);
}

// Refuses a model with a feature that no class of transformers has.
static enum status check_model(const struct exporter *exporter) {
    const struct gpt_config *config = &exporter->params.config;
    if (config->family == FAMILY_MODERN)
        return FAIL(
            STATUS_INVALID,
            "%s: transformers has no model with model.family=modern; those of gpt2 and llama can be exported",
            exporter->folder);
    if (config->family == FAMILY_GPT2)
        return STATUS_OK;
    if (!llama_class(config))
        return FAIL(
            STATUS_INVALID,
            "%s: transformers has no model with both model.qkv_bias and model.qk_norm but without "
            "model.o_bias, nor with model.o_bias alone; only models with the features of Llama, Qwen2 "
            "or Qwen3 can be exported",
            exporter->folder);
    warn_of_yarn(exporter);
    return check_windows(exporter);
}

static void add_generation_config(const struct exporter *exporter, struct text *out) {
    text_add(out, "{\n  \"_from_model_config\": true,\n");
    add_ids(exporter, out);
}

static void add_tokenizer_config(const struct exporter *exporter, struct text *out) {
    const struct gpt_config *config = &exporter->params.config;
    tokenizer_add_config(exporter->tokenizer, model_type(config), config->n_positions, out);
}

static void add_special_tokens(const struct exporter *exporter, struct text *out) {
    tokenizer_add_special_map(exporter->tokenizer, out);
}

// Adds the model card (README.md).
static void add_card(const struct exporter *exporter, struct text *out) {
    const struct gpt_config *config = &exporter->params.config;
    const struct checkpoint *checkpoint = exporter->weights.checkpoint;
    const char *slash = strrchr(exporter->target, '/'), *name = slash ? slash + 1 : exporter->target;
    const bool gpt2 = config->family == FAMILY_GPT2;
    char count[32], steps[96] = "converted";
    if (checkpoint)
        snprintf(steps, sizeof steps, "trained for %lld steps on %lld tokens", (long long)checkpoint->step,
                 (long long)checkpoint->tokens);
    text_add(out,
             "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- %s\n---\n\n# %s\n\n"
             "A %s model of %s parameters, %s by zero.c.\n\n| | |\n|---|---|\n| layers | %d |\n"
             "| attention heads | %d |\n| width | %d |\n| context | %d tokens |\n| vocabulary | %d |\n"
             "| weights | %s |\n\n```python\nfrom transformers import pipeline\n\n"
             "print(pipeline(\"text-generation\", \"%s\")(\"Once upon a time\"))\n```\n",
             model_type(config), name, gpt2 ? "GPT-2" : "Llama-family",
             text_count(count, sizeof count, (double)exporter->params.n_weights), steps, config->n_layer,
             config->n_head, config->n_embd, config->n_positions, config->vocab_size,
             value_type_name(exporter->options->type), name);
}

static enum status write_settings(struct exporter *exporter) {
    static const struct {
        const char *name;
        void (*add)(const struct exporter *exporter, struct text *out);
        bool of_tokenizer;
    } files[] = {{"config.json", add_config, false},
                 {"generation_config.json", add_generation_config, false},
                 {"README.md", add_card, false},
                 {"tokenizer_config.json", add_tokenizer_config, true},
                 {"special_tokens_map.json", add_special_tokens, true}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (files[i].of_tokenizer && !exporter->tokenizer)
            continue;
        struct text text = {0};
        files[i].add(exporter, &text);
        enum status status = write_text(exporter, files[i].name, &text);
        text_free(&text);
        TRY(status);
    }
    return STATUS_OK;
}

static enum status write_tokenizer(struct exporter *exporter) {
    static const char *const names[] = {"tokenizer.json", "vocab.json", "merges.txt"};
    if (!exporter->tokenizer)
        return STATUS_OK;
    const size_t n = tokenizer_has_vocab_files(exporter->tokenizer) ? sizeof names / sizeof *names : 1;
    for (size_t i = 0; i < n; i++) {
        free(export_new_file(exporter, names[i]));
    }
    return tokenizer_save_huggingface(exporter->tokenizer, exporter->temporary);
}

enum status export_huggingface(struct exporter *exporter) {
    TRY(check_model(exporter));
    // The tokenizer is written before the weights, which take long: not every tokenizer can be exported.
    TRY(write_tokenizer(exporter));
    TRY(write_settings(exporter));
    return write_weights(exporter);
}
