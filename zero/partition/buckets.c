// Pieces are kept in one growing array; calls point into it only when it has stopped growing.
#include "zero/partition/buckets.h"

#include <stdlib.h>

void transfers_init(struct transfers *transfers, size_t most) {
    *transfers = (struct transfers){.most = most};
}

// The array with room for one more of `size` bytes, or NULL: then it is as it was.
static void *grow(void *array, int n, int *capacity, size_t size) {
    if (n < *capacity)
        return array;
    int wanted = *capacity ? 2 * *capacity : 16;
    void *grown = realloc(array, (size_t)wanted * size);
    if (grown)
        *capacity = wanted;
    return grown;
}

static enum status out_of_memory(void) {
    return FAIL(STATUS_FAILED, "out of memory for the list of transfers between ranks");
}

static enum status too_many_calls(size_t most) {
    return FAIL(STATUS_INVALID,
                "buckets of %zu elements make more than %d calls between ranks in a step; raise "
                "zero_optimization.reduce_bucket_size and allgather_bucket_size",
                most, TRANSFERS_MOST_CALLS);
}

enum status transfers_check(size_t elements, size_t most) {
    return transfers_n_calls(elements, most) <= TRANSFERS_MOST_CALLS ? STATUS_OK : too_many_calls(most);
}

static enum status begin_call(struct transfers *transfers) {
    if (transfers->n_calls == TRANSFERS_MOST_CALLS)
        return too_many_calls(transfers->most);
    int capacity = transfers->calls_capacity;
    void *units = grow(transfers->last_unit, transfers->n_calls, &capacity, sizeof *transfers->last_unit);
    if (!units)
        return out_of_memory();
    transfers->last_unit = units;
    void *calls =
        grow(transfers->calls, transfers->n_calls, &transfers->calls_capacity, sizeof *transfers->calls);
    if (!calls)
        return out_of_memory();
    transfers->calls = calls;
    transfers->calls[transfers->n_calls++] = (struct transfer){0};
    return STATUS_OK;
}

static enum status add_piece(struct transfers *transfers, struct comm_piece piece, int unit) {
    struct transfer *call = transfers->n_calls > 0 ? &transfers->calls[transfers->n_calls - 1] : NULL;
    if (!call || call->elements == transfers->most) {
        TRY(begin_call(transfers));
        call = &transfers->calls[transfers->n_calls - 1];
    }
    void *pieces =
        grow(transfers->pieces, transfers->n_pieces, &transfers->pieces_capacity, sizeof *transfers->pieces);
    if (!pieces)
        return out_of_memory();
    transfers->pieces = pieces;
    transfers->pieces[transfers->n_pieces++] = piece;
    call->n_pieces++;
    call->elements += piece.elements;
    transfers->last_unit[transfers->n_calls - 1] = unit;
    return STATUS_OK;
}

static size_t place_of(struct transfer_place place, const struct partition_span *span, size_t element) {
    if (place.where == TRANSFER_AT)
        return place.shift + element;
    size_t in_shard = span->shard_offset + (element - span->begin);
    return place.where == TRANSFER_IN_SHARD ? in_shard : in_shard - span->share_offset;
}

enum status transfers_add(struct transfers *transfers, const struct partition *partition, int unit,
                          size_t begin, size_t end, struct transfer_place in, struct transfer_place out) {
    for (int i = partition->first_span[unit]; i < partition->first_span[unit + 1]; i++) {
        const struct partition_span *span = &partition->spans[i];
        size_t from = begin > span->begin ? begin : span->begin, to = end < span->end ? end : span->end;
        while (from < to) {
            size_t used = transfers->n_calls > 0 ? transfers->calls[transfers->n_calls - 1].elements : 0;
            size_t room = transfers->most - used % transfers->most;
            size_t n = to - from < room ? to - from : room;
            const struct comm_piece piece = {.owner = span->owner,
                                             .in = place_of(in, span, from),
                                             .out = place_of(out, span, from),
                                             .elements = n};
            TRY(add_piece(transfers, piece, unit));
            from += n;
        }
    }
    return STATUS_OK;
}

enum status transfers_finish(struct transfers *transfers) {
    struct comm_piece *pieces = transfers->pieces;
    for (int i = 0; i < transfers->n_calls; i++) {
        transfers->calls[i].pieces = pieces;
        TRY(comm_pieces_link(pieces, transfers->calls[i].n_pieces));
        pieces += transfers->calls[i].n_pieces;
    }
    return STATUS_OK;
}

void transfers_free(struct transfers *transfers) {
    free(transfers->calls);
    free(transfers->last_unit);
    free(transfers->pieces);
    *transfers = (struct transfers){0};
}
