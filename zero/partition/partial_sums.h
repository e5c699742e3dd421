// The sums of the gradients that a rank owns, in one place (device or host): its shard and, if it computes
// several logical ranks, the partial sums of the binary counter (zero/partition/logical.h).
#ifndef ZERO_ZERO_PARTITION_PARTIAL_SUMS_H
#define ZERO_ZERO_PARTITION_PARTIAL_SUMS_H

#include "zero/partition/stage.h"

struct partial_sums {
    const struct stage *stage;
    size_t elements; // of each array
    int shard_region, regions[LOGICAL_MOST_PARTIALS];
    float *shard;
    float *partials[LOGICAL_MOST_PARTIALS]; // NULL: the rank does not need it
};

// Adds the regions to `table`, all of `elements` fp32 elements.
//   name   of the shard in plans
enum status partial_sums_init(struct partial_sums *sums, const struct stage *stage, enum region_place place,
                              size_t elements, const char *name, struct region_table *table) MUST_CHECK;
void partial_sums_bind(struct partial_sums *sums, const struct region_table *table);

// Returns the array to which the leaf of a micro-batch is reduced.
float *partial_sums_of(const struct partial_sums *sums, const struct logical_micro_batch *at);
// True if partial_sums_fold has work to do after this micro-batch.
static inline bool partial_sums_folds(const struct logical_micro_batch *at) {
    return at->is_reduced && (at->n_folds > 0 || at->adds_shard);
}
// Adds up the partial sums that are complete once the leaf of a micro-batch is reduced. After the last
// micro-batch of a step, the shard holds the sum over all logical ranks and micro-batches.
//   stream   of the device that has the arrays in its memory
enum status partial_sums_fold(const struct partial_sums *sums, struct stream *stream,
                              const struct logical_micro_batch *at) MUST_CHECK;

#endif
