// A unit's copies are issued on a stream while the next unit is computed. The host waits for a unit only when
// it is about to use it.
#include "zero/offload/offload.h"

#include <stdlib.h>

#include "base/alloc.h"

// ---- planning and binding

// The elements of this rank's largest unit shard.
static size_t largest_unit_shard(const struct stage *stage) {
    size_t largest = 0;
    for (int unit = 0; unit < stage->params->n_units; unit++) {
        size_t elements = 0;
        for (int i = stage->first_owned[unit]; i < stage->first_owned[unit + 1]; i++)
            elements += stage->owned[i].end - stage->owned[i].begin;
        largest = elements > largest ? elements : largest;
    }
    return largest;
}

// Parameters need a buffer on the host only between rounding and copy. With fp32 the master weights are
// copied; with offload_param the placement stores the rounded ones.
static bool has_upload_buffers(const struct offload *offload) {
    return offload_is_on(offload) && offload->stage->type != DTYPE_F32 &&
           !offload->stage->options.offload_param;
}

enum status offload_init(struct offload *offload, const struct stage *stage,
                         const struct placement *placement, struct norm *norm, struct region_table *table) {
    *offload = (struct offload){.stage = stage, .placement = placement, .norm = norm, .pending_from = -1};
    if (!offload_is_on(offload))
        return STATUS_OK;
    size_t elements = placement->host.elements, chunk = elements < OFFLOAD_CHUNK ? elements : OFFLOAD_CHUNK;
    TRY(region_add(table, REGION_GRADS, REGION_HOST, DTYPE_F32, elements, &offload->grads_region,
                   "grads on the host"));
    for (int i = 0; i < OFFLOAD_BUFFERS; i++) {
        if (offload_uses_staging(offload))
            TRY(region_add(table, REGION_COMMUNICATION, stage->device->place, DTYPE_F32,
                           largest_unit_shard(stage), &offload->staging_regions[i],
                           "grads of a unit shard (%d)", i));
        if (has_upload_buffers(offload))
            TRY(region_add(table, REGION_COMMUNICATION, REGION_HOST, stage->type, chunk,
                           &offload->upload_regions[i], "params to the device (%d)", i));
    }
    return STATUS_OK;
}

enum status offload_bind(struct offload *offload, const struct region_table *table,
                         struct offload_source source) {
    struct device *device = offload->stage->device;
    const int n_units = offload->stage->params->n_units;
    offload->source = source;
    if (!offload_is_on(offload))
        return STATUS_OK;
    offload->grads = region_data(table, offload->grads_region);
    TRY(stream_init(&offload->to_host, device));
    TRY(stream_init(&offload->to_device, device));
    for (int i = 0; i < OFFLOAD_BUFFERS; i++) {
        if (offload_uses_staging(offload))
            offload->staging[i] = region_data(table, offload->staging_regions[i]);
        if (has_upload_buffers(offload))
            offload->upload_buffers[i] = region_data(table, offload->upload_regions[i]);
        TRY(event_init(&offload->reduced[i], device));
        TRY(event_init(&offload->loaded[i], device));
        TRY(event_init(&offload->sent[i], device));
    }
    TRY(event_init(&offload->summed, device));
    TRY(event_init(&offload->reached, device));
    TRY(event_init(&offload->requested, device));
    offload->copied = allocate((size_t)n_units, sizeof *offload->copied);
    for (int unit = 0; unit < n_units; unit++)
        TRY(event_init(&offload->copied[unit], device));
    return STATUS_OK;
}

void offload_free(struct offload *offload) {
    stream_drain(&offload->to_host);
    stream_drain(&offload->to_device);
    for (int i = 0; i < OFFLOAD_BUFFERS; i++) {
        event_free(&offload->reduced[i]);
        event_free(&offload->loaded[i]);
        event_free(&offload->sent[i]);
    }
    event_free(&offload->summed);
    event_free(&offload->reached);
    event_free(&offload->requested);
    for (int unit = 0; offload->copied && unit < offload->stage->params->n_units; unit++)
        event_free(&offload->copied[unit]);
    free(offload->copied);
    stream_free(&offload->to_host);
    stream_free(&offload->to_device);
    *offload = (struct offload){0};
}

// ---- gradients

// The address on the device of a span's reduced gradients, from which they are copied.
static float *reduced_gradients_at(const struct offload *offload, const struct stage_span *span) {
    if (!offload_uses_staging(offload))
        return offload->source.data + stage_span_offset(span, offload->source.whole);
    return offload->staging[span->unit % OFFLOAD_BUFFERS] +
           (span->shard_offset - stage_unit_shard(offload->stage, span->unit));
}

// The address to which they are copied until the update: on the host, or in the device's shard. NULL: they
// stay where they are.
static float *stored_gradients_at(const struct offload *offload, const struct placement_span *placed) {
    if (placed->on_host)
        return offload->grads + placed->at;
    return offload_uses_staging(offload) ? offload->source.data + placed->at : NULL;
}

static size_t span_bytes(const struct placement_span *placed) {
    return (placed->span.end - placed->span.begin) * sizeof(float);
}

// Issues the sums of squares and the copies of one unit on `to_host`.
static enum status send_unit(struct offload *offload, int unit) {
    const struct stage *stage = offload->stage;
    const struct placement *placement = offload->placement;
    for (int i = stage->first_owned[unit]; i < stage->first_owned[unit + 1] && offload->last; i++)
        TRY(norm_add(offload->norm, &offload->to_host, i, reduced_gradients_at(offload, &stage->owned[i])));
    TRY(event_record(&offload->summed, &offload->to_host));
    for (int i = placement->first_span[unit]; i < placement->first_span[unit + 1]; i++) {
        const struct placement_span *placed = &placement->spans[i];
        float *to = stored_gradients_at(offload, placed);
        if (to)
            TRY(offload->stage->device->copy(
                &offload->to_host, to, reduced_gradients_at(offload, &placed->span), span_bytes(placed)));
    }
    return event_record(&offload->copied[unit], &offload->to_host);
}

// Sends the units whose reduction was issued by the previous offload_reduced.
static enum status send_pending(struct offload *offload) {
    int from = offload->pending_from, to = offload->pending_to;
    offload->pending_from = -1;
    if (from < 0)
        return STATUS_OK;
    TRY(comm_wait(offload->stage->comm, &offload->to_host, offload->work));
    TRY(event_wait(&offload->reduced[to % OFFLOAD_BUFFERS], &offload->to_host));
    for (int unit = from; unit >= to; unit--)
        TRY(send_unit(offload, unit));
    return STATUS_OK;
}

// Copies a unit's sum over earlier micro-batches back into its staging buffer.
static enum status load(struct offload *offload, int unit) {
    const struct placement *placement = offload->placement;
    int slot = unit % OFFLOAD_BUFFERS;
    if (!offload_uses_staging(offload) || !offload->accumulating || unit < 0)
        return STATUS_OK;
    // Wait for the unit that used the buffer before. The first two find it free, by the wait in
    // offload_begin.
    if (unit + OFFLOAD_BUFFERS < offload->stage->params->n_units)
        TRY(event_wait(&offload->copied[unit + OFFLOAD_BUFFERS], &offload->to_device));
    for (int i = placement->first_span[unit]; i < placement->first_span[unit + 1]; i++) {
        const struct placement_span *placed = &placement->spans[i];
        TRY(offload->stage->device->copy(&offload->to_device, reduced_gradients_at(offload, &placed->span),
                                         stored_gradients_at(offload, placed), span_bytes(placed)));
    }
    return event_record(&offload->loaded[slot], &offload->to_device);
}

// Stage 0 updates every element on every rank, and has all sums only after the all-gather.
static bool sends_at_the_end(const struct offload *offload) {
    const struct stage *stage = offload->stage;
    return !stage_shards_optimizer(stage->config) &&
           (stage->world > 1 || stage_reduces_every_micro_batch(stage->config));
}

enum status offload_begin(struct offload *offload, bool last, bool accumulating) {
    if (!offload_is_on(offload))
        return STATUS_OK;
    TRY(send_pending(offload)); // units left over from the previous micro-batch
    offload->last = last;
    offload->accumulating = accumulating;
    offload->pending_to = offload->stage->params->n_units; // no unit so far
    // Unit 0 is copied last. From then on the sums to be loaded are complete and both staging buffers are
    // free.
    TRY(event_wait(&offload->copied[0], &offload->to_device));
    return load(offload, offload->stage->params->n_units - 1);
}

enum status offload_staging(struct offload *offload, struct stream *stream, int unit, float **out) {
    int slot = unit % OFFLOAD_BUFFERS, n_units = offload->stage->params->n_units;
    *out = offload->staging[slot];
    // Wait for the unit that used the buffer before, two units up: `loaded` comes after that. The first two
    // units of a step find it free, by the wait in offload_finish.
    if (offload->accumulating)
        return event_wait(&offload->loaded[slot], stream);
    return unit + OFFLOAD_BUFFERS < n_units ? event_wait(&offload->copied[unit + OFFLOAD_BUFFERS], stream)
                                            : STATUS_OK;
}

enum status offload_reduced(struct offload *offload, struct stream *stream, int unit, comm_work work) {
    bool taken = offload_is_on(offload) && !sends_at_the_end(offload) &&
                 (offload->last || offload_uses_staging(offload));
    if (!taken || unit >= offload->pending_to)
        return STATUS_OK;
    int from = offload->pending_to - 1;
    TRY(event_record(&offload->reduced[unit % OFFLOAD_BUFFERS], stream));
    TRY(send_pending(offload));
    offload->pending_from = from;
    offload->pending_to = unit;
    offload->work = work;
    return load(offload, unit - 1);
}

enum status offload_finish(struct offload *offload, struct stream *stream) {
    if (!offload_is_on(offload))
        return STATUS_OK;
    TRY(send_pending(offload));
    if (sends_at_the_end(offload)) {
        TRY(event_record(&offload->reached, stream));
        TRY(event_wait(&offload->reached, &offload->to_host));
        for (int unit = offload->stage->params->n_units - 1; unit >= 0; unit--)
            TRY(send_unit(offload, unit));
    }
    return event_wait(&offload->copied[0], stream); // unit 0 is copied last
}

enum status offload_norm(struct offload *offload, double *norm) {
    TRY(event_wait(&offload->summed, &offload->to_device));
    return norm_finish(offload->norm, &offload->to_device, norm);
}

enum status offload_wait(struct offload *offload, int unit) {
    return event_synchronize(&offload->copied[unit]);
}

// ---- parameters

enum status offload_params_buffer(struct offload *offload, const struct placement_span *placed, size_t offset,
                                  void **out) {
    int slot = (int)(offload->n_uploads % OFFLOAD_BUFFERS);
    *out = placement_array_at(offload->placement, placed, STATE_PARAMS, offset);
    if (!has_upload_buffers(offload))
        return STATUS_OK;
    *out = offload->upload_buffers[slot];
    return event_synchronize(&offload->sent[slot]);
}

enum status offload_params_send(struct offload *offload, const struct placement_span *placed, size_t offset,
                                size_t n, void *to) {
    int slot = (int)(offload->n_uploads % OFFLOAD_BUFFERS);
    const void *from = offload->stage->type == DTYPE_F32
                           ? placement_array_at(offload->placement, placed, STATE_MASTER, offset)
                           : offload->upload_buffers[slot];
    if (!to)
        return STATUS_OK;
    TRY(offload->stage->device->copy(&offload->to_device, to, from, n * dtype_size(offload->stage->type)));
    offload->n_uploads++;
    return event_record(&offload->sent[slot], &offload->to_device);
}

enum status offload_upload_stream(struct offload *offload, struct stream *stream, struct stream **out) {
    *out = &offload->to_device;
    TRY(event_record(&offload->requested, stream));
    return event_wait(&offload->requested, &offload->to_device);
}

enum status offload_params_wait(struct offload *offload, struct stream *stream) {
    TRY(event_record(&offload->reached, &offload->to_device));
    return event_wait(&offload->reached, stream);
}
