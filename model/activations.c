// An event names a place in a stream for those who ask after it was recorded: so one serves all that the
// passes tell the copies, and the copies have one a buffer, because the passes ask a block later.
#include "model/activations.h"

#include <stdlib.h>

#include "model/block.h"

enum status residuals_init(struct residuals *residuals, struct device *device, struct region_table *table,
                           int n_layer, enum dtype type, size_t elements, enum residuals_keeping keeping) {
    bool moves = keeping == RESIDUALS_ON_HOST && device->place != REGION_HOST;
    int all = n_layer + 1;
    *residuals =
        (struct residuals){.device = device,
                           .bytes = elements * dtype_size(type),
                           .n_buffers = moves || keeping == RESIDUALS_NOT_KEPT ? RESIDUALS_IN_USE : all,
                           .n_moved = moves ? all - RESIDUALS_IN_USE : 0};
    residuals->regions = calloc((size_t)all, sizeof *residuals->regions);
    residuals->buffers = calloc((size_t)all, sizeof *residuals->buffers);
    if (!residuals->regions || !residuals->buffers)
        return FAIL(STATUS_FAILED, "out of memory for a model's bookkeeping");
    residuals->moved = residuals->buffers + residuals->n_buffers;
    for (int i = 0; i < residuals->n_buffers; i++)
        TRY(region_add(table, REGION_ACTIVATIONS, device->place, type, elements, &residuals->regions[i],
                       "residual.%d", i));
    for (int i = 0; i < residuals->n_moved; i++)
        TRY(region_add(table, REGION_ACTIVATIONS, REGION_HOST, type, elements,
                       &residuals->regions[residuals->n_buffers + i], "residual.%d on host", i));
    return STATUS_OK;
}

static enum status open_copies(struct residuals *residuals) {
    TRY(stream_init(&residuals->copies, residuals->device));
    TRY(event_init(&residuals->computed, residuals->device));
    for (int i = 0; i < RESIDUALS_IN_USE; i++)
        TRY(event_init(&residuals->copied[i], residuals->device));
    return STATUS_OK;
}

enum status residuals_bind(struct residuals *residuals, const struct region_table *table) {
    for (int i = 0; i < residuals->n_buffers + residuals->n_moved; i++)
        residuals->buffers[i] = buffer_find(table, residuals->regions[i]);
    return table && residuals->n_moved > 0 ? open_copies(residuals) : STATUS_OK;
}

void residuals_free(struct residuals *residuals) {
    stream_drain(&residuals->copies);
    for (int i = 0; i < RESIDUALS_IN_USE; i++)
        event_free(&residuals->copied[i]);
    event_free(&residuals->computed);
    stream_free(&residuals->copies);
    free(residuals->regions);
    free(residuals->buffers);
    *residuals = (struct residuals){0};
}

void *residual_at(const struct residuals *residuals, int i) {
    return residuals->buffers[i % residuals->n_buffers];
}

static bool moves(const struct residuals *residuals, const struct stream *stream, int i) {
    return stream && i >= 0 && i < residuals->n_moved;
}

// Copies once the passes' stream has come as far as it was given work.
static enum status copy_after(struct residuals *residuals, struct stream *stream, int i, void *to,
                              const void *from) {
    TRY(event_record(&residuals->computed, stream));
    TRY(event_wait(&residuals->computed, &residuals->copies));
    TRY(residuals->device->copy(&residuals->copies, to, from, residuals->bytes));
    return event_record(&residuals->copied[i % RESIDUALS_IN_USE], &residuals->copies);
}

enum status residuals_make_room(struct residuals *residuals, struct stream *stream, int i) {
    if (!moves(residuals, stream, i - RESIDUALS_IN_USE))
        return STATUS_OK;
    return event_wait(&residuals->copied[i % RESIDUALS_IN_USE], stream);
}

enum status residuals_move_out(struct residuals *residuals, struct stream *stream, int i) {
    if (!moves(residuals, stream, i))
        return STATUS_OK;
    return copy_after(residuals, stream, i, residuals->moved[i], residual_at(residuals, i));
}

enum status residuals_fetch(struct residuals *residuals, struct stream *stream, int i) {
    if (!moves(residuals, stream, i))
        return STATUS_OK;
    return copy_after(residuals, stream, i, residual_at(residuals, i), residuals->moved[i]);
}

enum status residuals_await(struct residuals *residuals, struct stream *stream, int i) {
    if (!moves(residuals, stream, i))
        return STATUS_OK;
    return event_wait(&residuals->copied[i % RESIDUALS_IN_USE], stream);
}
