// A folder as transformers' save_pretrained writes one of GPT2LMHeadModel and its tokenizer. Linear weights
// are (in, out) there (Conv1D); lm_head is tied and not stored.
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/tokenizer_export.h"
#include "infer/export/internal.h"

// ---- weights

static enum dtype dtype_of(enum value_type type) {
    return type == VALUE_F32 ? DTYPE_F32 : type == VALUE_BF16 ? DTYPE_BF16 : DTYPE_F16;
}

static const char *torch_name(enum value_type type) {
    return type == VALUE_F32 ? "float32" : type == VALUE_BF16 ? "bfloat16" : "float16";
}

// The files of the weights: file i has the parameters [first[i], first[i + 1]).
struct shards {
    int *first; // (n + 1)
    int n;
};

static void divide(const struct exporter *exporter, struct shards *shards) {
    const struct params *params = &exporter->params;
    uint64_t bytes = 0;
    for (int i = 0; i < params->n_params; i++) {
        const uint64_t more = value_bytes(exporter->options->type, params->params[i].elements);
        if (i == 0 || bytes + more > exporter->options->max_shard_bytes) {
            shards->first[shards->n++] = i;
            bytes = 0;
        }
        bytes += more;
    }
    shards->first[shards->n] = params->n_params;
}

static char *shard_name(const struct shards *shards, int i) {
    return shards->n == 1 ? file_path("model.safetensors")
                          : file_path("model-%05d-of-%05d.safetensors", i + 1, shards->n);
}

struct shard_writing {
    const struct exporter *exporter;
    int first;
};

static enum status write_tensor(void *context, int tensor, struct file_writer *writer) {
    const struct shard_writing *writing = context;
    const struct exporter *exporter = writing->exporter;
    const int param = writing->first + tensor;
    return param_values_write(&exporter->source, param, exporter->params.params[param].hf_transposed,
                              exporter->options->type, writer);
}

static enum status write_shard(struct exporter *exporter, const char *name, int first, int end) {
    const size_t n = (size_t)(end - first);
    struct safetensors_source *tensors = calloc(n, sizeof *tensors);
    char *path = export_new_file(exporter, name);
    enum status status =
        tensors && path ? STATUS_OK : FAIL(STATUS_FAILED, "out of memory for %zu tensors", n);
    for (size_t i = 0; i < n && status == STATUS_OK; i++) {
        const struct param *param = &exporter->params.params[first + (int)i];
        const int rows = param->hf_transposed;
        tensors[i] = (struct safetensors_source){.name = param->name,
                                                 .type = dtype_of(exporter->options->type),
                                                 .n_dims = param->n_dims,
                                                 .shape = {param->shape[rows], param->shape[1 - rows]}};
    }
    if (status == STATUS_OK)
        status =
            safetensors_write(path, tensors, (int)n, write_tensor, &(struct shard_writing){exporter, first});
    free(tensors);
    free(path);
    return status;
}

static enum status write_shards(struct exporter *exporter, const struct shards *shards, struct text *index) {
    const struct params *params = &exporter->params;
    text_add(index, "{\n  \"metadata\": {\"total_size\": %zu},\n  \"weight_map\": {\n",
             value_bytes(exporter->options->type, params->n_weights));
    for (int i = 0; i < shards->n; i++) {
        char *name = shard_name(shards, i);
        enum status status =
            name ? write_shard(exporter, name, shards->first[i], shards->first[i + 1]) : STATUS_FAILED;
        for (int k = shards->first[i]; k < shards->first[i + 1] && status == STATUS_OK; k++)
            text_add(index, "    \"%s\": \"%s\"%s\n", params->params[k].name, name,
                     k + 1 < params->n_params ? "," : "");
        free(name);
        TRY(status);
    }
    text_add(index, "  }\n}\n");
    return shards->n == 1 ? STATUS_OK : export_write_text(exporter, "model.safetensors.index.json", index);
}

static enum status write_weights(struct exporter *exporter) {
    struct text index = {0};
    struct shards shards = {.first = calloc((size_t)exporter->params.n_params + 1, sizeof *shards.first)};
    if (!shards.first)
        return FAIL(STATUS_FAILED, "out of memory for %d tensors", exporter->params.n_params);
    divide(exporter, &shards);
    enum status status = write_shards(exporter, &shards, &index);
    text_free(&index);
    free(shards.first);
    return status;
}

// ---- settings

// "50256", or "null" without a tokenizer.
static void add_id(const struct exporter *exporter, int32_t (*id)(const struct tokenizer *tokenizer),
                   struct text *out) {
    if (exporter->tokenizer)
        text_add(out, "%d", id(exporter->tokenizer));
    else
        text_add(out, "null");
}

static void add_config(const struct exporter *exporter, struct text *out) {
    const struct gpt_config *config = &exporter->params.config;
    text_add(out,
             "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n"
             "  \"activation_function\": \"gelu_new\",\n  \"attn_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n"
             "  \"resid_pdrop\": 0.0,\n  \"initializer_range\": 0.02,\n  \"layer_norm_epsilon\": 1e-05,\n"
             "  \"n_layer\": %d,\n  \"n_head\": %d,\n  \"n_embd\": %d,\n  \"n_inner\": null,\n"
             "  \"n_positions\": %d,\n  \"n_ctx\": %d,\n  \"vocab_size\": %d,\n"
             "  \"scale_attn_weights\": true,\n  \"tie_word_embeddings\": true,\n  \"use_cache\": true,\n"
             "  \"torch_dtype\": \"%s\",\n  \"bos_token_id\": ",
             config->n_layer, config->n_head, config->n_embd, config->n_positions, config->n_positions,
             config->vocab_size, torch_name(exporter->options->type));
    add_id(exporter, tokenizer_document_start, out);
    text_add(out, ",\n  \"eos_token_id\": ");
    add_id(exporter, tokenizer_end_of_text, out);
    text_add(out, "\n}\n");
}

static void add_generation_config(const struct exporter *exporter, struct text *out) {
    text_add(out, "{\n  \"_from_model_config\": true,\n  \"bos_token_id\": ");
    add_id(exporter, tokenizer_document_start, out);
    text_add(out, ",\n  \"eos_token_id\": ");
    add_id(exporter, tokenizer_end_of_text, out);
    text_add(out, "\n}\n");
}

static void add_tokenizer_config(const struct exporter *exporter, struct text *out) {
    tokenizer_add_config(exporter->tokenizer, exporter->params.config.n_positions, out);
}

static void add_special_tokens(const struct exporter *exporter, struct text *out) {
    tokenizer_add_special_map(exporter->tokenizer, out);
}

static enum status write_settings(struct exporter *exporter) {
    static const struct {
        const char *name;
        void (*add)(const struct exporter *exporter, struct text *out);
        bool of_tokenizer;
    } files[] = {{"config.json", add_config, false},
                 {"generation_config.json", add_generation_config, false},
                 {"README.md", export_add_card, false},
                 {"tokenizer_config.json", add_tokenizer_config, true},
                 {"special_tokens_map.json", add_special_tokens, true}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (files[i].of_tokenizer && !exporter->tokenizer)
            continue;
        struct text text = {0};
        files[i].add(exporter, &text);
        enum status status = export_write_text(exporter, files[i].name, &text);
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
        char *path = export_new_file(exporter, names[i]);
        if (!path)
            return STATUS_FAILED;
        free(path);
    }
    return tokenizer_save_huggingface(exporter->tokenizer, exporter->temporary);
}

enum status export_huggingface(struct exporter *exporter) {
    TRY(write_tokenizer(exporter)); // may be refused, so before the weights
    TRY(write_settings(exporter));
    return write_weights(exporter);
}
