// A GGUF file as llama.cpp's loader wants of GPT-2, and as its converter of Hugging Face models writes it:
// vectors and position embeddings in fp32, no output.weight (the loader takes token_embd.weight).
#include "model/gguf.h"

#include <stdlib.h>
#include <string.h>

#include "infer/export/internal.h"

#define QUANTIZATION_VERSION 2 // of ggml's block formats

static uint32_t file_type(enum value_type type) {
    static const uint32_t types[N_VALUE_TYPES] = {
        [VALUE_F32] = 0, [VALUE_F16] = 1, [VALUE_Q8_0] = 7, [VALUE_BF16] = 32};
    return types[type];
}

// ---- key-value pairs

static void add_model(const struct exporter *exporter, struct gguf_keys *keys) {
    const struct gpt_config *config = &exporter->params.config;
    gguf_add_string(keys, "general.architecture", "gpt2");
    gguf_add_string(keys, "general.type", "model");
    gguf_add_u32(keys, "general.file_type", file_type(exporter->options->type));
    gguf_add_u32(keys, "general.quantization_version", QUANTIZATION_VERSION);
    gguf_add_u32(keys, "gpt2.block_count", (uint32_t)config->n_layer);
    gguf_add_u32(keys, "gpt2.context_length", (uint32_t)config->n_positions);
    gguf_add_u32(keys, "gpt2.embedding_length", (uint32_t)config->n_embd);
    gguf_add_u32(keys, "gpt2.feed_forward_length", 4 * (uint32_t)config->n_embd);
    gguf_add_u32(keys, "gpt2.attention.head_count", (uint32_t)config->n_head);
    gguf_add_f32(keys, "gpt2.attention.layer_norm_epsilon", (float)config->norm_eps);
    gguf_add_u32(keys, "gpt2.vocab_size", (uint32_t)config->vocab_size);
}

// ---- tensors

static void name_tensor(const struct params *params, int index, char *name, size_t size) {
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
                                                         [PARAM_FC_PROJ_BIAS] = "ffn_down.bias"};
    static const char *const embedding[N_EMBEDDING_PARAMS] = {
        [PARAM_WTE] = "token_embd.weight", [PARAM_WPE] = "position_embd.weight"};
    static const char *const final_norm[N_FINAL_PARAMS] = {
        [PARAM_LNF_WEIGHT] = "output_norm.weight", [PARAM_LNF_BIAS] = "output_norm.bias"};
    const int unit = params->params[index].unit, in_unit = index - params->units[unit].first_param;
    if (unit == 0)
        snprintf(name, size, "%s", embedding[in_unit]);
    else if (unit <= params->config.n_layer)
        snprintf(name, size, "blk.%d.%s", unit - 1, in_block[in_unit]);
    else
        snprintf(name, size, "%s", final_norm[in_unit]);
}

static enum value_type choose_type(const struct param *param, int index, enum value_type type) {
    if (param->n_dims == 1 || index == PARAM_WPE)
        return VALUE_F32;
    return type == VALUE_Q8_0 && param->shape[1] % VALUE_BLOCK != 0 ? VALUE_F16 : type;
}

struct tensor_writing {
    const struct exporter *exporter;
    const struct gguf_tensor *tensors;
};

static enum status write_tensor(void *context, int tensor, struct file_writer *writer) {
    const struct tensor_writing *writing = context;
    return param_values_write(&writing->exporter->source, tensor, false, writing->tensors[tensor].type,
                              writer);
}

static enum status write_file(struct exporter *exporter, const char *path, const struct gguf_keys *keys) {
    const struct params *params = &exporter->params;
    struct gguf_tensor *tensors = calloc((size_t)params->n_params, sizeof *tensors);
    if (!tensors)
        return FAIL(STATUS_FAILED, "out of memory for %d tensors", params->n_params);
    for (int i = 0; i < params->n_params; i++) {
        const struct param *param = &params->params[i];
        tensors[i] = (struct gguf_tensor){.type = choose_type(param, i, exporter->options->type),
                                          .n_dims = param->n_dims,
                                          .shape = {param->shape[0], param->shape[1]}};
        name_tensor(params, i, tensors[i].name, sizeof tensors[i].name);
    }
    enum status status = gguf_write(path, keys, tensors, params->n_params, write_tensor,
                                    &(struct tensor_writing){exporter, tensors});
    free(tensors);
    return status;
}

enum status export_gguf(struct exporter *exporter) {
    if (exporter->params.config.family != FAMILY_GPT2)
        return FAIL(
            STATUS_INVALID,
            "%s: GGUF files are written of GPT-2 only; export a Hugging Face folder, which llama.cpp's "
            "convert_hf_to_gguf.py reads",
            exporter->folder);
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
