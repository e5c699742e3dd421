// The optimizer step: global norm, clipping, and the update of the spans that this rank updates, on the
// device or on the host (zero/offload/placement.h).
//
// Messages. Before a step the host tells the device its plan, after it the device the host how it ended. The
// device decides (kernels/ops.h: update_decide), so that the host can issue the next step before it knows.
// Messages go through pinned memory. There are STEP_SLOTS of it: the host writes one slot while the device
// still reads the other.
#ifndef ZERO_ZERO_OPTIMIZER_OPTIMIZER_H
#define ZERO_ZERO_OPTIMIZER_OPTIMIZER_H

#include "zero/optimizer/muon.h"
#include "zero/stages/model_states.h"

#define STEP_SLOTS 2

// In the device's memory.
struct step_memory {
    struct update_plan plan;
    struct update_result result;
    double sums[2]; // of this rank: losses; squares of the gradients
};

// In pinned host memory.
struct step_message {
    struct update_plan plan;
    struct update_result result;
    double loss_sum;
};

struct optimizer {
    struct model_states *state;
    // Where the host decides, the caller sets the weight with which the next update's weights enter the
    // average (zero/optimizer/averaging.h); 0: they do not.
    float average_weight;
    int memory_region, gathered_region, messages_region, spans_region;
    struct step_memory *memory;
    double *gathered;                                 // (world, 2) every rank's sums, in the device's memory
    struct step_message *messages;                    // (STEP_SLOTS)
    struct event began[STEP_SLOTS], done[STEP_SLOTS]; // timed; done: the device has read and written the slot
    int n_spans;                                      // that the device updates element by element
    struct optimizer_spans_args spans[N_OPTIMIZER_RULES]; // by their rules
    struct muon muon;                                     // no rounds without Muon
};

// Adds regions to `table`, after model_states_init. Call optimizer_free also after a failure.
enum status optimizer_init(struct optimizer *optimizer, struct model_states *state,
                           struct region_table *table) MUST_CHECK;
// After model_states_bind.
enum status optimizer_bind(struct optimizer *optimizer, const struct region_table *table) MUST_CHECK;
void optimizer_free(struct optimizer *optimizer); // before model_states_free

// ---- where the host decides on overflow and clipping

// The global norm of the gradients, in double, before unscaling: if losses were scaled, so is the norm. The
// bits are the same on every rank and in every stage. It is a pass of its own, with or without clipping,
// because no state may change before gradients are known to be finite.
enum status optimizer_norm(struct optimizer *optimizer, struct stream *stream, double *norm) MUST_CHECK;
// This rank's sum of losses at optimizer_loss_sum, on the host. Waits for the stream.
enum status optimizer_losses(struct optimizer *optimizer, struct stream *stream, double *sum) MUST_CHECK;
// Updates the spans of this rank and makes the new parameters visible to every rank. Gradients are divided by
// loss_scale and multiplied by min(1, clip / (norm + 1e-6)), as by torch.nn.utils.clip_grad_norm_. Weight
// decay applies to tensors of two or more dimensions.
//   step         counts updates, from 1
//   norm         of the gradients divided by loss_scale
enum status optimizer_update(struct optimizer *optimizer, struct stream *stream, int64_t step, double lr,
                             double norm, double loss_scale) MUST_CHECK;
// Call instead of optimizer_update to skip a step.
enum status optimizer_skip(struct optimizer *optimizer, struct stream *stream) MUST_CHECK;

// ---- where the device decides, and the host issues the next step meanwhile
//
// A step is optimizer_begin, its micro-batches, optimizer_decide, optimizer_send; and at any time later
// optimizer_receive. Slots alternate.

// True unless ranks communicate through the host (comm_on_device) or the host holds optimizer states.
bool optimizer_decides_on_device(const struct optimizer *optimizer);
// The plan of an update after one that is finished, without its weight in the average; the caller sets both.
//   step       counts updates, from 1
//   n_tokens   of the step, over all ranks
struct update_plan optimizer_plan(const struct optimizer *optimizer, int64_t step, double lr,
                                  double loss_scale, double n_tokens);
// Before the first micro-batch.
enum status optimizer_begin(struct optimizer *optimizer, struct stream *stream, int slot,
                            const struct update_plan *plan) MUST_CHECK;
// The norm, the decision, and the update if it is not skipped; see optimizer_norm and optimizer_update. Needs
// comm_on_device.
enum status optimizer_decide(struct optimizer *optimizer, struct stream *stream) MUST_CHECK;
// Sends the result to the slot of the host.
enum status optimizer_send(struct optimizer *optimizer, struct stream *stream, int slot) MUST_CHECK;
// Waits for the result.
//   seconds   [out] from optimizer_begin to optimizer_send on the device; 0 where operations are synchronous
enum status optimizer_receive(struct optimizer *optimizer, int slot, struct update_result *result,
                              double *seconds) MUST_CHECK;

// Where the losses of this rank's micro-batches are to be summed, and the scale of their gradients after
// optimizer_begin; both in the device's memory.
double *optimizer_loss_sum(const struct optimizer *optimizer);
const float *optimizer_loss_factor(const struct optimizer *optimizer);

#endif
