// What a ZeRO stage is to the rest: the options that choose one, and the spans of elements that a rank works
// on.
//
// Sources: ZeRO (arXiv 1910.02054): stage 1 shards the optimizer's state, 2 gradients too, 3 parameters too.
#ifndef ZERO_ZERO_STAGE_H
#define ZERO_ZERO_STAGE_H

#include "base/region.h"
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
    // What the host keeps for a device with memory of its own; none of it where the device is the host.
    bool offload_optimizer, offload_speculative, offload_param;
    double offload_ratio;
};
// place: where the device has its memory.
enum status stage_options_read(const struct config *config, enum region_place place,
                               struct stage_options *out) MUST_CHECK;

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
// Spans in the order of units.
struct stage_spans {
    struct stage_span *spans;
    int n, *first; // (n_units + 1) the spans of a unit
};
static inline size_t stage_span_at(const struct stage_span *span, bool whole) {
    return whole ? span->in_whole : span->in_shard;
}

#endif
