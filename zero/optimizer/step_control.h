// Step control: how host and device agree on a step. The device decides whether an update is done and by what
// gradients are scaled (kernels/ops.h: update_decide), so that the host can issue the next step before it
// knows. Where the host has to decide, it sends the device its decision.
//
// Before a step the host sends the device its plan; after it the device sends the host the result. Both go
// through pinned memory. There are STEP_SLOTS of it: the host writes one slot while the device still reads
// the other.
//
// A step that the device decides on is step_control_begin, its micro-batches, optimizer_decide,
// step_control_send; and at any time later step_control_receive. Slots alternate.
#ifndef ZERO_ZERO_OPTIMIZER_STEP_CONTROL_H
#define ZERO_ZERO_OPTIMIZER_STEP_CONTROL_H

#include "kernels/ops.h"
#include "zero/partition/stage.h"

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

struct step_control {
    const struct stage *stage;
    int memory_region, gathered_region, messages_region;
    struct step_memory *memory;
    double *gathered;                                 // (world, 2) every rank's sums, in the device's memory
    struct step_message *messages;                    // (STEP_SLOTS)
    struct event began[STEP_SLOTS], done[STEP_SLOTS]; // timed; done: the device has read and written the slot
};

// Adds regions to `table`. Call step_control_free also after a failure.
enum status step_control_init(struct step_control *control, const struct stage *stage,
                              struct region_table *table) MUST_CHECK;
enum status step_control_bind(struct step_control *control, const struct region_table *table) MUST_CHECK;
void step_control_free(struct step_control *control);

// Where the losses of this rank's micro-batches are to be summed, and the scale of their gradients after
// step_control_begin; both in the device's memory.
double *step_control_loss_sum(const struct step_control *control);
const float *step_control_loss_factor(const struct step_control *control);

// ---- where the host decides

// This rank's sum of losses at step_control_loss_sum, on the host. Waits for the stream.
enum status step_control_losses(struct step_control *control, struct stream *stream, double *sum) MUST_CHECK;
// Sends the device the plan and the result of a step that the host decided on.
enum status step_control_send_decision(struct step_control *control, struct stream *stream,
                                       const struct step_message *decision) MUST_CHECK;

// ---- where the device decides, and the host issues the next step meanwhile

// Sends the plan. Call before the first micro-batch.
enum status step_control_begin(struct step_control *control, struct stream *stream, int slot,
                               const struct update_plan *plan) MUST_CHECK;
// Gathers the sums of all ranks and decides. The sum of squares is in memory->sums[1]. Needs comm_on_device.
enum status step_control_decide(struct step_control *control, struct stream *stream) MUST_CHECK;
// Sends the result to the host.
enum status step_control_send(struct step_control *control, struct stream *stream, int slot) MUST_CHECK;
// Waits for the result.
//   seconds   [out] from step_control_begin to step_control_send on the device; 0 where operations are
//             synchronous
enum status step_control_receive(struct step_control *control, int slot, struct update_result *result,
                                 double *seconds) MUST_CHECK;

#endif
