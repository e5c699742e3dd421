// The checkpoints of a run: those that it writes, and the one from which it resumes.
#ifndef ZERO_TRAINER_CHECKPOINTS_H
#define ZERO_TRAINER_CHECKPOINTS_H

#include "trainer/run.h"
#include "trainer/training_data.h"

// ---- saving

// Writes a checkpoint and removes old ones beyond checkpoint.keep. Collective.
//   tokenizer   copied into the checkpoint; NULL: none
//   evaluated   the last evaluation of the run; if it was at this step, the checkpoint may become the best
enum status checkpoints_save(struct run *run, const struct tokenizer *tokenizer,
                             const struct run_best *evaluated) MUST_CHECK;
// Takes over the message of a failure that all ranks have, and clears the failure. If the run's folder was
// removed or replaced, fails with that instead, because it caused the other failure. Collective.
//   reason   [out] the message; empty after a failure
enum status checkpoints_take_failure(struct run *run, struct text *reason) MUST_CHECK;

// ---- resuming

// Opens the checkpoint to resume, if there is one, and takes over its step and records. Checks that the
// config is compatible with it. Collective.
//   resumed   [out] NULL: a new run
enum status checkpoints_find(struct run *run, struct training_data *data,
                             struct checkpoint **resumed) MUST_CHECK;
// Logs where the run resumes, and whether its bits are those of an uninterrupted run.
void checkpoints_describe_resumed(const struct run *run, const struct checkpoint *resumed);
// Loads the weights, moments and averages of a checkpoint. Reports tensors whose moments start anew because
// another rule wrote theirs. STATUS_INVALID: the states would have another meaning in this run. Collective.
enum status checkpoints_load_states(struct run *run, struct checkpoint *from) MUST_CHECK;

#endif
