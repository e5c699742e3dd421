// About how long a step takes, to put settings of one run in order of speed. Nominal figures of one machine
// stand for all: only the ratios matter, and it predicts no run's time.
#ifndef ZERO_TRAINER_PLAN_COST_MODEL_H
#define ZERO_TRAINER_PLAN_COST_MODEL_H

#include "trainer/plan/plan.h"

// Seconds of a step of one rank, as the request's config has it. comm_bytes: what the rank sends in it.
double step_time_estimate(const struct engine_options *request, uint64_t comm_bytes);

#endif
