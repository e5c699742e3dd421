// Internal to configs/: the batch sizes of a run.
#ifndef ZERO_OPTIONS_BATCHES_H
#define ZERO_OPTIONS_BATCHES_H

#include "options/config.h"

// Derives those of micro_batch_size, gradient_accumulation_steps and train_batch_size that are left open, and
// checks that they agree, with each other and with train.batch_size_schedule.
enum status batches_derive(struct config *config, int world) MUST_CHECK;

#endif
