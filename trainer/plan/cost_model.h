// A cost model that ranks settings of one run by speed. It uses the nominal figures of one machine, so only
// ratios between settings mean something: it does not predict the time of a step.
#ifndef ZERO_TRAINER_PLAN_COST_MODEL_H
#define ZERO_TRAINER_PLAN_COST_MODEL_H

#include "trainer/plan/plan.h"

// Nominal seconds per step with the config of `options`.
//   comm_bytes   what the rank sends per step (comm_volume_bytes)
double step_time_estimate(const struct engine_options *options, uint64_t comm_bytes);

#endif
