// Step control: how host and device agree on a step. The device decides whether an update happens, and the
// factor of the gradients (kernels/ops.h: update_decide), so that the host can issue the next step before it
// knows the result. If the host must decide, it sends the device its decision.
//
// The host sends the device a plan before each step; the device sends the host the result after it. Both go
// through STEP_SLOTS slots of pinned memory: the host writes one slot while the device still reads the other.
//
// The calls of a step on which the device decides: step_control_begin, the step's micro-batches,
// optimizer_decide, step_control_send; and, at any later time, step_control_receive. Steps use the slots in
// turn.
#ifndef ZERO_ZERO_OPTIMIZER_STEP_CONTROL_H
#define ZERO_ZERO_OPTIMIZER_STEP_CONTROL_H

#include "kernels/ops.h"
#include "zero/partition/stage.h"

#define STEP_SLOTS 2

// In device memory.
struct step_memory {
    struct update_plan plan;
    struct update_result result;
};

// In pinned host memory.
struct step_message {
    struct update_plan plan;
    struct update_result result;
};

struct step_control {
    const struct stage *stage;
    int memory_region, sums_region, gathered_region, messages_region, losses_region;
    struct step_memory *memory;
    // This rank's sums as update_decide needs them, in device memory: (EXACT_WORDS) squares of gradients,
    // then (n_losses) losses, one for each logical rank that this rank computes.
    int64_t *sums;
    void *gathered;                // (world) every rank's sums, in device memory
    double *losses;                // (n_losses) a copy of the losses in host memory
    struct step_message *messages; // (STEP_SLOTS) the slots
    // Timed events. `began`: the device begins the step. `done`: its copies from and to the slot are done.
    struct event began[STEP_SLOTS], done[STEP_SLOTS];
};

// Adds regions to `table`. Call step_control_free also after a failure.
enum status step_control_init(struct step_control *control, const struct stage *stage,
                              struct region_table *table) MUST_CHECK;
enum status step_control_bind(struct step_control *control, const struct region_table *table) MUST_CHECK;
void step_control_free(struct step_control *control);

// Returns the device memory in which to sum the losses of the micro-batches of this rank's logical rank j.
double *step_control_loss_sum(const struct step_control *control, int j);
// Returns the device address of the plan's loss_factor; valid after step_control_begin.
const float *step_control_loss_factor(const struct step_control *control);

// ---- where the host decides

// Copies this rank's sums of losses (at step_control_loss_sum) to control->losses. Waits for the stream.
enum status step_control_losses(struct step_control *control, struct stream *stream) MUST_CHECK;
// Sends the device the plan and the result of a step on which the host decided.
enum status step_control_send_decision(struct step_control *control, struct stream *stream,
                                       const struct step_message *decision) MUST_CHECK;

// ---- where the device decides, and the host issues the next step meanwhile

// Sends the plan to the device. Call it before the first micro-batch.
enum status step_control_begin(struct step_control *control, struct stream *stream, int slot,
                               const struct update_plan *plan) MUST_CHECK;
// Gathers every rank's sums of losses and of squared gradients. From them the device decides whether the
// update happens, and by what factor gradients are scaled (kernels/ops.h: update_decide).
// control->sums must hold this rank's sums (norm_end), and comm_on_device must be true.
enum status step_control_decide(struct step_control *control, struct stream *stream) MUST_CHECK;
// Sends the result to the host, after step_control_decide.
enum status step_control_send(struct step_control *control, struct stream *stream, int slot) MUST_CHECK;
// Waits for the result that step_control_send sends.
//   seconds   [out] time on the device from step_control_begin to step_control_send; 0 where operations are
//             synchronous
enum status step_control_receive(struct step_control *control, int slot, struct update_result *result,
                                 double *seconds) MUST_CHECK;

#endif
