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
// Called after a failure on which all ranks agreed: moves its message to `reason`, and clears the failure. If
// the run's folder was removed or replaced, returns that failure instead, because it caused the other one.
// Collective.
//   reason   [out] the message; empty unless STATUS_OK is returned
enum status checkpoints_take_failure(struct run *run, struct text *reason) MUST_CHECK;

// ---- resuming

// Opens the checkpoint to resume, if there is one, and copies its step and records to the run. Checks that
// the config is compatible with it. Collective.
//   resumed   [out] the open checkpoint; NULL: there is none to resume, so the run is new
enum status checkpoints_find(struct run *run, struct training_data *data,
                             struct checkpoint **resumed) MUST_CHECK;
// Refuses a resumed run with train.logical_ranks whose sums would not be those of the run that it resumes:
// STATUS_INVALID. Call it once the micro-batch size is known. STATUS_OK if `resumed` is NULL.
enum status checkpoints_check_sums(const struct run *run, const struct checkpoint *resumed) MUST_CHECK;
// Logs where the run resumes; nothing if `resumed` is NULL. If the ranks, stage, partition or micro-batch
// size have changed, also logs whether results remain bitwise equal to those without the change.
void checkpoints_describe_resumed(const struct run *run, const struct checkpoint *resumed);
// Loads the weights, moments and averages of a checkpoint. Logs the tensors whose moments start at zero,
// because they were frozen or had another optimizer rule. STATUS_INVALID: optimizer.betas[0] has changed,
// which gives the states of schedule-free AdamW another meaning. Collective.
enum status checkpoints_load_states(struct run *run, struct checkpoint *from) MUST_CHECK;

#endif
