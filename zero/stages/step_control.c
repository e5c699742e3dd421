// See the header.
#include "zero/stages/step_control.h"

#include <string.h>

enum status step_control_plan(struct step_control *control, int world, struct device *device,
                              struct region_table *table) {
    *control = (struct step_control){.device = device, .world = world};
    TRY(region_add(table, REGION_DATA, device->place, DTYPE_U8, sizeof *control->memory, &control->region,
                   "update: plans, sums and result"));
    TRY(region_add(table, REGION_DATA, device->place, DTYPE_F64, 2 * (size_t)world, &control->gathered_region,
                   "update: sums of all ranks"));
    return region_add(table, REGION_DATA, REGION_HOST, DTYPE_U8, STEP_SLOTS * sizeof *control->messages,
                      &control->host_region, "update: plans and results on the host");
}

enum status step_control_bind(struct step_control *control, const struct region_table *table) {
    control->memory = region_data(table, control->region);
    control->gathered = region_data(table, control->gathered_region);
    control->messages = region_data(table, control->host_region);
    for (int slot = 0; slot < STEP_SLOTS; slot++) {
        TRY(event_init_timed(&control->began[slot], control->device));
        TRY(event_init_timed(&control->done[slot], control->device));
    }
    return STATUS_OK;
}

void step_control_free(struct step_control *control) {
    for (int slot = 0; slot < STEP_SLOTS; slot++) {
        event_free(&control->began[slot]);
        event_free(&control->done[slot]);
    }
    *control = (struct step_control){0};
}

enum status step_control_begin(struct step_control *control, struct stream *stream, int slot,
                               const struct update_plan plans[N_UPDATE_ENDINGS]) {
    struct step_message *message = &control->messages[slot];
    struct step_memory *memory = control->memory;
    TRY(event_synchronize(&control->done[slot]));
    memcpy(message->plans, plans, sizeof message->plans);
    TRY(event_record(&control->began[slot], stream));
    TRY(control->device->copy(stream, memory->plans, message->plans, sizeof message->plans));
    return control->device->ops->update_choose(
        stream, &(struct update_choose_args){
                    .plan = &memory->plan, .plans = memory->plans, .previous = &memory->result});
}

enum status step_control_decide(struct step_control *control, struct comm *comm, struct stream *stream,
                                double max_norm) {
    struct step_memory *memory = control->memory;
    TRY(comm_gather_device(comm, stream, memory->sums, sizeof memory->sums, control->gathered));
    return control->device->ops->update_decide(stream, &(struct update_decide_args){.result = &memory->result,
                                                                                    .plan = &memory->plan,
                                                                                    .sums = control->gathered,
                                                                                    .ranks = control->world,
                                                                                    .max_norm = max_norm});
}

enum status step_control_send(struct step_control *control, struct stream *stream, int slot) {
    struct update_result *to = &control->messages[slot].result;
    TRY(control->device->copy(stream, to, &control->memory->result, sizeof *to));
    return event_record(&control->done[slot], stream);
}

enum status step_control_receive(struct step_control *control, int slot, struct update_result *result,
                                 double *seconds) {
    TRY(event_synchronize(&control->done[slot]));
    *result = control->messages[slot].result;
    return event_seconds(&control->began[slot], &control->done[slot], seconds);
}

enum status step_control_losses(struct step_control *control, struct stream *stream, double *loss_sum) {
    double *to = &control->messages[0].loss_sum;
    TRY(control->device->copy(stream, to, &control->memory->sums[0], sizeof *to));
    TRY(control->device->synchronize(stream));
    *loss_sum = *to;
    return STATUS_OK;
}

enum status step_control_set(struct step_control *control, struct stream *stream,
                             const struct update_plan *plan, const struct update_result *result) {
    struct step_message *message = &control->messages[0];
    TRY(event_synchronize(&control->done[0]));
    message->plans[0] = *plan;
    message->result = *result;
    TRY(control->device->copy(stream, &control->memory->plan, message->plans, sizeof *plan));
    TRY(control->device->copy(stream, &control->memory->result, &message->result, sizeof *result));
    return event_record(&control->done[0], stream);
}
