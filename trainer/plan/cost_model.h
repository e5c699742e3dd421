// A cost model that ranks settings of one run by speed. It uses the nominal figures of one machine, so only
// ratios between settings mean something: it does not predict the time of a step.
#ifndef ZERO_TRAINER_PLAN_COST_MODEL_H
#define ZERO_TRAINER_PLAN_COST_MODEL_H

#include "trainer/plan/plan.h"

// What a rank computes, as the dry run of the model's passes counts it (model/work.h).
struct step_work {
    double flops, products; // of a micro-batch: of linear layers and attention, and their calls
    double update_flops;    // of the rank's matrix products in an update (Muon)
};

// The first two, with what the setting recomputes in backward. Elementwise operations count as free.
void step_work_count(const struct gpt_work *model, struct step_work *out);

// The last of these for a rank: the products of all matrices that Muon updates, which ranks share.
enum status update_flops_estimate(const struct engine_options *options, double *out) MUST_CHECK;
// Nominal seconds per step with the config of `options`.
//   comm_bytes   what the rank sends per step (comm_volume_bytes)
double step_time_estimate(const struct engine_options *options, const struct step_work *work,
                          uint64_t comm_bytes);

#endif
