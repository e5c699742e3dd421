// Reads weights of GPT-2 and of the Llama family in Hugging Face's format: config.json, and model.safetensors
// or several such files with an index.
#ifndef ZERO_MODEL_FORMATS_HUGGINGFACE_H
#define ZERO_MODEL_FORMATS_HUGGINGFACE_H

#include "model/formats/safetensors.h"
#include "model/params.h"

// Reads a model's config from FOLDER/config.json. Warns of unknown keys. STATUS_INVALID: a value is wrong,
// or the model is not supported; the message names the file and the key. Not supported:
// - another model_type
// - GPT-2: an activation_function other than gelu_new, another layer_norm_epsilon, untied embeddings, and
//   options that change its attention or MLP
// - the Llama family: variants that this program does not have, and a rope_scaling that contradicts
//   rope_parameters
enum status huggingface_read_config(const char *folder, struct gpt_config *config) MUST_CHECK;
// For a Llama-family config with a tied lm_head: unties it, as transformers does, if the files have an
// lm_head.weight that differs from the embedding.
//   path   as for huggingface_open
enum status huggingface_find_head(const char *path, struct gpt_config *config) MUST_CHECK;

// Where a parameter is in the files: files[file].tensors[tensor]. file -1: in none of them.
struct huggingface_tensor {
    int file, tensor;
};
struct huggingface_weights {
    const struct params *params;
    char *path; // of the file or the index, for messages
    struct safetensors *files;
    int n_files;
    // (n_params, PARAM_PARTS_MOST): where the parts (struct param_part) of each parameter are. If the files
    // have a parameter as one tensor, the first element is its place.
    struct huggingface_tensor *tensor_of_param;
};
// Opens the weights and checks every tensor against `params`: names (with or without "transformer." or
// "model."), shapes, and types (F32, F16, BF16, F64). STATUS_INVALID: tensors are missing, unknown, or of
// another shape or type; the message names them. If lm_head is tied, an lm_head.weight must equal the
// embedding; if the embedding is absent, lm_head.weight is read in its place. Tensors that are constant are
// ignored: h.N.attn.bias, h.N.attn.masked_bias and rotary_emb.inv_freq.
//   path     a .safetensors file, the index (.safetensors.index.json) of several such files, or a folder
//            with model.safetensors or model.safetensors.index.json
//   params   must outlive `weights`
enum status huggingface_open(struct huggingface_weights *weights, const char *path,
                             const struct params *params) MUST_CHECK;
void huggingface_close(struct huggingface_weights *weights);
// Reads the fp32 values of elements [begin, end) of a ZeRO unit to out[0 ..], transposed to (out, in) where
// needed; padding becomes zero. STATUS_FAILED: a file was truncated since it was opened, or cannot be read.
enum status huggingface_span(const struct huggingface_weights *weights, int unit, size_t begin, size_t end,
                             float *out) MUST_CHECK;

#endif
