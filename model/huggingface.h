// Weights in: Hugging Face's GPT-2 folders (config.json + model.safetensors). Relies on model/safetensors.
#ifndef ZERO_MODEL_HUGGINGFACE_H
#define ZERO_MODEL_HUGGINGFACE_H

#include "model/params.h"
#include "model/safetensors.h"

// Reads the sizes from DIR/config.json. STATUS_INVALID names the file and key, also for what we do not train:
// another model_type, activation_function other than gelu_new, another layer_norm_epsilon, untied embeddings.
enum status huggingface_read_config(const char *folder, struct gpt_config *config) MUST_CHECK;

// An opened folder whose tensors were all checked against the table: names (with or without "transformer."),
// shapes, types (F32, F16, BF16). Missing, unknown and misshapen tensors are STATUS_INVALID, each named; the
// masks h.N.attn.bias and h.N.attn.masked_bias and a tied lm_head.weight are ignored.
struct huggingface_weights {
    const struct params *params;
    struct safetensors file;
    int *tensor_of_param; // (n_params) index into the file's tensors
};
enum status huggingface_open(struct huggingface_weights *weights, const char *folder,
                             const struct params *params) MUST_CHECK;
void huggingface_close(struct huggingface_weights *weights);
// Fp32 values of elements [begin, end) of a unit, transposed to (out, in) where needed; padding gets zero.
void huggingface_span(const struct huggingface_weights *weights, int unit, size_t begin, size_t end,
                      float *out);

#endif
