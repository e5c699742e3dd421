// A training run, from its configuration to its last checkpoint.
#ifndef ZERO_TRAINER_TRAINER_H
#define ZERO_TRAINER_TRAINER_H

#include "options/config.h"
#include "zero/comm/comm.h"

// Trains until train.max_steps or train.max_minutes is reached. STATUS_STOPPED: a signal requested a stop,
// and a checkpoint of the last completed step has been saved.
//   config    [in, out] the config as read from its file. trainer_run resolves it, because the model's sizes
//             may come from the weights or the tokenizer that it names
//   command   the command line that resumes the run, for messages
// Collective: all ranks of `comm` call it and get the same status.
enum status trainer_run(struct config *config, const char *command, struct comm *comm) MUST_CHECK;
struct audit_task;
// Repeats steps of another run, from a checkpoint or its initial weights, and compares them with its ledger
// (trainer/auditing.h). Writes nothing but to run.dir, a folder of its own. The other arguments are as above.
//   task   NULL: as trainer_run
// STATUS_FAILED: a step differs; the message names it and what differs. STATUS_UNDECIDED: this machine rounds
// otherwise.
enum status trainer_repeat(struct config *config, const char *command, struct comm *comm,
                           const struct audit_task *task) MUST_CHECK;

#endif
