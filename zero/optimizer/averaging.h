// The average of the weights (train.ema), and the weights for evaluation. Runs that keep an average, and runs
// of schedule-free AdamW, evaluate other weights than they train:
//   train.ema             average, an fp32 array of the optimizer's states (STATE_AVERAGE)
//   schedule-free AdamW   x = y + (1 - 1 / beta1) (z - y): y are the weights; z is stored in place of m
// Both are elementwise, so that an element has the same bits in every stage, on the device and on the host.
#ifndef ZERO_ZERO_OPTIMIZER_AVERAGING_H
#define ZERO_ZERO_OPTIMIZER_AVERAGING_H

#include "zero/stages/model_states.h"

// After an update: average += weight (master - average); with weight 1, average = master. No-op without an
// average, and if the device decides on updates and this one is skipped.
//   plan, result   in device memory, including the weight; NULL if the host decides
//   weight         read if plan is NULL; 0: no-op
enum status average_update(const struct model_states *state, struct stream *stream,
                           const struct update_plan *plan, const struct update_result *result,
                           float weight) MUST_CHECK;

// Between steps: sets the parameters to the weights for evaluation, or back to the latest weights. Allocates
// no memory: with fp32, where the master weights are the parameters, the latest weights are kept in the
// memory of the gradients meanwhile. Set the latest weights again before the next step and before states are
// read. No-op if the parameters are these weights already. Collective.
//   average   true: the average, which must have begun; false: the latest weights
enum status average_show(struct model_states *state, struct stream *stream, bool average) MUST_CHECK;

#endif
