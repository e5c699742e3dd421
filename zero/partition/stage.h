// The ZeRO stage as the rest of the code sees it: the options that choose it, and the spans of elements that
// a rank works on.
//
// Source: ZeRO (arXiv 1910.02054). Each stage shards one more of the model states:
//   stage 0  nothing (data parallelism)
//   stage 1  optimizer states
//   stage 2  and gradients
//   stage 3  and parameters
#ifndef ZERO_ZERO_PARTITION_STAGE_H
#define ZERO_ZERO_PARTITION_STAGE_H

#include "base/region.h"
#include "model/gpt.h"
#include "options/config.h"
#include "zero/partition/partition.h"

#define N_STAGES 4

struct stage_options {
    int stage; // 0 to 3
    enum partition_kind partition;
    size_t reduce_bucket, allgather_bucket;        // elements of one collective
    size_t prefetch_bucket, persistence_threshold; // stage3_*, elements
    bool overlap, reduce_every_micro_batch;
    enum dtype gradient_comm_dtype;
    // Offload to host memory. All false where the device is the host.
    bool offload_optimizer, offload_param;
    double offload_ratio; // fraction of each span that the host updates
};
// place: where the device has its memory.
void stage_options_read(const struct config *config, enum region_place place, struct stage_options *out);
enum partition_kind stage_partition(const struct config *config);
enum gpt_recompute stage_recompute(const struct config *config);

// True if gradients are reduced into a shard of their own after each micro-batch. Otherwise they accumulate
// in full on every rank and are reduced in place after the last one.
static inline bool stage_reduces_to_shard(const struct stage_options *options) {
    return options->stage >= 2 || options->reduce_every_micro_batch;
}

// Elements [begin, end) of a unit that this rank works on.
struct stage_span {
    int unit;
    size_t begin, end;
    size_t model_offset; // of `begin` in an array of all units
    size_t shard_offset; // of `begin` in an array of this rank's shard
};
// Spans in the order of units.
struct stage_spans {
    struct stage_span *spans;
    int n, *first; // (n_units + 1) spans of unit u: first[u] .. first[u + 1] - 1
};
static inline size_t stage_span_offset(const struct stage_span *span, bool whole_model) {
    return whole_model ? span->model_offset : span->shard_offset;
}

#endif
