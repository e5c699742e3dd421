// What a ZeRO stage is to the rest: the options that choose one, and the spans of elements that a rank works
// on.
//
// Sources: ZeRO (arXiv 1910.02054): stage 1 shards the optimizer's state, 2 gradients too, 3 parameters too.
#ifndef ZERO_ZERO_PARTITION_STAGE_H
#define ZERO_ZERO_PARTITION_STAGE_H

#include "base/region.h"
#include "configs/config.h"
#include "model/gpt.h"
#include "zero/partition/partition.h"

#define N_STAGES 4

struct stage_options {
    int stage; // 0 to 3
    enum partition_kind partition;
    size_t reduce_bucket, allgather_bucket; // elements
    size_t prefetch_bucket, persistence_threshold, max_live;
    bool overlap, reduce_every_micro_batch;
    enum dtype gradient_comm_dtype;
    enum gpt_recompute recompute; // of blocks in backward: which groups are gathered again
    // What the host keeps for a device with memory of its own; none of it where the device is the host.
    bool offload_optimizer, offload_speculative, offload_param;
    double offload_ratio;
};
// place: where the device has its memory.
void stage_options_read(const struct config *config, enum region_place place, struct stage_options *out);
enum partition_kind stage_partition(const struct config *config);
enum gpt_recompute stage_recompute(const struct config *config);

// Whether gradients are reduced into a shard of their own as each micro-batch ends, rather than where they
// lie as the step ends.
static inline bool stage_reduces_to_shard(const struct stage_options *options) {
    return options->stage >= 2 || options->reduce_every_micro_batch;
}

// Stage 3: whether a block is gathered, and its gradients reduced, group by group (enum block_group) rather
// than whole: two like it side by side, one in use and one fetched ahead, exceed stage3_max_live_parameters.
// Other units are one matrix product, or small.
static inline bool stage_by_group(const struct stage_options *options, const struct params *params,
                                  int unit) {
    return options->stage == 3 && unit > 0 && unit < params->n_units - 1 &&
           params->units[unit].elements > options->max_live / 2;
}
// What is gathered, or reduced, at once: the unit, or one group of it.
static inline int stage_n_ranges(const struct stage_options *options, const struct params *params, int unit) {
    return stage_by_group(options, params, unit) ? N_BLOCK_GROUPS : 1;
}
static inline struct param_range stage_range(const struct stage_options *options, const struct params *params,
                                             int unit, int i) {
    return stage_by_group(options, params, unit) ? params_group(params, unit, (enum block_group)i)
                                                 : params_unit(params, unit);
}

// A stretch of a unit's elements that this rank works on, and where it stands in an array of all units and in
// one of the shard alone.
struct stage_span {
    int unit;
    size_t begin, end;
    size_t model_offset, shard_offset;
};
// Spans in the order of units.
struct stage_spans {
    struct stage_span *spans;
    int n, *first; // (n_units + 1) the spans of a unit
};
static inline size_t stage_span_offset(const struct stage_span *span, bool whole) {
    return whole ? span->model_offset : span->shard_offset;
}

#endif
