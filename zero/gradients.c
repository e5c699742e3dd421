// Which buffer, and when it travels. All arithmetic between ranks is comm's.
#include "zero/gradients.h"

#include <stdlib.h>

#include "kernels/ops.h"

// ---- laying out

static bool keeps_all(const struct gradients *gradients) {
    return gradients->options->stage <= 1;
}

// Backward has the last unit first.
static enum status lay_out_together(struct gradients *gradients, const struct partition *partition) {
    const struct params *params = gradients->params;
    bool to_shard = stage_reduces_to_shard(gradients->options);
    transfers_init(&gradients->together, gradients->options->reduce_bucket);
    for (int unit = params->n_units - 1; unit >= 0; unit--) {
        const struct param_unit *u = &params->units[unit];
        struct transfer_place here = PLACE_AT(u->offset);
        TRY(transfers_add(&gradients->together, partition, unit, 0, u->elements, here,
                          to_shard ? PLACE_SHARD : here));
    }
    TRY(transfers_finish(&gradients->together));
    transfers_init(&gradients->spread, gradients->options->allgather_bucket);
    for (int unit = 0; gradients->options->stage == 0 && unit < params->n_units; unit++) {
        const struct param_unit *u = &params->units[unit];
        struct transfer_place here = PLACE_AT(u->offset);
        TRY(transfers_add(&gradients->spread, partition, unit, 0, u->elements, to_shard ? PLACE_SHARD : here,
                          here));
    }
    TRY(transfers_finish(&gradients->spread));
    return STATUS_OK;
}

static enum status lay_out_units(struct gradients *gradients, const struct partition *partition) {
    const struct params *params = gradients->params;
    gradients->of_unit = calloc((size_t)params->n_units, sizeof *gradients->of_unit);
    if (!gradients->of_unit)
        return FAIL(STATUS_FAILED, "out of memory for the transfers of %d units", params->n_units);
    for (int unit = 0; unit < params->n_units; unit++) {
        transfers_init(&gradients->of_unit[unit], gradients->options->reduce_bucket);
        TRY(transfers_add(&gradients->of_unit[unit], partition, unit, 0, params->units[unit].elements,
                          PLACE_AT(0), offload_stages(gradients->offload) ? PLACE_SHARE : PLACE_SHARD));
        TRY(transfers_finish(&gradients->of_unit[unit]));
    }
    return STATUS_OK;
}

// Without overlap a buffer is free again when its reduction returns: one is enough.
static enum status add_buffers(struct gradients *gradients, struct region_table *table) {
    const struct params *params = gradients->params;
    size_t largest = 0;
    for (int unit = 1; unit < params->n_units; unit++)
        largest = params->units[unit].elements > largest ? params->units[unit].elements : largest;
    gradients->n_pool = gradients->options->overlap ? GRADIENT_POOL : 1;
    gradients->embeddings.unit = -1;
    TRY(region_add(table, REGION_COMMUNICATION, gradients->device->place, DTYPE_F32,
                   params->units[0].elements, &gradients->embeddings.region, "grads of the embeddings"));
    for (int i = 0; i < gradients->n_pool; i++) {
        gradients->pool[i].unit = -1;
        TRY(region_add(table, REGION_COMMUNICATION, gradients->device->place, DTYPE_F32, largest,
                       &gradients->pool[i].region, "grads of a unit (%d)", i));
    }
    return STATUS_OK;
}

enum status gradients_init(struct gradients *gradients, const struct params *params,
                           const struct stage_options *options, const struct partition *partition,
                           size_t shard_elements, struct offload *offload, struct device *device,
                           struct region_table *table) {
    *gradients = (struct gradients){.params = params,
                                    .options = options,
                                    .device = device,
                                    .offload = offload,
                                    .whole_region = -1,
                                    .shard_region = -1};
    if (keeps_all(gradients)) {
        TRY(region_add(table, REGION_GRADS, device->place, DTYPE_F32, params->n_elements,
                       &gradients->whole_region, "grads"));
        TRY(lay_out_together(gradients, partition));
    } else {
        TRY(add_buffers(gradients, table));
        TRY(lay_out_units(gradients, partition));
    }
    if (stage_reduces_to_shard(options))
        TRY(region_add(table, REGION_GRADS, device->place, DTYPE_F32,
                       offload_stages(offload) ? offload->tiers->device.elements : shard_elements,
                       &gradients->shard_region, "grads of the shard"));
    return STATUS_OK;
}

void gradients_bind(struct gradients *gradients, const struct region_table *table, struct comm *comm) {
    gradients->comm = comm;
    gradients->whole = gradients->whole_region < 0 ? NULL : region_data(table, gradients->whole_region);
    gradients->shard = gradients->shard_region < 0 ? NULL : region_data(table, gradients->shard_region);
    if (keeps_all(gradients))
        return;
    gradients->embeddings.data = region_data(table, gradients->embeddings.region);
    for (int i = 0; i < gradients->n_pool; i++)
        gradients->pool[i].data = region_data(table, gradients->pool[i].region);
}

void gradients_free(struct gradients *gradients) {
    transfers_free(&gradients->together);
    transfers_free(&gradients->spread);
    for (int unit = 0; gradients->of_unit && unit < gradients->params->n_units; unit++)
        transfers_free(&gradients->of_unit[unit]);
    free(gradients->of_unit);
    *gradients = (struct gradients){0};
}

// ---- a step

static enum status clear(struct gradients *gradients, struct stream *stream, float *data, size_t n) {
    const struct fill_args fill = {.out = data, .n = n, .type = DTYPE_F32};
    return n > 0 ? gradients->device->ops->fill(stream, &fill) : STATUS_OK;
}

// Clears what is added to from the start: all but what the first matrix product writes.
static enum status clear_unit(struct gradients *gradients, struct stream *stream, int unit, float *data) {
    const struct params *params = gradients->params;
    const struct param_unit *u = &params->units[unit];
    size_t done = 0;
    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        const struct param *param = &params->params[i];
        if (!param->multiplied)
            continue;
        TRY(clear(gradients, stream, data + done, param->offset - done));
        done = param->offset + param->elements;
    }
    return clear(gradients, stream, data + done, u->elements - done);
}

enum status gradients_begin(struct gradients *gradients, struct stream *stream, int64_t k, int64_t n) {
    bool every = stage_reduces_to_shard(gradients->options);
    gradients->fresh = every || k == 0;
    gradients->accumulating = every && k > 0;
    gradients->reducing = every || k == n - 1;
    gradients->next_call = 0;
    gradients->sent = 0;
    TRY(offload_begin(gradients->offload, stream, k == n - 1, gradients->accumulating));
    if (!keeps_all(gradients) || !gradients->fresh)
        return STATUS_OK;
    TRY(comm_wait_all(gradients->comm)); // the micro-batch before may still be on its way
    for (int unit = 0; unit < gradients->params->n_units; unit++)
        TRY(clear_unit(gradients, stream, unit, gradients->whole + gradients->params->units[unit].offset));
    return STATUS_OK;
}

static struct gradient_buffer *buffer_of(struct gradients *gradients, int unit) {
    if (unit == 0)
        return &gradients->embeddings;
    for (int i = 0; i < gradients->n_pool; i++)
        if (gradients->pool[i].unit == unit)
            return &gradients->pool[i];
    return NULL;
}

// The free buffer whose reduction began first: the most likely to be done.
static struct gradient_buffer *free_buffer(struct gradients *gradients) {
    struct gradient_buffer *oldest = NULL;
    for (int i = 0; i < gradients->n_pool; i++) {
        struct gradient_buffer *buffer = &gradients->pool[i];
        if (buffer->unit < 0 && (!oldest || buffer->ticket < oldest->ticket))
            oldest = buffer;
    }
    return oldest;
}

enum status gradients_acquire(struct gradients *gradients, struct stream *stream, int unit,
                              struct unit_view *view) {
    view->fresh = gradients->fresh;
    if (keeps_all(gradients)) {
        view->grads = gradients->whole + gradients->params->units[unit].offset;
        return STATUS_OK;
    }
    struct gradient_buffer *buffer = buffer_of(gradients, unit);
    if (!buffer)
        buffer = free_buffer(gradients);
    view->grads = buffer->data;
    if (buffer->unit == unit) // the embeddings' second time
        return STATUS_OK;
    buffer->unit = unit;
    TRY(comm_wait(gradients->comm, stream, buffer->ticket));
    return clear_unit(gradients, stream, unit, buffer->data);
}

static enum status reduce(struct gradients *gradients, struct stream *stream, const struct transfer *call,
                          const float *from, float *to, comm_ticket *ticket) {
    return comm_reduce_scatter(gradients->comm, stream, call, from, to,
                               gradients->options->gradients_travel_as, gradients->accumulating, ticket);
}

// Calls go through all units, the last first, wherever a bucket is full.
static enum status ready_together(struct gradients *gradients, struct stream *stream, int unit) {
    const struct params *params = gradients->params;
    const struct transfers *calls = &gradients->together;
    float *to = gradients->shard ? gradients->shard : gradients->whole;
    comm_ticket ticket = 0;
    while (gradients->next_call < calls->n_calls && calls->last_unit[gradients->next_call] >= unit) {
        const struct transfer *call = &calls->calls[gradients->next_call++];
        TRY(reduce(gradients, stream, call, gradients->whole, to, &ticket));
        gradients->sent += call->elements;
    }
    int lowest = params->n_units; // whose elements were all sent
    while (lowest > 0 && params->n_elements - params->units[lowest - 1].offset <= gradients->sent)
        lowest--;
    return offload_reduced(gradients->offload, stream, lowest, ticket);
}

enum status gradients_ready(struct gradients *gradients, struct stream *stream, int unit) {
    if (!gradients->reducing)
        return STATUS_OK;
    if (keeps_all(gradients))
        return ready_together(gradients, stream, unit);
    struct gradient_buffer *buffer = buffer_of(gradients, unit);
    const struct transfers *calls = &gradients->of_unit[unit];
    float *to = gradients->shard;
    if (offload_stages(gradients->offload))
        TRY(offload_staging(gradients->offload, stream, unit, &to));
    for (int i = 0; i < calls->n_calls; i++)
        TRY(reduce(gradients, stream, &calls->calls[i], buffer->data, to, &buffer->ticket));
    buffer->unit = -1;
    return offload_reduced(gradients->offload, stream, unit, buffer->ticket);
}

enum status gradients_finish(struct gradients *gradients, struct stream *stream) {
    comm_ticket ticket;
    const float *from = gradients->shard ? gradients->shard : gradients->whole;
    for (int i = 0; i < gradients->spread.n_calls; i++)
        TRY(comm_all_gather(gradients->comm, stream, &gradients->spread.calls[i], from, gradients->whole,
                            DTYPE_F32, &ticket));
    TRY(comm_wait_all(gradients->comm));
    return offload_finish(gradients->offload, stream);
}

struct offload_source gradients_source(const struct gradients *gradients) {
    bool whole = !gradients->shard || gradients->options->stage == 0;
    return (struct offload_source){whole ? gradients->whole : gradients->shard, whole};
}

float *gradients_at(const struct gradients *gradients, const struct stage_span *span) {
    struct offload_source source = gradients_source(gradients);
    return source.data + stage_span_at(span, source.whole);
}
