// A training run, from its configuration to its last checkpoint.
#ifndef ZERO_TRAINER_TRAINER_H
#define ZERO_TRAINER_TRAINER_H

#include "configs/config.h"
#include "zero/comm/comm.h"

// Trains until train.max_steps, or until a signal asks for a stop (STATUS_STOPPED, with a checkpoint
// written). The config is as read, not yet resolved: sizes may come from the weights that it names. command:
// what to type to go on. All ranks of `comm` run together; each gets the same status.
enum status trainer_run(struct config *config, const char *command, struct comm *comm) MUST_CHECK;

#endif
