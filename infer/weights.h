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
    char *folder;                   // of the files, where its tokenizer may be; NULL for a checkpoint
    struct checkpoint *checkpoint;  // NULL: a model of another program
    struct optimizer_groups groups; // of a checkpoint of schedule-free AdamW, after weights_bind
    struct huggingface_weights huggingface;
    bool huggingface_open;
    char *gguf_path; // of a GGUF model; else NULL
    struct gguf_weights gguf;
    bool gguf_open;
    bool uses_average; // of the checkpoint, whose latest weights are read otherwise (weights_choose)
};

// Detects what `path` is and reads the sizes. Checkpoints are verified here. STATUS_INVALID says what the
// path is instead (PyTorch's pickle, the name of a model on the Hugging Face Hub) and how to convert it, or
// lists what was expected.
enum status weights_open(struct weights *weights, const char *path) MUST_CHECK;
// Refuses a path that holds no weights, always with STATUS_INVALID. The message says what the path is and how
// to convert it, or what was expected.
enum status weights_refuse(const char *path) MUST_CHECK;
// A checkpoint may hold an average of the weights beside the latest ones: train.ema, or schedule-free AdamW.
// Those that weights_open finds are the average where there is one. Chooses by name ("average" or "latest";
// NULL: as found), and logs what was chosen if there is a choice. STATUS_INVALID: there is no average.
enum status weights_choose(struct weights *weights, const char *name) MUST_CHECK;
// Checks every tensor against the table, which must outlive `weights`. Required before weights_read_span.
enum status weights_bind(struct weights *weights, const struct params *params) MUST_CHECK;
// Writes the fp32 values of elements [begin, end) of a unit to out[0 ..]; padding gets zero.
enum status weights_read_span(const struct weights *weights, int unit, size_t begin, size_t end,
                              float *out) MUST_CHECK;
// Finds the tokenizer that belongs to the weights: the checkpoint's copy or, in the folder of another
// model, one of tokenizer_next_file. One that cannot be used is warned of and passed over. Returns its path
// for tokenizer_load, to be freed; NULL when there is none.
char *weights_find_tokenizer(const struct weights *weights);
// Loads that tokenizer, or the one at `given` (not NULL or ""): ids of another are other text, even if both
// have the same number of them, so STATUS_INVALID: it is another.
//   out       [out] NULL when there is none
//   identity  [out] of it; n_ids 0: none
enum status weights_load_tokenizer(const struct weights *weights, const char *given, struct tokenizer **out,
                                   struct tokenizer_identity *identity) MUST_CHECK;
void weights_close(struct weights *weights); // also after a failed weights_open

#endif
