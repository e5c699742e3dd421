// The optimizer step: global norm, clipping, and the update of this rank's spans, on the device or on the
// host (zero/offload/placement.h). zero/optimizer/rules/optimizer_groups.h defines which rule updates a
// tensor. zero/optimizer/step_control.h describes how the host or the device decides on the update.
#ifndef ZERO_ZERO_OPTIMIZER_OPTIMIZER_H
#define ZERO_ZERO_OPTIMIZER_OPTIMIZER_H

#include "zero/optimizer/muon.h"
#include "zero/optimizer/step_control.h"
#include "zero/stages/model_states.h"

struct optimizer {
    struct model_states *state;
    struct step_control control;
    int spans_region;
    int n_spans; // number of spans that the device updates element by element
    struct optimizer_spans_args spans[N_OPTIMIZER_RULES]; // these spans, by rule
    struct muon muon;                                     // has no rounds if no tensor uses Muon
};

// Adds regions to `table`, after model_states_init. Call optimizer_free also after a failure.
enum status optimizer_init(struct optimizer *optimizer, struct model_states *state,
                           struct region_table *table) MUST_CHECK;
// Call it after model_states_bind.
enum status optimizer_bind(struct optimizer *optimizer, const struct region_table *table) MUST_CHECK;
void optimizer_free(struct optimizer *optimizer); // call it before model_states_free

// Returns the plan of an update. The caller adds is_ahead, the limits for spikes, and the weight of the
// update in the average (zero/optimizer/averaging.h).
//   step               counts updates, from 1
//   weighted_targets   the sum of the weights of the step's targets, over all ranks
struct update_plan optimizer_plan(const struct optimizer *optimizer, int64_t step, double lr,
                                  double loss_scale, double weighted_targets);

// ---- where the host decides on overflow and clipping

// Computes the global norm of the gradients, in double, before unscaling: if losses were scaled, so is the
// norm. The bits are the same on every rank and in every stage. The norm is computed before the update, also
// without clipping, because no state may change before the gradients are known to be finite.
enum status optimizer_norm(struct optimizer *optimizer, struct stream *stream, double *norm) MUST_CHECK;
// Updates the spans of this rank and makes the new parameters visible to every rank. Gradients are
// multiplied by result->grad_scale. Learning rate and weight decay are those of each tensor's
// optimizer group.
//   result   as update_result_of (kernels/update.h) returns it; result->skipped must be UPDATE_DONE
enum status optimizer_update(struct optimizer *optimizer, struct stream *stream,
                             const struct update_plan *plan, const struct update_result *result) MUST_CHECK;
// Call it instead of optimizer_update to skip a step.
enum status optimizer_skip(struct optimizer *optimizer, struct stream *stream) MUST_CHECK;

// ---- where the device decides (zero/optimizer/step_control.h)

// True if the device decides. The host decides if ranks communicate through the host (comm_on_device is
// false), or if the host holds optimizer states.
bool optimizer_decides_on_device(const struct optimizer *optimizer);
// Computes the norm, lets the device decide whether the update happens (step_control_decide), and updates
// unless the step is skipped; see optimizer_norm and optimizer_update. optimizer_decides_on_device must be
// true.
enum status optimizer_decide(struct optimizer *optimizer, struct stream *stream) MUST_CHECK;

#endif
