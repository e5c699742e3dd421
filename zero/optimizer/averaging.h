// The average of the weights (train.ema), and the weights for evaluation. Runs that keep an average, and runs
// of schedule-free AdamW, evaluate other weights than they train:
//   train.ema             average, an fp32 array of the optimizer's states (STATE_AVERAGE)
//   schedule-free AdamW   x = y + (1 - 1 / beta1) (z - y), for the weights y; z is stored in place of m
// Both are elementwise, so an element has the same bits in every stage, on the device and on the host.
#ifndef ZERO_ZERO_OPTIMIZER_AVERAGING_H
#define ZERO_ZERO_OPTIMIZER_AVERAGING_H

#include "zero/stages/model_states.h"

// Call it after an update. Sets average += weight (master - average); with weight 1, average = master.
// No-op without an average, with weight 0, and if the device decides on updates and skips this update.
//   plan, result   in device memory, if the device decides on updates; otherwise NULL
//   weight         used only without `plan`; with it, the weight is plan->average_weight
enum status average_update(const struct model_states *state, struct stream *stream,
                           const struct update_plan *plan, const struct update_result *result,
                           float weight) MUST_CHECK;

// Sets the parameters to the weights for evaluation, or back to the latest weights. Call it only between
// steps, on every rank. Before the next step, and before states are read, set them back. No-op if the
// parameters are the wanted weights already.
// Allocates no memory: with fp32, where the master weights are the parameters, the latest weights are kept
// in the memory of the gradients meanwhile.
//   average   true: the average; at least one update must have been averaged. false: the latest weights
enum status average_show(struct model_states *state, struct stream *stream, bool average) MUST_CHECK;

#endif
