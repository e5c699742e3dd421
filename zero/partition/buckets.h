// The calls by which a run moves gradients and parameters: laid out once, as lists of pieces, and repeated
// every step. A pure function of the partition and of where things stand, the same on every rank.
#ifndef ZERO_ZERO_PARTITION_BUCKETS_H
#define ZERO_ZERO_PARTITION_BUCKETS_H

#include "zero/comm/comm.h"
#include "zero/partition/partition.h"

// Where a unit's element e stands in a buffer, in elements from its base: at shift + e, in the owner's shard,
// or in what the owner has of the unit alone.
struct transfer_place {
    enum { TRANSFER_AT, TRANSFER_IN_SHARD, TRANSFER_IN_SHARE } where;
    size_t shift; // may wrap around: shift + e is what counts
};
#define PLACE_SHARD    ((struct transfer_place){.where = TRANSFER_IN_SHARD})
#define PLACE_SHARE    ((struct transfer_place){.where = TRANSFER_IN_SHARE})
#define PLACE_AT(base) ((struct transfer_place){.shift = (base)})

struct transfers {
    struct transfer *calls;
    int *last_unit; // (n_calls) the unit whose elements complete the call
    int n_calls;
    struct comm_piece *pieces;
    int n_pieces, pieces_capacity, calls_capacity;
    size_t most; // elements of one call
};

// A list has at most so many calls: small buckets in a large model must not fill the memory with lists.
#define TRANSFERS_MOST_CALLS (1 << 20)

static inline size_t transfers_n_calls(size_t elements, size_t most) {
    return (elements + most - 1) / most;
}
// STATUS_INVALID where so many elements make a longer list.
enum status transfers_check(size_t elements, size_t most) MUST_CHECK;
// Between init and finish, ranges are added in the order in which they are to travel. A call is full at
// `most` elements; the next range, or the rest of one, begins another.
void transfers_init(struct transfers *transfers, size_t most);
enum status transfers_add(struct transfers *transfers, const struct partition *partition, int unit,
                          size_t begin, size_t end, struct transfer_place in,
                          struct transfer_place out) MUST_CHECK;
enum status transfers_finish(struct transfers *transfers) MUST_CHECK;
void transfers_free(struct transfers *transfers);

#endif
