// The average of the weights (train.ema), and the weights for evaluation. A run that keeps an average, and
// one of schedule-free AdamW, evaluates other weights than those it trains:
//   train.ema             average, an fp32 array of the optimizer's states (STATE_AVERAGE)
//   schedule-free AdamW   x = y + (1 - 1 / beta1) (z - y): y are the weights, z is in the place of m
// Both are elementwise, so that an element has the same bits in every stage, on the device and on the host.
#ifndef ZERO_ZERO_OPTIMIZER_AVERAGING_H
#define ZERO_ZERO_OPTIMIZER_AVERAGING_H

#include "zero/stages/model_states.h"

// After an update: average += weight (master - average), or average = master with weight 1. Without an
// average, nothing. Where the device decides on the update, it does nothing if that is skipped.
//   plan, result   in the device's memory, with the weight; NULL where the host decides
//   weight         where plan is NULL; 0: nothing
enum status average_update(const struct model_states *state, struct stream *stream,
                           const struct update_plan *plan, const struct update_result *result,
                           float weight) MUST_CHECK;

// Between steps: makes the parameters those for evaluation, or again the latest ones. No memory is allocated:
// with fp32, where the master weights are the parameters, they are kept in the memory of the gradients
// meanwhile. Before the next step, and before states are read, the latest must be shown again. Nothing
// happens if they are shown already. Collective.
//   average   the average, which must have begun; false: the latest
enum status average_show(struct model_states *state, struct stream *stream, bool average) MUST_CHECK;

#endif
