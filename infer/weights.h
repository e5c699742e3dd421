// A source of trained weights, for model.init_from and the commands that use a trained model:
// - a run folder, or a folder of checkpoints: the newest checkpoint that verifies
// - a checkpoint folder
// - a Hugging Face GPT-2 folder, or a .safetensors file or index in one
#ifndef ZERO_INFER_WEIGHTS_H
#define ZERO_INFER_WEIGHTS_H

#include "model/huggingface.h"
#include "zero/checkpoint/checkpoint.h"

struct weights {
    char *path;
    struct gpt_config config;      // the sizes of the model
    char *folder;                  // of a Hugging Face model: that of config.json; else NULL
    struct checkpoint *checkpoint; // NULL: a Hugging Face model
    struct huggingface_weights huggingface;
    bool huggingface_open;
};

// Detects what `path` is and reads the sizes. Checkpoints are verified here. STATUS_INVALID says what the
// path is instead (PyTorch's pickle, a model of llm.c, the name of a model on the Hugging Face Hub) and how
// to convert it, or lists what was expected.
enum status weights_open(struct weights *weights, const char *path) MUST_CHECK;
// Checks every tensor against the table, which must outlive `weights`. Required before weights_read_span.
enum status weights_bind(struct weights *weights, const struct params *params) MUST_CHECK;
// Writes the fp32 values of elements [begin, end) of a unit to out[0 ..]; padding gets zero.
enum status weights_read_span(const struct weights *weights, int unit, size_t begin, size_t end,
                              float *out) MUST_CHECK;
// Finds the tokenizer that belongs to the weights: the checkpoint's copy or, in the folder of a Hugging Face
// model, one of tokenizer_next_file. One that cannot be used is warned of and passed over.
//   path   [out] for tokenizer_load, to be freed; NULL when there is none
enum status weights_find_tokenizer(const struct weights *weights, char **path) MUST_CHECK;
void weights_close(struct weights *weights); // also after a failed weights_open

#endif
