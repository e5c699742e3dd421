// The optimizer step: global norm, clipping, and the update of this rank's spans, on the device or on the
// host (zero/offload/placement.h). zero/optimizer/rules/optimizer_groups.h defines which rule updates a
// tensor; zero/optimizer/step_control.h whether the host or the device decides on the update.
#ifndef ZERO_ZERO_OPTIMIZER_OPTIMIZER_H
#define ZERO_ZERO_OPTIMIZER_OPTIMIZER_H

#include "zero/optimizer/muon.h"
#include "zero/optimizer/step_control.h"
#include "zero/stages/model_states.h"

struct optimizer {
    struct model_states *state;
    struct step_control control;
    int spans_region;
    int n_spans;                                          // that the device updates element by element
    struct optimizer_spans_args spans[N_OPTIMIZER_RULES]; // by their rules
    struct muon muon;                                     // no rounds without Muon
};

// Adds regions to `table`, after model_states_init. Call optimizer_free also after a failure.
enum status optimizer_init(struct optimizer *optimizer, struct model_states *state,
                           struct region_table *table) MUST_CHECK;
// Call it after model_states_bind.
enum status optimizer_bind(struct optimizer *optimizer, const struct region_table *table) MUST_CHECK;
void optimizer_free(struct optimizer *optimizer); // before model_states_free

// The plan of an update after one that is finished, without its weight in the average
// (zero/optimizer/averaging.h); the caller sets both.
//   step               counts updates, from 1
//   weighted_targets   the sum of the weights of the step's targets, over all ranks
struct update_plan optimizer_plan(const struct optimizer *optimizer, int64_t step, double lr,
                                  double loss_scale, double weighted_targets);

// ---- where the host decides on overflow and clipping

// The global norm of the gradients, in double, before unscaling: if losses were scaled, so is the norm. The
// bits are the same on every rank and in every stage. It is a separate pass, with or without clipping,
// because no state may change before the gradients are known to be finite.
enum status optimizer_norm(struct optimizer *optimizer, struct stream *stream, double *norm) MUST_CHECK;
// Updates the spans of this rank and makes the new parameters visible to every rank. Gradients are multiplied
// by result->grad_scale. Weight decay applies to tensors of two or more dimensions.
//   result   of update_result_of (kernels/update.h), not skipped
enum status optimizer_update(struct optimizer *optimizer, struct stream *stream,
                             const struct update_plan *plan, const struct update_result *result) MUST_CHECK;
// Call it instead of optimizer_update to skip a step.
enum status optimizer_skip(struct optimizer *optimizer, struct stream *stream) MUST_CHECK;

// ---- where the device decides (zero/optimizer/step_control.h)

// True unless ranks communicate through the host (comm_on_device) or the host holds optimizer states.
bool optimizer_decides_on_device(const struct optimizer *optimizer);
// Computes the norm, decides, and updates unless the step is skipped; see optimizer_norm and
// optimizer_update. Needs comm_on_device.
enum status optimizer_decide(struct optimizer *optimizer, struct stream *stream) MUST_CHECK;

#endif
