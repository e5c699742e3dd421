// The calls by which a run moves gradients and parameters: laid out once, as lists of pieces, and repeated
// every step. A pure function of the partition and of where things stand, the same on every rank.
#ifndef ZERO_ZERO_PARTITION_BUCKETS_H
#define ZERO_ZERO_PARTITION_BUCKETS_H

#include "zero/comm/comm.h"
#include "zero/partition/partition.h"

// Where a unit's element e stands in a buffer, in elements from its base: at shift + e, in the owner's shard,
// or in what the owner has of the unit alone.
struct buffer_layout {
    enum { LAYOUT_SHIFTED, LAYOUT_SHARD, LAYOUT_UNIT_SHARD } where;
    size_t shift; // may wrap around: shift + e is what counts
};
#define BUFFER_SHARD      ((struct buffer_layout){.where = LAYOUT_SHARD})
#define BUFFER_UNIT_SHARD ((struct buffer_layout){.where = LAYOUT_UNIT_SHARD})
#define BUFFER_AT(base)   ((struct buffer_layout){.shift = (base)})

struct buckets {
    struct transfer *calls;
    int *last_unit; // (n_calls) the unit whose elements complete the call
    int n_calls;
    struct comm_piece *spans;
    int n_spans, spans_capacity, calls_capacity;
    size_t bucket_elements; // elements of one call
};

// A list has at bucket_elements so many calls: small buckets in a large model must not fill the memory with
// lists.
#define BUCKETS_MAX_CALLS (1 << 20)

static inline size_t buckets_count(size_t elements, size_t bucket_elements) {
    return (elements + bucket_elements - 1) / bucket_elements;
}
// STATUS_INVALID where so many elements make a longer list.
enum status buckets_check(size_t elements, size_t bucket_elements) MUST_CHECK;
// Between init and finish, ranges are added in the order in which they are to travel. A call is full at
// `bucket_elements` elements; the next range, or the rest of one, begins another.
void buckets_init(struct buckets *buckets, size_t bucket_elements);
enum status buckets_add(struct buckets *buckets, const struct partition *partition, int unit, size_t begin,
                        size_t end, struct buffer_layout in, struct buffer_layout out) MUST_CHECK;
enum status buckets_finish(struct buckets *buckets) MUST_CHECK;
void buckets_free(struct buckets *buckets);

#endif
