// Reads GPT-2 weights from a Hugging Face folder (config.json and model.safetensors).
#ifndef ZERO_MODEL_HUGGINGFACE_H
#define ZERO_MODEL_HUGGINGFACE_H

#include "model/params.h"
#include "model/safetensors.h"

// Reads the sizes from FOLDER/config.json. STATUS_INVALID names the file and the key. It is also returned for
// models that are not supported: another model_type, an activation_function other than gelu_new, another
// layer_norm_epsilon, untied embeddings, and options that change GPT-2's attention or MLP.
enum status huggingface_read_config(const char *folder, struct gpt_config *config) MUST_CHECK;

struct huggingface_weights {
    const struct params *params;
    struct safetensors file;
    int *tensor_of_param; // (n_params) index into the file's tensors
};
// Opens FOLDER/model.safetensors and checks every tensor against the table: names (with or without
// "transformer."), shapes, types (F32, F16, BF16). STATUS_INVALID names the tensors that are missing, unknown
// or of another shape. Ignored: the masks h.N.attn.bias and h.N.attn.masked_bias, and an lm_head.weight equal
// to wte. `params` must outlive `weights`.
enum status huggingface_open(struct huggingface_weights *weights, const char *folder,
                             const struct params *params) MUST_CHECK;
void huggingface_close(struct huggingface_weights *weights);
// Writes the fp32 values of elements [begin, end) of a unit to out[0 ..], transposed to (out, in) where
// needed; padding gets zero.
void huggingface_span(const struct huggingface_weights *weights, int unit, size_t begin, size_t end,
                      float *out);

#endif
