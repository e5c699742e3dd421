// Reads weights of GPT-2 and of the Llama family as Hugging Face stores them: config.json, and
// model.safetensors or several such files with an index.
#ifndef ZERO_MODEL_FORMATS_HUGGINGFACE_H
#define ZERO_MODEL_FORMATS_HUGGINGFACE_H

#include "model/formats/safetensors.h"
#include "model/params.h"

// Reads the sizes from FOLDER/config.json. STATUS_INVALID names the file and the key. It is also returned for
// models that are not supported: another model_type, an activation_function other than gelu_new, another
// layer_norm_epsilon, untied embeddings of GPT-2, and options that change its attention or MLP; of the Llama
// family, variants that this program has not, and a rope_scaling beside other rope_parameters. Warns of keys
// that it does not know.
enum status huggingface_read_config(const char *folder, struct gpt_config *config) MUST_CHECK;
// Of a config with a tied lm_head, of the Llama family: unties it if the files (path as for huggingface_open)
// hold an lm_head.weight that is not the embedding, as transformers does.
enum status huggingface_find_head(const char *path, struct gpt_config *config) MUST_CHECK;

// Where a parameter is: tensor `tensor` of file `file`. file -1: nowhere.
struct huggingface_tensor {
    int file, tensor;
};
struct huggingface_weights {
    const struct params *params;
    char *path; // of the file or of the index, for messages
    struct safetensors *files;
    int n_files;
    struct huggingface_tensor *tensor_of_param; // (n_params)
};
// Opens the weights and checks every tensor against the table: names (with or without "transformer."),
// shapes, types (F32, F16, BF16, F64). STATUS_INVALID names the tensors that are missing, unknown or of
// another shape. Ignored: the masks h.N.attn.bias and h.N.attn.masked_bias, and an lm_head.weight equal to
// the embedding that it is tied to; without that embedding, lm_head.weight is read in its place. `params`
// must outlive `weights`.
//   path   a .safetensors file; an index (.safetensors.index.json) of several; or a folder with
//   model.safetensors or
//          model.safetensors.index.json
enum status huggingface_open(struct huggingface_weights *weights, const char *path,
                             const struct params *params) MUST_CHECK;
void huggingface_close(struct huggingface_weights *weights);
// Reads the fp32 values of elements [begin, end) of a unit to out[0 ..], transposed to (out, in) where
// needed; padding gets zero. STATUS_FAILED: a file was cut since it was opened, or cannot be read.
enum status huggingface_span(const struct huggingface_weights *weights, int unit, size_t begin, size_t end,
                             float *out) MUST_CHECK;

#endif
