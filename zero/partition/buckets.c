// All calls share one growing array of spans. Their pointers into it are set by buckets_finish, when it has
// stopped moving.
#include "zero/partition/buckets.h"

#include <stdlib.h>

void buckets_init(struct buckets *buckets, size_t bucket_elements) {
    *buckets = (struct buckets){.bucket_elements = bucket_elements};
}

// Returns the array with room for one more item of `size` bytes, or NULL, which leaves it unchanged.
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
    return FAIL(STATUS_FAILED, "out of memory for the list of communication buckets");
}

static enum status too_many_calls(size_t bucket_elements) {
    return FAIL(STATUS_INVALID,
                "buckets of %zu elements need more than %d collectives per step; raise "
                "zero_optimization.reduce_bucket_size and allgather_bucket_size",
                bucket_elements, BUCKETS_MAX_CALLS);
}

enum status buckets_check(size_t elements, size_t bucket_elements) {
    return buckets_count(elements, bucket_elements) <= BUCKETS_MAX_CALLS ? STATUS_OK
                                                                         : too_many_calls(bucket_elements);
}

static enum status begin_call(struct buckets *buckets) {
    if (buckets->n_calls == BUCKETS_MAX_CALLS)
        return too_many_calls(buckets->bucket_elements);
    int capacity = buckets->calls_capacity;
    void *units = grow(buckets->last_unit, buckets->n_calls, &capacity, sizeof *buckets->last_unit);
    if (!units)
        return out_of_memory();
    buckets->last_unit = units;
    void *calls = grow(buckets->calls, buckets->n_calls, &buckets->calls_capacity, sizeof *buckets->calls);
    if (!calls)
        return out_of_memory();
    buckets->calls = calls;
    buckets->calls[buckets->n_calls++] = (struct comm_transfer){0};
    return STATUS_OK;
}

static enum status add_span(struct buckets *buckets, struct comm_span span, int unit) {
    struct comm_transfer *call = buckets->n_calls > 0 ? &buckets->calls[buckets->n_calls - 1] : NULL;
    if (!call || call->elements == buckets->bucket_elements) {
        TRY(begin_call(buckets));
        call = &buckets->calls[buckets->n_calls - 1];
    }
    void *spans = grow(buckets->spans, buckets->n_spans, &buckets->spans_capacity, sizeof *buckets->spans);
    if (!spans)
        return out_of_memory();
    buckets->spans = spans;
    buckets->spans[buckets->n_spans++] = span;
    call->n_spans++;
    call->elements += span.elements;
    buckets->last_unit[buckets->n_calls - 1] = unit;
    return STATUS_OK;
}

static size_t offset_in(struct buffer_layout layout, const struct partition_span *owned, size_t element) {
    if (layout.where == LAYOUT_SHIFTED)
        return layout.shift + element;
    size_t shard_offset = owned->shard_offset + (element - owned->begin);
    return layout.where == LAYOUT_SHARD ? shard_offset : shard_offset - owned->unit_shard_offset;
}

enum status buckets_add(struct buckets *buckets, const struct partition *partition, int unit, size_t begin,
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
            TRY(add_span(buckets, span, unit));
            from += n;
        }
    }
    return STATUS_OK;
}

enum status buckets_finish(struct buckets *buckets) {
    struct comm_span *spans = buckets->spans;
    for (int i = 0; i < buckets->n_calls; i++) {
        buckets->calls[i].spans = spans;
        TRY(comm_spans_link(spans, buckets->calls[i].n_spans));
        spans += buckets->calls[i].n_spans;
    }
    return STATUS_OK;
}

void buckets_free(struct buckets *buckets) {
    free(buckets->calls);
    free(buckets->last_unit);
    free(buckets->spans);
    *buckets = (struct buckets){0};
}
