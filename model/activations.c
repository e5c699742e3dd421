// Why copies share one event `computed`, but each device buffer has its own event `copied`: a stream that
// waits for an event waits for the event's latest recording. A copy's wait for `computed` is issued right
// after the recording, so no other recording comes in between. The passes wait for a copy only one block
// later, when the next copy may already have been issued and its event recorded.
#include "model/activations.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "model/runner.h"

enum status activations_init(struct activation_checkpoints *activations, struct device *device,
                             struct region_table *table, int n_layer, enum dtype type, size_t elements,
                             enum activations_place place, int lowest, bool keeps_first, const char *prefix) {
    bool moves = place == ACTIVATIONS_ON_HOST && device->place != REGION_HOST;
    int all = n_layer + 1, kept = all - lowest;
    if (kept < ACTIVATIONS_IN_USE || moves || place == ACTIVATIONS_DISCARDED)
        kept = ACTIVATIONS_IN_USE;
    *activations = (struct activation_checkpoints){.device = device,
                                                   .bytes = elements * dtype_size(type),
                                                   .keeps_first = keeps_first,
                                                   .lowest = lowest,
                                                   .n_buffers = kept,
                                                   .n_moved = moves ? all - ACTIVATIONS_IN_USE : 0};
    activations->regions = allocate((size_t)all + 1, sizeof *activations->regions);
    activations->buffers = allocate((size_t)all, sizeof *activations->buffers);
    activations->moved = activations->buffers + activations->n_buffers;
    for (int i = 0; i < activations->n_buffers; i++)
        TRY(region_add(table, REGION_ACTIVATIONS, device->place, type, elements, &activations->regions[i],
                       "%sresidual.%d", prefix, i));
    int *moved = activations->regions + activations->n_buffers, *first = moved + activations->n_moved;
    for (int i = 0; i < activations->n_moved; i++) {
        moved[i] = -1;
        if (i >= lowest && (i > 0 || !keeps_first))
            TRY(region_add(table, REGION_ACTIVATIONS, REGION_HOST, type, elements, &moved[i],
                           "%sresidual.%d on host", prefix, i));
    }
    *first = -1;
    if (keeps_first && activations->n_buffers < all)
        TRY(region_add(table, REGION_ACTIVATIONS, device->place, type, elements, first, "%sembedding",
                       prefix));
    return STATUS_OK;
}

static enum status open_copies(struct activation_checkpoints *activations) {
    TRY(stream_init(&activations->copies, activations->device));
    TRY(event_init(&activations->computed, activations->device));
    for (int i = 0; i < ACTIVATIONS_IN_USE; i++)
        TRY(event_init(&activations->copied[i], activations->device));
    return STATUS_OK;
}

enum status activations_bind(struct activation_checkpoints *activations, const struct region_table *table) {
    for (int i = 0; i < activations->n_buffers + activations->n_moved; i++)
        activations->buffers[i] = buffer_find(table, activations->regions[i]);
    activations->first =
        buffer_find(table, activations->regions[activations->n_buffers + activations->n_moved]);
    return table && activations->n_moved > 0 ? open_copies(activations) : STATUS_OK;
}

void activations_free(struct activation_checkpoints *activations) {
    stream_drain(&activations->copies);
    for (int i = 0; i < ACTIVATIONS_IN_USE; i++)
        event_free(&activations->copied[i]);
    event_free(&activations->computed);
    stream_free(&activations->copies);
    free(activations->regions);
    free(activations->buffers);
    *activations = (struct activation_checkpoints){0};
}

void *activations_at(const struct activation_checkpoints *activations, int i) {
    const int above = i - activations->lowest;
    if (i == 0 && activations->first)
        return activations->first;
    return activations->buffers[above < 0 ? -above % ACTIVATIONS_IN_USE : above % activations->n_buffers];
}

static bool moves(const struct activation_checkpoints *activations, const struct stream *stream, int i) {
    return stream && i >= activations->lowest && i >= (activations->keeps_first ? 1 : 0) &&
           i < activations->n_moved;
}

// Starts a copy of checkpoint i that waits for all operations issued so far to `stream`.
static enum status copy_after(struct activation_checkpoints *activations, struct stream *stream, int i,
                              void *to, const void *from) {
    TRY(event_record(&activations->computed, stream));
    TRY(event_wait(&activations->computed, &activations->copies));
    TRY(activations->device->copy(&activations->copies, to, from, activations->bytes));
    return event_record(&activations->copied[i % ACTIVATIONS_IN_USE], &activations->copies);
}

enum status activations_reserve(struct activation_checkpoints *activations, struct stream *stream, int i) {
    if (!moves(activations, stream, i - ACTIVATIONS_IN_USE))
        return STATUS_OK;
    return event_wait(&activations->copied[i % ACTIVATIONS_IN_USE], stream);
}

enum status activations_offload(struct activation_checkpoints *activations, struct stream *stream, int i) {
    if (!moves(activations, stream, i))
        return STATUS_OK;
    return copy_after(activations, stream, i, activations->moved[i], activations_at(activations, i));
}

enum status activations_prefetch(struct activation_checkpoints *activations, struct stream *stream, int i) {
    if (!moves(activations, stream, i))
        return STATUS_OK;
    return copy_after(activations, stream, i, activations_at(activations, i), activations->moved[i]);
}

enum status activations_wait(struct activation_checkpoints *activations, struct stream *stream, int i) {
    if (!moves(activations, stream, i))
        return STATUS_OK;
    return event_wait(&activations->copied[i % ACTIVATIONS_IN_USE], stream);
}
