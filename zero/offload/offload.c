// The copies of a unit's gradients are issued on their own stream while backward computes the next unit.
// The host waits for a unit's gradients only just before it updates the unit.
#include "zero/offload/offload.h"

#include <stdlib.h>

#include "base/alloc.h"

// ---- planning and binding

// Returns the number of elements in this rank's largest unit shard of gradients.
static size_t largest_unit_shard(const struct stage *stage) {
    const struct owned_spans *owned = &stage->owned_trained;
    size_t largest = 0;
    for (int unit = 0; unit < stage->params->n_units; unit++) {
        size_t elements = 0;
        for (int i = owned->first[unit]; i < owned->first[unit + 1]; i++)
            elements += owned->spans[i].end - owned->spans[i].begin;
        largest = elements > largest ? elements : largest;
    }
    return largest;
}

// True if updated parameters need a host buffer, between rounding and the copy to the device. They need
// none with fp32, where the master weights are copied, and with offload_param, where the placement stores
// the rounded parameters.
static bool has_upload_buffers(const struct offload *offload) {
    return offload_is_on(offload) && offload->stage->type != DTYPE_F32 &&
           !offload->stage->options.offload_param;
}

enum status offload_init(struct offload *offload, const struct stage *stage,
                         const struct placement *placement, struct norm *norm, struct region_table *table) {
    *offload =
        (struct offload){.stage = stage, .placement = placement, .norm = norm, .to_host.pending_from = -1};
    if (!offload_is_on(offload))
        return STATUS_OK;
    size_t elements = placement->host.elements, chunk = elements < OFFLOAD_CHUNK ? elements : OFFLOAD_CHUNK;
    TRY(partial_sums_init(&offload->to_host.on_host, stage, REGION_HOST, elements, "grads on the host",
                          table));
    for (int i = 0; i < OFFLOAD_BUFFERS; i++) {
        if (offload_uses_staging(offload))
            TRY(region_add(table, REGION_COMMUNICATION, stage->device->place, DTYPE_F32,
                           largest_unit_shard(stage), &offload->to_host.staging[i].region,
                           "grads of a unit shard (%d)", i));
        if (has_upload_buffers(offload))
            TRY(region_add(table, REGION_COMMUNICATION, REGION_HOST, stage->type, chunk,
                           &offload->to_device.buffers[i].region, "params to the device (%d)", i));
    }
    return STATUS_OK;
}

enum status offload_bind(struct offload *offload, const struct region_table *table,
                         struct offload_source source, const struct partial_sums *sums) {
    struct device *device = offload->stage->device;
    const int n_units = offload->stage->params->n_units;
    struct gradient_offload *grads = &offload->to_host;
    struct param_offload *params = &offload->to_device;
    grads->source = source;
    grads->on_device = sums;
    if (!offload_is_on(offload))
        return STATUS_OK;
    partial_sums_bind(&grads->on_host, table);
    TRY(stream_init(&grads->stream, device));
    TRY(stream_init(&params->stream, device));
    for (int i = 0; i < OFFLOAD_BUFFERS; i++) {
        if (offload_uses_staging(offload))
            grads->staging[i].data = region_data(table, grads->staging[i].region);
        if (has_upload_buffers(offload))
            params->buffers[i].data = region_data(table, params->buffers[i].region);
        TRY(event_init(&grads->staging[i].reduced, device));
        TRY(event_init(&grads->staging[i].loaded, device));
        TRY(event_init(&params->buffers[i].sent, device));
    }
    TRY(event_init(&grads->reached, device));
    TRY(event_init(&grads->summed, device));
    TRY(event_init(&params->requested, device));
    TRY(event_init(&params->arrived, device));
    grads->copied = allocate((size_t)n_units, sizeof *grads->copied);
    for (int unit = 0; unit < n_units; unit++)
        TRY(event_init(&grads->copied[unit], device));
    return STATUS_OK;
}

void offload_free(struct offload *offload) {
    struct gradient_offload *grads = &offload->to_host;
    struct param_offload *params = &offload->to_device;
    stream_drain(&grads->stream);
    stream_drain(&params->stream);
    for (int i = 0; i < OFFLOAD_BUFFERS; i++) {
        event_free(&grads->staging[i].reduced);
        event_free(&grads->staging[i].loaded);
        event_free(&params->buffers[i].sent);
    }
    event_free(&grads->reached);
    event_free(&grads->summed);
    event_free(&params->requested);
    event_free(&params->arrived);
    for (int unit = 0; grads->copied && unit < offload->stage->params->n_units; unit++)
        event_free(&grads->copied[unit]);
    free(grads->copied);
    stream_free(&grads->stream);
    stream_free(&params->stream);
    *offload = (struct offload){0};
}

// ---- gradients

// Returns the device address of a span's reduced gradients, the source of the copy.
static float *reduced_gradients_at(const struct offload *offload, const struct stage_span *span) {
    if (!offload_uses_staging(offload))
        return offload->to_host.source.data + stage_span_offset(span, offload->to_host.source.whole);
    return offload->to_host.staging[span->unit % OFFLOAD_BUFFERS].data +
           (span->shard_offset - stage_unit_shard(&offload->stage->owned_trained, span->unit));
}

// Returns where a span's gradients are copied to: on the host, or in the device's sums. NULL: they stay where
// they were reduced, or the span's tensors are frozen.
//   at   the micro-batch; with staging, its leaf is stored in the partial sum of partial_sums_of
static float *stored_gradients_at(const struct offload *offload, const struct placement_span *placed,
                                  const struct logical_micro_batch *at) {
    const struct gradient_offload *grads = &offload->to_host;
    const bool staging = offload_uses_staging(offload);
    if (placed->is_frozen)
        return NULL;
    if (placed->on_host)
        return (staging ? partial_sums_of(&grads->on_host, at) : grads->on_host.shard) + placed->at;
    return staging ? partial_sums_of(grads->on_device, at) + placed->at : NULL;
}

// With staging, and if this rank computes several logical ranks: the squares are summed by add_squares, once
// the partial sums are added up.
static bool sums_squares_late(const struct offload *offload) {
    return offload_uses_staging(offload) && logical_per_rank(&offload->stage->logical) > 1;
}

static size_t span_bytes(const struct placement_span *placed) {
    return (placed->span.end - placed->span.begin) * sizeof(float);
}

// Issues on to_host.stream the copies of one unit's gradients and, in the last micro-batch, the sums of their
// squares.
static enum status send_unit(struct offload *offload, int unit) {
    struct gradient_offload *grads = &offload->to_host;
    const struct stage *stage = offload->stage;
    const struct owned_spans *owned = &stage->owned_trained;
    const struct placement *placement = offload->placement;
    for (int i = owned->first[unit]; i < owned->first[unit + 1] && grads->last && !sums_squares_late(offload);
         i++)
        TRY(norm_add(offload->norm, &grads->stream, reduced_gradients_at(offload, &owned->spans[i]),
                     owned->spans[i].end - owned->spans[i].begin));
    TRY(event_record(&grads->summed, &grads->stream));
    for (int i = placement->first_span[unit]; i < placement->first_span[unit + 1]; i++) {
        const struct placement_span *placed = &placement->spans[i];
        float *to = stored_gradients_at(offload, placed, &grads->at);
        if (to)
            TRY(offload->stage->device->copy(
                &grads->stream, to, reduced_gradients_at(offload, &placed->grads), span_bytes(placed)));
    }
    return event_record(&grads->copied[unit], &grads->stream);
}

// With staging: adds up the partial sums of the previous micro-batch, on the host and on the device. Waits
// until its gradients have arrived on the host.
static enum status fold(struct offload *offload) {
    struct gradient_offload *grads = &offload->to_host;
    const struct logical_micro_batch unfolded = grads->unfolded;
    struct stream host = {.device = offload->stage->host};
    grads->unfolded = (struct logical_micro_batch){0};
    if (!partial_sums_folds(&unfolded) || !offload_uses_staging(offload))
        return STATUS_OK;
    TRY(partial_sums_fold(grads->on_device, &grads->stream, &unfolded));
    TRY(event_synchronize(&grads->copied[0]));
    return partial_sums_fold(&grads->on_host, &host, &unfolded);
}

// Sends the pending units: those of the previous call of offload_reduced.
static enum status send_pending(struct offload *offload) {
    struct gradient_offload *grads = &offload->to_host;
    int from = grads->pending_from, to = grads->pending_to;
    grads->pending_from = -1;
    if (from < 0)
        return STATUS_OK;
    TRY(fold(offload));
    TRY(comm_wait(offload->stage->comm, &grads->stream, grads->work));
    TRY(event_wait(&grads->staging[to % OFFLOAD_BUFFERS].reduced, &grads->stream));
    for (int unit = from; unit >= to; unit--)
        TRY(send_unit(offload, unit));
    return STATUS_OK;
}

// With staging, and if this micro-batch's gradients are added to earlier ones: copies the sum of these back
// into the unit's staging buffer.
static enum status load(struct offload *offload, int unit) {
    const struct placement *placement = offload->placement;
    int slot = unit % OFFLOAD_BUFFERS;
    if (!offload_uses_staging(offload) || !offload->to_host.at.adds || unit < 0)
        return STATUS_OK;
    // Wait until the gradients of the unit that used the buffer before have been copied out of it. For the
    // first two units of a micro-batch, offload_begin has waited already.
    if (unit + OFFLOAD_BUFFERS < offload->stage->params->n_units)
        TRY(event_wait(&offload->to_host.copied[unit + OFFLOAD_BUFFERS], &offload->to_device.stream));
    for (int i = placement->first_span[unit]; i < placement->first_span[unit + 1]; i++) {
        const struct placement_span *placed = &placement->spans[i];
        const float *from = stored_gradients_at(offload, placed, &offload->to_host.at);
        if (from)
            TRY(offload->stage->device->copy(&offload->to_device.stream,
                                             reduced_gradients_at(offload, &placed->grads), from,
                                             span_bytes(placed)));
    }
    return event_record(&offload->to_host.staging[slot].loaded, &offload->to_device.stream);
}

// True if gradients are sent to the host only after the last micro-batch, once gradients_finish has added up
// and gathered them. This is the case in stage 0, because every rank updates every element there; but a
// single rank that reduces once per step needs no all-gather. In stage 1 it is the case with partial sums.
static bool sends_at_the_end(const struct offload *offload) {
    const struct stage *stage = offload->stage;
    return stage_shards_optimizer(stage->config)
               ? !stage_shards_grads(stage->config) && logical_per_rank(&stage->logical) > 1
               : stage->world > 1 || stage_reduces_to_shard(stage->config, &stage->logical);
}

enum status offload_begin(struct offload *offload, bool last, const struct logical_micro_batch *at) {
    struct gradient_offload *grads = &offload->to_host;
    if (!offload_is_on(offload))
        return STATUS_OK;
    TRY(send_pending(offload)); // the units of the previous micro-batch that were reduced last
    if (grads->at.is_reduced)
        grads->unfolded = grads->at;
    grads->last = last;
    grads->at = *at;
    grads->pending_to = offload->stage->params->n_units; // no unit is reduced yet
    // Wait for the previous micro-batch's copies of gradients; unit 0's is the last. Then the sums that
    // load() reads are complete, and both staging buffers are free.
    TRY(event_wait(&grads->copied[0], &offload->to_device.stream));
    return load(offload, offload->stage->params->n_units - 1);
}

enum status offload_staging(struct offload *offload, struct stream *stream, int unit, float **out) {
    struct gradient_offload *grads = &offload->to_host;
    int slot = unit % OFFLOAD_BUFFERS, n_units = offload->stage->params->n_units;
    *out = grads->staging[slot].data;
    // Wait until the gradients of the unit that used the buffer before (unit + OFFLOAD_BUFFERS) have been
    // copied out of it. If at.adds, waiting for `loaded` is enough, because load() has waited for these
    // copies. For the first two units of a step, offload_finish has waited already.
    if (grads->at.adds)
        return event_wait(&grads->staging[slot].loaded, stream);
    return unit + OFFLOAD_BUFFERS < n_units ? event_wait(&grads->copied[unit + OFFLOAD_BUFFERS], stream)
                                            : STATUS_OK;
}

enum status offload_reduced(struct offload *offload, struct stream *stream, int unit, comm_work work) {
    struct gradient_offload *grads = &offload->to_host;
    bool taken = offload_is_on(offload) && !sends_at_the_end(offload) &&
                 (grads->last || offload_uses_staging(offload));
    if (!taken || unit >= grads->pending_to)
        return STATUS_OK;
    int from = grads->pending_to - 1;
    TRY(event_record(&grads->staging[unit % OFFLOAD_BUFFERS].reduced, stream));
    TRY(send_pending(offload));
    grads->pending_from = from;
    grads->pending_to = unit;
    grads->work = work;
    return load(offload, unit - 1);
}

// Adds up the last partial sums and, if sums_squares_late, sums the squares of all of this rank's gradients.
static enum status finish_sums(struct offload *offload) {
    struct gradient_offload *grads = &offload->to_host;
    const struct placement *placement = offload->placement;
    grads->unfolded = grads->at;
    grads->at = (struct logical_micro_batch){0};
    if (!sums_squares_late(offload))
        return STATUS_OK;
    TRY(fold(offload));
    TRY(event_synchronize(&grads->copied[0]));
    for (int i = 0; i < placement->n_spans; i++) {
        const struct placement_span *placed = &placement->spans[i];
        const size_t n = placed->grads.end - placed->grads.begin;
        if (placed->is_frozen)
            continue;
        TRY(placed->on_host
                ? norm_add_host(offload->norm, &grads->stream, offload_gradients_at(offload, placed), n)
                : norm_add(offload->norm, &grads->stream, grads->on_device->shard + placed->at, n));
    }
    TRY(event_record(&grads->summed, &grads->stream));
    return event_record(&grads->copied[0], &grads->stream);
}

enum status offload_finish(struct offload *offload, struct stream *stream) {
    struct gradient_offload *grads = &offload->to_host;
    if (!offload_is_on(offload))
        return STATUS_OK;
    TRY(send_pending(offload));
    if (sends_at_the_end(offload)) {
        TRY(event_record(&grads->reached, stream));
        TRY(event_wait(&grads->reached, &grads->stream));
        for (int unit = offload->stage->params->n_units - 1; unit >= 0; unit--)
            TRY(send_unit(offload, unit));
    }
    TRY(finish_sums(offload));
    return event_wait(&grads->copied[0], stream); // unit 0 is copied last
}

enum status offload_norm(struct offload *offload, double *norm) {
    TRY(event_wait(&offload->to_host.summed, &offload->to_device.stream));
    return norm_finish(offload->norm, &offload->to_device.stream, norm);
}

enum status offload_wait(struct offload *offload, int unit) {
    return event_synchronize(&offload->to_host.copied[unit]);
}

// ---- parameters

enum status offload_params_buffer(struct offload *offload, const struct placement_span *placed, size_t offset,
                                  void **out) {
    int slot = (int)(offload->to_device.n_sent % OFFLOAD_BUFFERS);
    *out = placement_array_at(offload->placement, placed, STATE_PARAMS, offset);
    if (!has_upload_buffers(offload))
        return STATUS_OK;
    *out = offload->to_device.buffers[slot].data;
    return event_synchronize(&offload->to_device.buffers[slot].sent);
}

enum status offload_params_send(struct offload *offload, const struct placement_span *placed, size_t offset,
                                size_t n, void *to) {
    int slot = (int)(offload->to_device.n_sent % OFFLOAD_BUFFERS);
    const void *from = offload->stage->type == DTYPE_F32
                           ? placement_array_at(offload->placement, placed, STATE_MASTER, offset)
                           : offload->to_device.buffers[slot].data;
    if (!to)
        return STATUS_OK;
    TRY(offload->stage->device->copy(&offload->to_device.stream, to, from,
                                     n * dtype_size(offload->stage->type)));
    offload->to_device.n_sent++;
    return event_record(&offload->to_device.buffers[slot].sent, &offload->to_device.stream);
}

enum status offload_upload_stream(struct offload *offload, struct stream *stream, struct stream **out) {
    *out = &offload->to_device.stream;
    TRY(event_record(&offload->to_device.requested, stream));
    return event_wait(&offload->to_device.requested, &offload->to_device.stream);
}

enum status offload_params_wait(struct offload *offload, struct stream *stream) {
    TRY(event_record(&offload->to_device.arrived, &offload->to_device.stream));
    return event_wait(&offload->to_device.arrived, stream);
}
