// The checkpoints of a run: those that it writes, and the one that it resumes from.
#ifndef ZERO_TRAINER_CHECKPOINTS_H
#define ZERO_TRAINER_CHECKPOINTS_H

#include "trainer/run.h"
#include "trainer/training_data.h"

// ---- saving

// Writes a checkpoint and removes old ones beyond checkpoint.keep. Collective.
//   tokenizer   copied into it; NULL: none
//   evaluated   the last evaluation during the run; if it is of this step, the checkpoint may become the best
enum status checkpoints_save(struct run *run, const struct tokenizer *tokenizer,
                             const struct run_best *evaluated) MUST_CHECK;
// Takes over the message of a failure that all ranks have, and forgets the failure. Where the run's folder is
// no longer its own, fails with that: what failed before follows from it. Collective.
//   reason   [out] the message; empty after a failure
enum status checkpoints_take_failure(struct run *run, struct text *reason) MUST_CHECK;

// ---- resuming

// Opens the checkpoint to resume, if any, and takes over its step and records. Checks that the config
// continues it. Collective.
//   resumed   [out] NULL: a new run
enum status checkpoints_find(struct run *run, struct training_data *data,
                             struct checkpoint **resumed) MUST_CHECK;
// Logs where the run goes on, and whether with the same bits.
void checkpoints_describe_resumed(const struct run *run, const struct checkpoint *resumed);
// Loads the weights, moments and averages of a checkpoint; says which tensors' moments begin anew, as another
// rule wrote theirs. STATUS_INVALID: its states would not mean the same in this run. Collective.
enum status checkpoints_load_states(struct run *run, struct checkpoint *from) MUST_CHECK;

#endif
