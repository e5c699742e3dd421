// A source of trained weights, for model.init_from and the commands that use a trained model:
// - a run folder, or a folder of checkpoints: the newest checkpoint that verifies
// - a checkpoint folder
// - a Hugging Face folder of GPT-2, Llama, Qwen2 or Qwen3, or a .safetensors file or index in one
// - a GGUF model of GPT-2, Llama, Qwen2 or Qwen3, or a folder with one that is named model.gguf
#ifndef ZERO_INFER_WEIGHTS_H
#define ZERO_INFER_WEIGHTS_H

#include "data/tokenizer/tokenizer.h"
#include "model/formats/gguf.h"
#include "model/formats/huggingface.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/optimizer/rules/optimizer_groups.h"

struct weights {
    char *path;
    struct gpt_config config;       // the sizes of the model
    char *folder;                   // folder of the model's files, such as config.json; NULL for a checkpoint
    struct checkpoint *checkpoint;  // NULL: another program's model
    struct optimizer_groups groups; // set by weights_bind for a checkpoint of schedule-free AdamW
    struct huggingface_weights huggingface;
    bool huggingface_open;
    char *gguf_path; // path of the GGUF file; NULL: not a GGUF model
    struct gguf_weights gguf;
    bool gguf_open;
    bool uses_average; // weights_read_span reads the checkpoint's average; false: its latest weights
};

// Detects what `path` is and reads the model's sizes. Verifies a checkpoint. STATUS_INVALID: there are no
// weights at `path`. The message says what it is instead (such as a PyTorch pickle, or the name of a model on
// the Hugging Face Hub) and how to convert or download it, or lists what was expected.
enum status weights_open(struct weights *weights, const char *path) MUST_CHECK;
// Refuses a path without weights; always returns STATUS_INVALID. The message is as in weights_open.
enum status weights_refuse(const char *path) MUST_CHECK;
// Chooses between the average of the weights and the latest weights. A checkpoint may have both (train.ema,
// schedule-free AdamW); weights_open chooses the average if there is one. Logs the choice if the checkpoint
// has both.
//   name   "average", "latest", or NULL: keep the choice of weights_open
// STATUS_INVALID: `name` is "average" and there is none, or it is unknown.
enum status weights_choose(struct weights *weights, const char *name) MUST_CHECK;
// Checks that the weights have every tensor of `params`, with its shape. Required before weights_read_span.
// `params` must outlive `weights`.
enum status weights_bind(struct weights *weights, const struct params *params) MUST_CHECK;
// Writes the fp32 values of elements [begin, end) of a ZeRO unit to out[0 ..]. Padding elements of the unit
// become zero.
enum status weights_read_span(const struct weights *weights, int unit, size_t begin, size_t end,
                              float *out) MUST_CHECK;
// Finds the tokenizer that belongs to the weights:
// - of a checkpoint: its copy of the tokenizer, or "bytes"
// - of a GGUF model: the one in the file, if any
// - otherwise: the first that tokenizer_next_file finds in the weights' folder
// In the last two, a tokenizer that cannot be loaded is skipped with a warning. Returns the path for
// tokenizer_load, to be freed; NULL if there is no tokenizer.
char *weights_find_tokenizer(const struct weights *weights);
// Loads the tokenizer at `given`, or the weights' own if `given` is NULL or "". STATUS_INVALID: the weights
// have a tokenizer and `given` differs from it, so that its ids would mean other text.
//   out        [out] NULL if there is none
//   identity   [out] its identity; n_ids is 0 if there is none
enum status weights_load_tokenizer(const struct weights *weights, const char *given, struct tokenizer **out,
                                   struct tokenizer_identity *identity) MUST_CHECK;
void weights_close(struct weights *weights); // also after a failed weights_open

#endif
