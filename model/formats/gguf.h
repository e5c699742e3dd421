// Models in GGUF files, as llama.cpp's loader expects them and its converter of Hugging Face models writes
// them. Vectors and position embeddings are fp32. A tied lm_head is left out (the loader uses
// token_embd.weight). llama.cpp rotates neighboring pairs of queries and keys for "llama", so these rows have
// another order there; for "qwen2" and "qwen3" the order is ours. infer/export/gguf.c writes the files.
#ifndef ZERO_MODEL_FORMATS_GGUF_H
#define ZERO_MODEL_FORMATS_GGUF_H

#include "base/gguf.h"
#include "model/params.h"

// Returns llama.cpp's name of the architecture: "gpt2", "llama", "qwen2" or "qwen3". NULL: llama.cpp has none
// with all of the model's features.
const char *gguf_architecture(const struct gpt_config *config);
// Returns the name of a tensor, row `index` of the table.
//   part   named rows of a fused tensor; -1: all rows
void gguf_tensor_name(const struct params *params, int index, int part, char *name, size_t size);
// Returns the number of heads in a part whose rows are in llama.cpp's order: queries and keys of "llama". 0
// for all others.
int gguf_reordered_heads(const struct params *params, int index, int part);

// The tensor with the divisors of RoPE's frequencies, by which these files store Llama 3's scaling.
#define GGUF_ROPE_FACTORS "rope_freqs.weight"
// Computes the factors (head_dim / 2) of a model with ROPE_LLAMA3.
void gguf_rope_factors(const struct gpt_config *config, float *factors);

// Reads sizes and variants from the keys. STATUS_INVALID: another architecture, a missing size, an
// unsupported variant, or one file of several. The message names the file and the key.
enum status gguf_read_config(const char *path, struct gpt_config *config) MUST_CHECK;

struct gguf_weights {
    const struct params *params;
    struct gguf_file file;
    const struct gguf_tensor **tensors; // (n_params * PARAM_PARTS_MOST) of each part (named rows), or of the
                                        // whole tensor; NULL: absent
};
// Opens a file with the sizes of the table, which must outlive `weights`. STATUS_INVALID: a tensor is
// missing, has another shape, does not belong to the model, or is not F32, F16, BF16 or Q8_0. The message
// names it.
enum status gguf_weights_open(struct gguf_weights *weights, const char *path,
                              const struct params *params) MUST_CHECK;
void gguf_weights_close(struct gguf_weights *weights);
// Reads the fp32 values of elements [begin, end) of a ZeRO unit to out[0 ..]; padding becomes zero.
// STATUS_FAILED: the file was truncated since it was opened, or cannot be read.
enum status gguf_span(const struct gguf_weights *weights, int unit, size_t begin, size_t end,
                      float *out) MUST_CHECK;

#endif
