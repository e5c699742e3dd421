// Models in GGUF files, as llama.cpp's loader wants them and its converter of Hugging Face models writes
// them: vectors and position embeddings in fp32; a tied lm_head is left out (the loader takes
// token_embd.weight). Of the Llama family, queries and keys are rotated in neighboring pairs in llama.cpp's
// "llama", so their rows are in another order there; in "qwen2" and "qwen3" they are as here.
// infer/export/gguf.c writes them.
#ifndef ZERO_MODEL_FORMATS_GGUF_H
#define ZERO_MODEL_FORMATS_GGUF_H

#include "base/gguf.h"
#include "model/params.h"

// llama.cpp's name of the architecture: "gpt2", "llama", "qwen2" or "qwen3". NULL: it has none with all that
// the model has.
const char *gguf_architecture(const struct gpt_config *config);
// The name of a tensor, row `index` of the table; part -1: all of it.
void gguf_tensor_name(const struct params *params, int index, int part, char *name, size_t size);
// The heads of a part whose rows are in llama.cpp's order, queries and keys of "llama"; 0 for all others.
int gguf_reordered_heads(const struct params *params, int index, int part);

// Llama 3's scaling of RoPE's frequencies is a tensor in these files: what each frequency is divided by.
#define GGUF_ROPE_FACTORS "rope_freqs.weight"
// factors (head_dim / 2) of a model with ROPE_LLAMA3.
void gguf_rope_factors(const struct gpt_config *config, float *factors);

// Reads the sizes and variants from the keys. STATUS_INVALID names the file and the key: another
// architecture, a size that is missing, a variant that this program has not, one file of several.
enum status gguf_read_config(const char *path, struct gpt_config *config) MUST_CHECK;

struct gguf_weights {
    const struct params *params;
    struct gguf_file file;
    const struct gguf_tensor **tensors; // (n_params * PARAM_PARTS_MOST) of each part, or of the whole; NULL
};
// Opens a file with the sizes of the table, which must outlive `weights`. STATUS_INVALID names a tensor that
// is missing, has another shape, is no part of the model, or is of a type other than F32, F16, BF16 and Q8_0.
enum status gguf_weights_open(struct gguf_weights *weights, const char *path,
                              const struct params *params) MUST_CHECK;
void gguf_weights_close(struct gguf_weights *weights);
// Reads the fp32 values of elements [begin, end) of a unit to out[0 ..]; padding gets zero. STATUS_FAILED:
// the file was cut since it was opened, or cannot be read.
enum status gguf_span(const struct gguf_weights *weights, int unit, size_t begin, size_t end,
                      float *out) MUST_CHECK;

#endif
