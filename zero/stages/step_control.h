// What the host and the device tell each other about an update: the host its plan, before the step, and the
// device how it ended, after it. The device decides (kernels/ops.h: update_choose, update_decide), so that
// the host can issue the next step before it knows.
//
// Messages go through pinned memory. There are STEP_SLOTS of it: the host writes one slot while the device
// still reads the other.
#ifndef ZERO_ZERO_STAGES_STEP_CONTROL_H
#define ZERO_ZERO_STAGES_STEP_CONTROL_H

#include "base/region.h"
#include "kernels/ops.h"
#include "zero/comm/comm.h"

#define STEP_SLOTS 2

// In the device's memory.
struct step_memory {
    struct update_plan plans[N_UPDATE_ENDINGS]; // for the ways in which the step before may end
    struct update_plan plan;                    // the one that holds
    struct update_result result;
    double sums[2]; // of this rank: losses; squares of the gradients
};

// In pinned host memory.
struct step_message {
    struct update_plan plans[N_UPDATE_ENDINGS];
    struct update_result result;
    double loss_sum;
};

struct step_control {
    struct device *device;
    int world, region, gathered_region, host_region;
    struct step_memory *memory;
    double *gathered;                                 // (world, 2) every rank's sums, in the device's memory
    struct step_message *messages;                    // (STEP_SLOTS)
    struct event began[STEP_SLOTS], done[STEP_SLOTS]; // timed; done: the device has read and written the slot
};

enum status step_control_plan(struct step_control *control, int world, struct device *device,
                              struct region_table *table) MUST_CHECK;
enum status step_control_bind(struct step_control *control, const struct region_table *table) MUST_CHECK;
void step_control_free(struct step_control *control);

// Before the first micro-batch: sends the plans of the step, of which the device chooses one by the result of
// the step before.
enum status step_control_begin(struct step_control *control, struct stream *stream, int slot,
                               const struct update_plan plans[N_UPDATE_ENDINGS]) MUST_CHECK;
// Once this rank's sums are issued: adds those of all ranks, and decides. Needs comm_on_device.
enum status step_control_decide(struct step_control *control, struct comm *comm, struct stream *stream,
                                double max_norm) MUST_CHECK;
// After the update: sends the result to the slot of the host.
enum status step_control_send(struct step_control *control, struct stream *stream, int slot) MUST_CHECK;
// Waits until the slot has it.
//   seconds   [out] from step_control_begin to step_control_send on the device; 0 where operations are
//             synchronous
enum status step_control_receive(struct step_control *control, int slot, struct update_result *result,
                                 double *seconds) MUST_CHECK;

// Where the host decides: waits for this rank's sum of losses, and sets plan and result for the update.
enum status step_control_losses(struct step_control *control, struct stream *stream,
                                double *loss_sum) MUST_CHECK;
enum status step_control_set(struct step_control *control, struct stream *stream,
                             const struct update_plan *plan, const struct update_result *result) MUST_CHECK;

#endif
