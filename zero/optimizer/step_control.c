// See zero/optimizer/step_control.h. A host that decides uses slot 0 only, because it waits for each step.
#include "zero/optimizer/step_control.h"

enum status step_control_init(struct step_control *control, const struct stage *stage,
                              struct region_table *table) {
    const enum region_place place = stage->device->place;
    const int n_losses = logical_per_rank(&stage->logical);
    const size_t bytes = update_sums_bytes(n_losses);
    *control = (struct step_control){.stage = stage};
    TRY(region_add(table, REGION_DATA, place, DTYPE_U8, sizeof *control->memory, &control->memory_region,
                   "update: plan and result"));
    TRY(region_add(table, REGION_DATA, place, DTYPE_U8, bytes, &control->sums_region, "update: sums"));
    TRY(region_add(table, REGION_DATA, place, DTYPE_U8, (size_t)stage->world * bytes,
                   &control->gathered_region, "update: sums of all ranks"));
    TRY(region_add(table, REGION_DATA, REGION_HOST, DTYPE_F64, (size_t)n_losses, &control->losses_region,
                   "update: losses on the host"));
    return region_add(table, REGION_DATA, REGION_HOST, DTYPE_U8, STEP_SLOTS * sizeof *control->messages,
                      &control->messages_region, "update: plans and results on the host");
}

enum status step_control_bind(struct step_control *control, const struct region_table *table) {
    control->memory = region_data(table, control->memory_region);
    control->sums = region_data(table, control->sums_region);
    control->gathered = region_data(table, control->gathered_region);
    control->losses = region_data(table, control->losses_region);
    control->messages = region_data(table, control->messages_region);
    for (int slot = 0; slot < STEP_SLOTS; slot++) {
        TRY(event_init_timed(&control->began[slot], control->stage->device));
        TRY(event_init_timed(&control->done[slot], control->stage->device));
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

double *step_control_loss_sum(const struct step_control *control, int j) {
    return (double *)(control->sums + EXACT_WORDS) + j;
}

const float *step_control_loss_factor(const struct step_control *control) {
    return &control->memory->plan.loss_factor;
}

// ---- where the host decides

enum status step_control_losses(struct step_control *control, struct stream *stream) {
    const size_t bytes = (size_t)logical_per_rank(&control->stage->logical) * sizeof *control->losses;
    TRY(stream->device->copy(stream, control->losses, step_control_loss_sum(control, 0), bytes));
    return stream->device->synchronize(stream);
}

enum status step_control_send_decision(struct step_control *control, struct stream *stream,
                                       const struct step_message *decision) {
    struct step_message *message = &control->messages[0];
    struct step_memory *memory = control->memory;
    TRY(event_synchronize(&control->done[0]));
    *message = *decision;
    TRY(stream->device->copy(stream, &memory->plan, &message->plan, sizeof message->plan));
    TRY(stream->device->copy(stream, &memory->result, &message->result, sizeof message->result));
    return event_record(&control->done[0], stream);
}

// ---- where the device decides

enum status step_control_begin(struct step_control *control, struct stream *stream, int slot,
                               const struct update_plan *plan) {
    struct step_message *message = &control->messages[slot];
    TRY(event_synchronize(&control->done[slot]));
    message->plan = *plan;
    TRY(event_record(&control->began[slot], stream));
    return stream->device->copy(stream, &control->memory->plan, &message->plan, sizeof *plan);
}

enum status step_control_decide(struct step_control *control, struct stream *stream) {
    const struct stage *stage = control->stage;
    struct step_memory *memory = control->memory;
    const int n_losses = logical_per_rank(&stage->logical);
    TRY(comm_gather_device(stage->comm, stream, control->sums, update_sums_bytes(n_losses),
                           control->gathered));
    return stream->device->ops->update_decide(
        stream, &(struct update_decide_args){.result = &memory->result,
                                             .plan = &memory->plan,
                                             .sums = control->gathered,
                                             .ranks = stage->world,
                                             .n_losses = n_losses,
                                             .max_norm = stage->config->train.gradient_clipping});
}

enum status step_control_send(struct step_control *control, struct stream *stream, int slot) {
    struct update_result *to = &control->messages[slot].result;
    TRY(stream->device->copy(stream, to, &control->memory->result, sizeof *to));
    return event_record(&control->done[slot], stream);
}

enum status step_control_receive(struct step_control *control, int slot, struct update_result *result,
                                 double *seconds) {
    TRY(event_synchronize(&control->done[slot]));
    *result = control->messages[slot].result;
    return event_seconds(&control->began[slot], &control->done[slot], seconds);
}
