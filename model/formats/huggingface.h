// Reads weights of GPT-2 and of the Llama family in Hugging Face's format: config.json, and model.safetensors
// or several such files with an index.
#ifndef ZERO_MODEL_FORMATS_HUGGINGFACE_H
#define ZERO_MODEL_FORMATS_HUGGINGFACE_H

#include "model/formats/safetensors.h"
#include "model/params.h"

// Reads the sizes from FOLDER/config.json. Warns of unknown keys. STATUS_INVALID: a value is wrong, or the
// model is not supported; the message names the file and the key. Not supported:
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

// The place of a parameter: tensor `tensor` of file `file`. file -1: absent.
struct huggingface_tensor {
    int file, tensor;
};
struct huggingface_weights {
    const struct params *params;
    char *path; // of the file or the index, for messages
    struct safetensors *files;
    int n_files;
    struct huggingface_tensor *tensor_of_param; // (n_params)
};
// Opens the weights and checks every tensor against the table: names (with or without "transformer."),
// shapes, types (F32, F16, BF16, F64). STATUS_INVALID: tensors are missing, unknown or of another shape; the
// message names them. Ignored: the masks h.N.attn.bias and h.N.attn.masked_bias, and an lm_head.weight equal
// to the embedding that it is tied to. If that embedding is absent, lm_head.weight is read in its place.
//   path     a .safetensors file; an index (.safetensors.index.json) of several; or a folder with
//            model.safetensors or model.safetensors.index.json
//   params   must outlive `weights`
enum status huggingface_open(struct huggingface_weights *weights, const char *path,
                             const struct params *params) MUST_CHECK;
void huggingface_close(struct huggingface_weights *weights);
// Reads the fp32 values of elements [begin, end) of a ZeRO unit to out[0 ..], transposed to (out, in) where
// needed; padding becomes zero. STATUS_FAILED: a file was truncated since it was opened, or cannot be read.
enum status huggingface_span(const struct huggingface_weights *weights, int unit, size_t begin, size_t end,
                             float *out) MUST_CHECK;

#endif
