// Who owns which elements: a pure function of the table of parameters and the number of ranks. A rank's shard
// is its spans one after the other, unit by unit; it may be empty.
#ifndef ZERO_ZERO_PARTITION_PARTITION_H
#define ZERO_ZERO_PARTITION_PARTITION_H

#include "model/params.h"

enum partition_kind {
    PARTITION_EVEN,   // every unit in equal parts, to PARAM_ALIGNMENT elements
    PARTITION_LAYER,  // whole units, the largest first to the rank that has least
    PARTITION_TENSOR, // whole tensors likewise: no matrix is split
    N_PARTITIONS
};
const char *partition_name(enum partition_kind kind); // "even", "layer", "tensor"
enum status partition_find(const char *name, enum partition_kind *kind) MUST_CHECK;

// Elements [begin, end) of a unit, both multiples of PARAM_ALIGNMENT, never empty.
struct partition_span {
    int unit, owner;
    size_t begin, end;
    size_t shard_offset;      // where they stand in the owner's shard
    size_t unit_shard_offset; // where the owner's first span of this unit stands there
};

// Of each unit the spans cover all elements once, in order.
struct partition {
    enum partition_kind kind;
    int world;
    struct partition_span *spans;
    int n_spans;
    int *first_span;       // (n_units + 1)
    size_t *rank_elements; // (world) of each rank's shard
};

enum status partition_init(struct partition *partition, const struct params *params, enum partition_kind kind,
                           int world) MUST_CHECK;
// Whether a unit is divided as the one before it, tensor by tensor and span by span.
bool partition_repeats(const struct partition *partition, const struct params *params, int unit);
void partition_free(struct partition *partition);

#endif
