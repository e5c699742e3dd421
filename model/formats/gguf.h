// Models in GGUF files, as llama.cpp's loader expects them and its converter of Hugging Face models writes
// them. In written files, tensors of one dimension and position embeddings are fp32, and a tied lm_head is
// left out (the loader uses token_embd.weight). For "llama", llama.cpp rotates neighboring rows of queries
// and keys, so files have these rows in another order than the parameter table. infer/export/gguf.c writes
// the files.
#ifndef ZERO_MODEL_FORMATS_GGUF_H
#define ZERO_MODEL_FORMATS_GGUF_H

#include "base/gguf.h"
#include "model/params.h"

// Returns llama.cpp's name of the architecture: "gpt2", "llama", "qwen2" or "qwen3". NULL: llama.cpp has none
// with all of the model's features.
const char *gguf_architecture(const struct gpt_config *config);
// Writes to `name` the name of a tensor in GGUF files.
//   index  the tensor's row in the parameter table
//   part   part of a fused tensor (struct param_part); -1: the whole tensor
void gguf_tensor_name(const struct params *params, int index, int part, char *name, size_t size);
// Returns the number of heads of a part whose rows are in llama.cpp's order in files: the queries or keys
// of "llama". Returns 0 for all other parts and for whole tensors.
int gguf_reordered_heads(const struct params *params, int index, int part);

// The name of the tensor that stores Llama 3's RoPE scaling: a divisor for each frequency.
#define GGUF_ROPE_FACTORS "rope_freqs.weight"
// Computes these divisors for a model with ROPE_LLAMA3.
//   factors  [out] (head_dim / 2)
void gguf_rope_factors(const struct gpt_config *config, float *factors);

// Reads a model's sizes and variants from the keys of a file. STATUS_INVALID: another architecture, a
// missing size, an unsupported variant, or the file is one of several. The message names the file and the
// key.
enum status gguf_read_config(const char *path, struct gpt_config *config) MUST_CHECK;

struct gguf_weights {
    const struct params *params;
    struct gguf_file file;
    // (n_params, PARAM_PARTS_MOST): for each row of the parameter table, the file's tensors of its parts
    // (struct param_part). If the file has a row as one tensor, the first element is that tensor. Elements
    // that are not used are NULL.
    const struct gguf_tensor **tensors;
};
// Opens a file and checks its tensors against `params`, which must outlive `weights`. STATUS_INVALID: a
// tensor is missing, has another shape, does not belong to the model, or is not F32, F16, BF16 or Q8_0. The
// message names the tensor.
enum status gguf_weights_open(struct gguf_weights *weights, const char *path,
                              const struct params *params) MUST_CHECK;
void gguf_weights_close(struct gguf_weights *weights);
// Reads the fp32 values of elements [begin, end) of a ZeRO unit to out[0 ..]; padding becomes zero.
// STATUS_FAILED: the file was truncated since it was opened, or cannot be read.
enum status gguf_span(const struct gguf_weights *weights, int unit, size_t begin, size_t end,
                      float *out) MUST_CHECK;

#endif
