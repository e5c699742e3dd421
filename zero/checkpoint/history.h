// What a checkpoint records about its run beyond the config: members of the manifest, each absent where there
// is nothing to record.
//   history   options that resumed runs changed on purpose (checkpoint.resume_with), with the step, in order
//   best      the lowest validation loss of a saved step (checkpoint.keep_best)
//   pacing    the time spent and the length decided on, with train.max_minutes
#ifndef ZERO_ZERO_CHECKPOINT_HISTORY_H
#define ZERO_ZERO_CHECKPOINT_HISTORY_H

#include <cjson/cJSON.h>

#include "base/status.h"
#include "base/text.h"

struct history_change {
    int64_t step;            // steps done before it
    char *option, *was, *is; // values as JSON text
};

// A loss on `sequences` evenly spaced sequences of data.val; losses on other numbers are not comparable.
struct history_best {
    int64_t step, sequences; // sequences 0: none
    double loss;
};

// From `step` steps done on, the schedule is at `position` (0: just warmed up, 1: fully decayed) and moves in
// equal parts to 1 at the last of `total` steps.
struct history_decision {
    int64_t step, total;
    double position;
    double spent_s; // when it was decided; 0: not yet, and total is train.max_steps
};

struct history {
    struct history_change *changes;
    int n_changes;
    struct history_best best;
    double max_minutes;               // train.max_minutes of the decision; 0: none
    double spent_s;                   // of the whole run so far, with evaluations, samples and checkpoints
    struct history_decision decision; // the last one
};

void history_free(struct history *history);
// Copies the strings.
enum status history_add_change(struct history *history, int64_t step, const char *option, const char *was,
                               const char *is) MUST_CHECK;

// Appends the members, each with its comma and newline. Nothing for NULL.
void history_print(const struct history *history, struct text *out);
// Reads them. `step` is the checkpoint's; a later change or decision is refused. STATUS_INVALID names
// `source` and what is wrong. Free `history` also after a failure.
enum status history_parse(struct history *history, const cJSON *manifest, int64_t step,
                          const char *source) MUST_CHECK;

#endif
