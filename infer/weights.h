// Where a model's weights come from when they are not random: a run folder or a folder of
// checkpoints (the newest good one), a checkpoint folder, or a Hugging Face GPT-2 folder. Serves
// model.init_from and the commands that use a trained model.
#ifndef ZERO_INFER_WEIGHTS_H
#define ZERO_INFER_WEIGHTS_H

#include "model/huggingface.h"
#include "zero/checkpoint/checkpoint.h"

struct weights {
    char *path;
    struct gpt_config config;      // the sizes found there
    struct checkpoint *checkpoint; // NULL: a Hugging Face folder
    struct huggingface_weights huggingface;
    bool huggingface_open;
};

// Finds out what `path` is and reads its sizes; checkpoints are verified here. STATUS_INVALID says what was
// looked for.
enum status weights_open(struct weights *weights, const char *path) MUST_CHECK;
// Checks every tensor against the table (which must outlive `weights`). Before weights_read_span.
enum status weights_bind(struct weights *weights, const struct params *params) MUST_CHECK;
// Fp32 values of elements [begin, end) of a unit; padding gets zero.
enum status weights_read_span(const struct weights *weights, int unit, size_t begin, size_t end,
                              float *out) MUST_CHECK;
void weights_close(struct weights *weights); // also after a failed weights_open

#endif
