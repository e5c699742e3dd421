// What a ZeRO stage is to the rest: the options that choose one, and the spans of elements that a rank works
// on.
//
// Sources: ZeRO (arXiv 1910.02054): stage 1 shards the optimizer's state, 2 gradients too, 3 parameters too.
#ifndef ZERO_ZERO_STAGE_H
#define ZERO_ZERO_STAGE_H

#include "base/dtype.h"
#include "configs/config.h"
#include "zero/partition.h"

#define N_STAGES 4

struct stage_options {
    int stage; // 0 to 3
    enum partition_kind partition;
    size_t reduce_bucket, allgather_bucket; // elements
    size_t prefetch_bucket, persistence_threshold;
    bool overlap, reduce_every_micro_batch;
    enum dtype gradients_travel_as;
};
enum status stage_options_read(const struct config *config, struct stage_options *out) MUST_CHECK;

// Whether gradients are reduced into a shard of their own as each micro-batch ends, rather than where they
// lie as the step ends.
static inline bool stage_reduces_to_shard(const struct stage_options *options) {
    return options->stage >= 2 || options->reduce_every_micro_batch;
}

// A stretch of a unit's elements that this rank works on, and where it stands in an array of all units and in
// one of the shard alone.
struct stage_span {
    int unit;
    size_t begin, end;
    size_t in_whole, in_shard;
};
static inline size_t stage_span_at(const struct stage_span *span, bool whole) {
    return whole ? span->in_whole : span->in_shard;
}

#endif
