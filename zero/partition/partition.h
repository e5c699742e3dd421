// The partition: which rank owns which elements of the model. It depends only on the parameter table and the
// number of ranks, so every rank computes the same one without communication.
//
// A rank's shard is the concatenation of the spans that it owns, unit by unit. It may be empty. A unit shard
// is the contiguous section of a shard that belongs to one unit.
#ifndef ZERO_ZERO_PARTITION_PARTITION_H
#define ZERO_ZERO_PARTITION_PARTITION_H

#include "model/params.h"

enum partition_kind {
    PARTITION_EVEN, // each unit is split into one span per rank, of equal size up to PARAM_ALIGNMENT
    // Each unit has one owner. Units are assigned largest first, to the rank that owns the fewest elements so
    // far.
    PARTITION_LAYER,
    PARTITION_TENSOR, // each tensor has one owner, assigned in the same way, so that no matrix is split
    N_PARTITIONS
};
const char *partition_name(enum partition_kind kind); // "even", "layer", "tensor"
enum status partition_find(const char *name, enum partition_kind *kind) MUST_CHECK;

// Elements [begin, end) of a unit that one rank owns; never empty. `begin` and `end` are multiples of
// PARAM_ALIGNMENT.
struct partition_span {
    int unit, owner;
    size_t begin, end;
    size_t shard_offset;      // offset of `begin` in the owner's shard
    size_t unit_shard_offset; // offset of the unit shard (the first span of this unit) in the owner's shard
    size_t unit_offset;       // number of elements in the earlier spans of the unit
};

// The spans of a unit cover each of its elements once, in order.
struct partition {
    enum partition_kind kind;
    int world;
    struct partition_span *spans;
    int n_spans;
    int *first_span;           // (n_units + 1) unit u has spans first_span[u] .. first_span[u + 1] - 1
    size_t *rank_elements;     // (world) size of each rank's shard
    struct partition *trained; // the partition without frozen tensors; NULL if no tensor is frozen
};

void partition_init(struct partition *partition, const struct params *params, enum partition_kind kind,
                    int world);
// The partition of gradients and optimizer states. It has the same owners, but spans leave out frozen
// tensors.
static inline const struct partition *partition_trained(const struct partition *partition) {
    return partition->trained ? partition->trained : partition;
}
// True if the unit has the same tensors, and is divided in the same way, as the previous unit. Such units
// share their lists of buckets.
bool partition_repeats(const struct partition *partition, const struct params *params, int unit);
void partition_free(struct partition *partition);

#endif
