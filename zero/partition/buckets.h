// Buckets: the collectives by which a step moves gradients and parameters, each of at most bucket_elements
// elements. A list of buckets is built once, from the partition and the layouts of the two buffers (which
// the collectives read and write). It is used in every step. Since it depends on nothing else, it is the
// same on every rank.
#ifndef ZERO_ZERO_PARTITION_BUCKETS_H
#define ZERO_ZERO_PARTITION_BUCKETS_H

#include "zero/comm/comm.h"
#include "zero/partition/partition.h"

// How a buffer is laid out, that is at which offset (in elements from its base) it holds element e of a unit:
//   BUFFER_AT(base)     at base + e: the unit is whole and begins at `base`
//   BUFFER_GRADS(base)  the unit's gradients begin at `base`; frozen tensors take no space
//   BUFFER_SHARD        at its offset in the owner's shard
//   BUFFER_UNIT_SHARD   at its offset in the owner's unit shard
struct buffer_layout {
    enum { LAYOUT_SHIFTED, LAYOUT_GRADS, LAYOUT_SHARD, LAYOUT_UNIT_SHARD } where;
    // LAYOUT_SHIFTED, LAYOUT_GRADS: `base`. It may stand for a negative number, because offsets are computed
    // modulo 2^64.
    size_t shift;
};
#define BUFFER_SHARD       ((struct buffer_layout){.where = LAYOUT_SHARD})
#define BUFFER_UNIT_SHARD  ((struct buffer_layout){.where = LAYOUT_UNIT_SHARD})
#define BUFFER_AT(base)    ((struct buffer_layout){.shift = (base)})
#define BUFFER_GRADS(base) ((struct buffer_layout){.where = LAYOUT_GRADS, .shift = (base)})

// A list of buckets. A call is the collective of one bucket.
struct buckets {
    struct comm_transfer *calls; // (n_calls) what each call transfers
    // (n_calls) For each call, the last of its units in the order of buckets_add. Reductions issue a call
    // once this unit's gradients are ready.
    int *last_unit;
    int n_calls;
    struct comm_span *spans; // spans of all calls, one after another
    int n_spans, spans_capacity, calls_capacity, units_capacity;
    size_t bucket_elements;
};

// Maximum number of calls per list. Otherwise small buckets in a large model could fill the memory with
// lists.
#define BUCKETS_MAX_CALLS (1 << 20)

// The number of buckets that hold `elements`.
static inline size_t buckets_count(size_t elements, size_t bucket_elements) {
    return (elements + bucket_elements - 1) / bucket_elements;
}
// Returns STATUS_INVALID if `elements` need more than BUCKETS_MAX_CALLS buckets.
enum status buckets_check(size_t elements, size_t bucket_elements) MUST_CHECK;

// To build a list, call buckets_check, buckets_init, buckets_add once per span in the order of
// communication, and buckets_finish. A bucket is full when it holds bucket_elements elements. So a span may
// continue in the next bucket, and a bucket may hold elements of several units.
void buckets_init(struct buckets *buckets, size_t bucket_elements);
// Adds elements [begin, end) of a unit, split by owner.
//   in, out   layouts of the collective's two buffers
void buckets_add(struct buckets *buckets, const struct partition *partition, int unit, size_t begin,
                 size_t end, struct buffer_layout in, struct buffer_layout out);
void buckets_finish(struct buckets *buckets);
void buckets_free(struct buckets *buckets);

#endif
