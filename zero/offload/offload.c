// A unit's copies are issued on a stream while the next unit is computed. The host waits for a unit only when
// it is about to use it.
#include "zero/offload/offload.h"

#include <stdlib.h>

// ---- planning and binding

// The elements of this rank's largest unit shard.
static size_t largest_unit_shard(const struct offload *offload) {
    const struct stage_spans *owned = offload->owned;
    size_t largest = 0;
    for (int unit = 0; unit < offload->params->n_units; unit++) {
        size_t elements = 0;
        for (int i = owned->first[unit]; i < owned->first[unit + 1]; i++)
            elements += owned->spans[i].end - owned->spans[i].begin;
        largest = elements > largest ? elements : largest;
    }
    return largest;
}

// Parameters need a buffer on the host only between rounding and copy. With fp32 the master weights are
// copied; with offload_param the placement stores the rounded ones.
static bool has_upload_buffers(const struct offload *offload) {
    return offload_is_on(offload) && offload->type != DTYPE_F32 && !offload->options->offload_param;
}

enum status offload_init(struct offload *offload, const struct params *params,
                         const struct stage_options *options, const struct stage_spans *owned,
                         const struct placement *placement, enum dtype type, struct device *device,
                         struct region_table *table) {
    *offload = (struct offload){.params = params,
                                .options = options,
                                .owned = owned,
                                .placement = placement,
                                .type = type,
                                .device = device,
                                .pending_from = -1};
    if (!offload_is_on(offload))
        return STATUS_OK;
    size_t elements = placement->host.elements, chunk = elements < OFFLOAD_CHUNK ? elements : OFFLOAD_CHUNK;
    TRY(region_add(table, REGION_GRADS, REGION_HOST, DTYPE_F32, elements, &offload->grads_region,
                   "grads on the host"));
    for (int i = 0; i < OFFLOAD_BUFFERS; i++) {
        if (offload_uses_staging(offload))
            TRY(region_add(table, REGION_COMMUNICATION, device->place, DTYPE_F32, largest_unit_shard(offload),
                           &offload->staging_regions[i], "grads of a unit shard (%d)", i));
        if (has_upload_buffers(offload))
            TRY(region_add(table, REGION_COMMUNICATION, REGION_HOST, type, chunk, &offload->upload_regions[i],
                           "params to the device (%d)", i));
    }
    return STATUS_OK;
}

static enum status make_events(struct offload *offload) {
    for (int i = 0; i < OFFLOAD_BUFFERS; i++) {
        TRY(event_init(&offload->reduced[i], offload->device));
        TRY(event_init(&offload->loaded[i], offload->device));
        TRY(event_init(&offload->sent[i], offload->device));
    }
    TRY(event_init(&offload->summed, offload->device));
    TRY(event_init(&offload->reached, offload->device));
    TRY(event_init(&offload->requested, offload->device));
    int n = offload->params->n_units;
    offload->copied = calloc((size_t)n, sizeof *offload->copied);
    if (!offload->copied)
        return FAIL(STATUS_FAILED, "out of memory for the events of %d units", n);
    for (int unit = 0; unit < n; unit++)
        TRY(event_init(&offload->copied[unit], offload->device));
    return STATUS_OK;
}

enum status offload_bind(struct offload *offload, const struct region_table *table, struct comm *comm,
                         struct norm *norm, struct offload_source source, float *device_shard) {
    offload->comm = comm;
    offload->norm = norm;
    offload->source = source;
    offload->device_shard = device_shard;
    if (!offload_is_on(offload))
        return STATUS_OK;
    offload->grads = region_data(table, offload->grads_region);
    for (int i = 0; i < OFFLOAD_BUFFERS; i++) {
        if (offload_uses_staging(offload))
            offload->staging[i] = region_data(table, offload->staging_regions[i]);
        if (has_upload_buffers(offload))
            offload->upload_buffers[i] = region_data(table, offload->upload_regions[i]);
    }
    TRY(stream_init(&offload->to_host, offload->device));
    TRY(stream_init(&offload->to_device, offload->device));
    return make_events(offload);
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
    for (int unit = 0; offload->copied && unit < offload->params->n_units; unit++)
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
    size_t begin = offload->owned->spans[offload->owned->first[span->unit]].shard_offset;
    return offload->staging[span->unit % OFFLOAD_BUFFERS] + (span->shard_offset - begin);
}

// The address to which they are copied until the update: on the host, or in the device's shard. NULL: they
// stay where they are.
static float *stored_gradients_at(const struct offload *offload, const struct placement_span *placed) {
    if (placed->on_host)
        return offload->grads + placed->at;
    return offload_uses_staging(offload) ? offload->device_shard + placed->at : NULL;
}

static size_t span_bytes(const struct placement_span *placed) {
    return (placed->span.end - placed->span.begin) * sizeof(float);
}

// Issues the sums of squares and the copies of one unit on `to_host`.
static enum status send_unit(struct offload *offload, int unit) {
    const struct stage_spans *owned = offload->owned;
    const struct placement *placement = offload->placement;
    for (int i = owned->first[unit]; i < owned->first[unit + 1] && offload->last; i++)
        TRY(norm_add(offload->norm, &offload->to_host, i, reduced_gradients_at(offload, &owned->spans[i])));
    TRY(event_record(&offload->summed, &offload->to_host));
    for (int i = placement->first_span[unit]; i < placement->first_span[unit + 1]; i++) {
        const struct placement_span *placed = &placement->spans[i];
        float *to = stored_gradients_at(offload, placed);
        if (to)
            TRY(offload->device->copy(&offload->to_host, to, reduced_gradients_at(offload, &placed->span),
                                      span_bytes(placed)));
    }
    return event_record(&offload->copied[unit], &offload->to_host);
}

// Sends the units whose reduction was issued by the previous offload_reduced.
static enum status send_pending(struct offload *offload) {
    int from = offload->pending_from, to = offload->pending_to;
    offload->pending_from = -1;
    if (from < 0)
        return STATUS_OK;
    TRY(comm_wait(offload->comm, &offload->to_host, offload->work));
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
    if (unit + OFFLOAD_BUFFERS < offload->params->n_units)
        TRY(event_wait(&offload->copied[unit + OFFLOAD_BUFFERS], &offload->to_device));
    for (int i = placement->first_span[unit]; i < placement->first_span[unit + 1]; i++) {
        const struct placement_span *placed = &placement->spans[i];
        TRY(offload->device->copy(&offload->to_device, reduced_gradients_at(offload, &placed->span),
                                  stored_gradients_at(offload, placed), span_bytes(placed)));
    }
    return event_record(&offload->loaded[slot], &offload->to_device);
}

// Stage 0 updates every element on every rank, and has all sums only after the all-gather.
static bool sends_at_the_end(const struct offload *offload) {
    const struct stage_options *options = offload->options;
    return options->stage == 0 && (offload->comm->world > 1 || options->reduce_every_micro_batch);
}

enum status offload_begin(struct offload *offload, bool last, bool accumulating) {
    if (!offload_is_on(offload))
        return STATUS_OK;
    TRY(send_pending(offload)); // units left over from the previous micro-batch
    offload->last = last;
    offload->accumulating = accumulating;
    offload->pending_to = offload->params->n_units; // no unit so far
    // Unit 0 is copied last. From then on the sums to be loaded are complete and both staging buffers are
    // free.
    TRY(event_wait(&offload->copied[0], &offload->to_device));
    return load(offload, offload->params->n_units - 1);
}

enum status offload_staging(struct offload *offload, struct stream *stream, int unit, float **out) {
    int slot = unit % OFFLOAD_BUFFERS, n_units = offload->params->n_units;
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
        for (int unit = offload->params->n_units - 1; unit >= 0; unit--)
            TRY(send_unit(offload, unit));
    }
    return event_wait(&offload->copied[0], stream); // unit 0 is copied last
}

enum status offload_norm(struct offload *offload, double *norm) {
    TRY(event_wait(&offload->summed, &offload->to_device));
    return norm_finish(offload->norm, &offload->to_device, offload->comm, norm);
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
    const void *from = offload->type == DTYPE_F32
                           ? placement_array_at(offload->placement, placed, STATE_MASTER, offset)
                           : offload->upload_buffers[slot];
    if (!to)
        return STATUS_OK;
    TRY(offload->device->copy(&offload->to_device, to, from, n * dtype_size(offload->type)));
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
