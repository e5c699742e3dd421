// A stage: what one rank of a run trains, how that is sharded, and which part of it the rank owns. The
// modules that hold model states (zero/stages, zero/offload) read this struct and copy nothing from it.
//
// Source: ZeRO (arXiv 1910.02054), section 5. Each stage shards one more of the model states than the stage
// before it:
//   stage 0  nothing (data parallelism)
//   stage 1  optimizer states
//   stage 2  also gradients
//   stage 3  also parameters
// The functions stage_shards_* are the only code that knows these numbers.
//
// Ownership. The partition assigns each element of the model to one rank, its owner. The owner receives the
// sum of the element's gradients over ranks, adds its square to the norm, updates the element, writes it to
// checkpoints, and sends its new value to the other ranks. In stage 0 every rank updates every element, so
// owners share only the rest of this work.
//
// A stage is a pure function of its inputs. It has no memory for states and does not communicate, so
// `./train plan` can make the stage of any rank.
#ifndef ZERO_ZERO_PARTITION_STAGE_H
#define ZERO_ZERO_PARTITION_STAGE_H

#include "base/region.h"
#include "model/gpt.h"
#include "model/trace.h"
#include "options/config.h"
#include "zero/comm/comm.h"
#include "zero/partition/logical.h"
#include "zero/partition/partition.h"

#define N_STAGES 4

// True if optimizer states are sharded. Each rank then updates the elements that it owns, and the new
// parameters are gathered. Otherwise every rank updates every element, and needs the sums of all gradients
// for that.
static inline bool stage_shards_optimizer(const struct config *config) {
    return config->zero_optimization.stage >= 1;
}
// True if gradients are sharded. Each unit's gradients are then reduced into the owners' shards once
// backward has completed them.
static inline bool stage_shards_grads(const struct config *config) {
    return config->zero_optimization.stage >= 2;
}
// True if parameters are sharded. Each unit is then gathered before each use.
static inline bool stage_shards_params(const struct config *config) {
    return config->zero_optimization.stage >= 3;
}
// True if gradients are reduced during each micro-batch. Otherwise every rank accumulates all gradients of a
// logical rank's step, and they are reduced during its last micro-batch.
static inline bool stage_reduces_every_micro_batch(const struct config *config) {
    return stage_shards_grads(config) || config->zero_optimization.reduce_every_micro_batch;
}

// True if gradients are reduced into a separate shard: where several reductions add up in a step. Otherwise
// they are reduced in place.
static inline bool stage_reduces_to_shard(const struct config *config, const struct logical *logical) {
    return stage_reduces_every_micro_batch(config) || logical_per_rank(logical) > 1;
}
// True if a logical rank may have several micro-batches in a step.
static inline bool stage_may_accumulate(const struct config *config, const struct logical *logical) {
    return config->train.gradient_accumulation_steps > logical_per_rank(logical) ||
           config->train.batch_size_schedule.n > 0 || config->train.max_batch_size > 0;
}
// True if the run's sums over ranks are added up in order of micro-batches. Where a logical rank has one
// micro-batch in every step, there is one order of sums in all stages, and the result is false.
static inline bool stage_adds_micro_batches(const struct config *config, int64_t logical_ranks, int world) {
    return stage_reduces_every_micro_batch(config) &&
           stage_may_accumulate(config, &(struct logical){.n = (int)logical_ranks, .world = world});
}

struct stage_options {
    size_t reduce_bucket, allgather_bucket; // maximum number of elements per collective
    size_t prefetch_bucket;                 // stage3_prefetch_bucket_size; 0: no prefetch
    size_t persistence_threshold;           // stage3_param_persistence_threshold, in elements
    bool overlap;                           // overlap_comm: collectives run while the device computes
    enum dtype gradient_comm_dtype;
    // Offload to host memory. Both are false on the CPU.
    bool offload_optimizer, offload_param;
    double offload_ratio; // fraction of each span that the host updates
};
enum partition_kind stage_partition(const struct config *config);
enum gpt_recompute stage_recompute(const struct config *config);

// Elements [begin, end) of a unit that a rank works on. Offsets are in arrays of parameters, or in arrays
// of gradients, where frozen tensors take no space.
struct stage_span {
    int unit;
    size_t begin, end;
    size_t model_offset; // offset of `begin` in an array of all units
    size_t shard_offset; // offset of `begin` in an array of this rank's shard
};

// What this rank owns, in the order of units.
struct owned_spans {
    struct stage_span *spans; // (n)
    int n, *first;            // (n_units + 1) unit u has spans[first[u]] .. spans[first[u + 1] - 1]
};

struct stage {
    // Inputs. The pointers must outlive the stage.
    const struct config *config; // resolved: all defaults are filled in, for `world` ranks
    const struct params *params;
    enum dtype type;       // compute type of parameters in forward and backward. Gradients are fp32
    struct device *device; // the device that computes
    int rank, world;
    const struct partition *partition; // for `params` and `world`; NULL: stage_init makes own_partition
    // Set by stage_init.
    struct stage_options options;
    struct logical logical; // the logical ranks of the run, and which of them this rank computes
    struct partition own_partition;
    struct owned_spans owned;         // this rank's spans of `partition`; offsets in arrays of parameters
    struct owned_spans owned_trained; // its spans of partition_trained; offsets in arrays of gradients
    struct trace traces[N_TRACES];    // traces of the model's passes: the order in which they use units
    // Set by model_states_bind.
    struct comm *comm;
    struct device *host; // the CPU, which updates the spans that offload_optimizer places on the host
};

// Completes a stage whose inputs are set; all other members must be zero. Call stage_free also after a
// failure.
enum status stage_init(struct stage *stage) MUST_CHECK;
void stage_free(struct stage *stage);

// Returns the offset of a span: in an array of all units if `whole_model`, otherwise in an array of this
// rank's shard.
static inline size_t stage_span_offset(const struct stage_span *span, bool whole_model) {
    return whole_model ? span->model_offset : span->shard_offset;
}
// The number of elements in this rank's shard.
static inline size_t stage_shard_elements(const struct stage *stage) {
    return stage->partition->rank_elements[stage->rank];
}
// The number of elements in this rank's shard of gradients.
static inline size_t stage_trained_elements(const struct stage *stage) {
    return partition_trained(stage->partition)->rank_elements[stage->rank];
}
// Returns the offset of this rank's shard of `unit` in its whole shard; 0 if it owns nothing of the unit.
//   owned   stage->owned for an offset in parameters, stage->owned_trained for one in gradients
static inline size_t stage_unit_shard(const struct owned_spans *owned, int unit) {
    const int first = owned->first[unit];
    return first < owned->first[unit + 1] ? owned->spans[first].shard_offset : 0;
}

#endif
