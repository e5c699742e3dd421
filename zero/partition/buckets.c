// All calls share one growing array of spans. buckets_finish sets their pointers into it, once the array no
// longer moves.
#include "zero/partition/buckets.h"

#include <stdlib.h>

#include "base/alloc.h"

void buckets_init(struct buckets *buckets, size_t bucket_elements) {
    *buckets = (struct buckets){.bucket_elements = bucket_elements};
}

enum status buckets_check(size_t elements, size_t bucket_elements) {
    if (buckets_count(elements, bucket_elements) <= BUCKETS_MAX_CALLS)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "buckets of %zu elements need more than %d collectives per step; raise "
                "zero_optimization.reduce_bucket_size and allgather_bucket_size",
                bucket_elements, BUCKETS_MAX_CALLS);
}

static void add_span(struct buckets *buckets, struct comm_span span, int unit) {
    const bool is_full =
        buckets->n_calls == 0 || buckets->calls[buckets->n_calls - 1].elements == buckets->bucket_elements;
    if (is_full) {
        RESERVE(buckets->last_unit, buckets->n_calls + 1, buckets->units_capacity);
        RESERVE(buckets->calls, buckets->n_calls + 1, buckets->calls_capacity);
        buckets->calls[buckets->n_calls++] = (struct comm_transfer){0};
    }
    RESERVE(buckets->spans, buckets->n_spans + 1, buckets->spans_capacity);
    buckets->spans[buckets->n_spans++] = span;
    struct comm_transfer *call = &buckets->calls[buckets->n_calls - 1];
    call->n_spans++;
    call->elements += span.elements;
    buckets->last_unit[buckets->n_calls - 1] = unit;
}

static size_t offset_in(struct buffer_layout layout, const struct partition_span *owned, size_t element) {
    if (layout.where == LAYOUT_SHIFTED)
        return layout.shift + element;
    if (layout.where == LAYOUT_GRADS)
        return layout.shift + owned->unit_offset + (element - owned->begin);
    size_t shard_offset = owned->shard_offset + (element - owned->begin);
    return layout.where == LAYOUT_SHARD ? shard_offset : shard_offset - owned->unit_shard_offset;
}

void buckets_add(struct buckets *buckets, const struct partition *partition, int unit, size_t begin,
                 size_t end, struct buffer_layout in, struct buffer_layout out) {
    for (int i = partition->first_span[unit]; i < partition->first_span[unit + 1]; i++) {
        const struct partition_span *owned = &partition->spans[i];
        size_t from = begin > owned->begin ? begin : owned->begin, to = end < owned->end ? end : owned->end;
        while (from < to) {
            size_t used = buckets->n_calls > 0 ? buckets->calls[buckets->n_calls - 1].elements : 0;
            size_t room = buckets->bucket_elements - used % buckets->bucket_elements;
            size_t n = to - from < room ? to - from : room;
            const struct comm_span span = {.owner = owned->owner,
                                           .in = offset_in(in, owned, from),
                                           .out = offset_in(out, owned, from),
                                           .elements = n};
            add_span(buckets, span, unit);
            from += n;
        }
    }
}

void buckets_finish(struct buckets *buckets) {
    struct comm_span *spans = buckets->spans;
    for (int i = 0; i < buckets->n_calls; i++) {
        buckets->calls[i].spans = spans;
        comm_spans_link(spans, buckets->calls[i].n_spans);
        spans += buckets->calls[i].n_spans;
    }
}

void buckets_free(struct buckets *buckets) {
    free(buckets->calls);
    free(buckets->last_unit);
    free(buckets->spans);
    *buckets = (struct buckets){0};
}
