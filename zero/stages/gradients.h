// The gradients of a ZeRO stage: the buffer to which backward adds a unit's gradients, when they are reduced,
// and where the sums are stored.
//
//   stages 0 and 1  Every rank has a buffer for all gradients. During the backward of the last micro-batch,
//                   each bucket is reduce-scattered in place as soon as its units are ready. Stage 0 then
//                   all-gathers the sums, because every rank does the whole update.
//                   With reduce_every_micro_batch, buckets are reduce-scattered in each micro-batch, into a
//                   separate shard instead of in place. So they are once per logical rank, if a rank computes
//                   several.
//   stages 2 and 3  Backward uses a pool of buffers, each for one unit. In every micro-batch, each buffer is
//                   reduce-scattered into the owners' shards as soon as it is ready. A unit to which backward
//                   adds several times has its own buffer. With tied embeddings this is the embeddings'
//                   unit: backward adds to it first for the lm_head, and last for the embeddings.
//
// A rank that computes several logical ranks (zero/partition/logical.h) reduces the gradients of each into
// one of several partial sums, which are sharded like the shard, and adds these up in the order of the tree
// over all logical ranks.
//
// With offload_optimizer, zero/offload/offload.h copies the sums to host memory, for the spans that the
// host updates.
#ifndef ZERO_ZERO_STAGES_GRADIENTS_H
#define ZERO_ZERO_STAGES_GRADIENTS_H

#include "zero/offload/offload.h"
#include "zero/partition/buckets.h"
#include "zero/partition/partial_sums.h"

#define GRADIENT_POOL 2 // number of buffers in the pool with overlap_comm; without it there is one

// Stages 2 and 3: how a unit's gradients are reduced.
struct reduction {
    struct gradient_buffer *own;   // buffer of this unit only; NULL: the unit uses the pool
    struct buckets own_buckets;    // reduce-scatters from the unit's buffer to the owners' unit shards
    const struct buckets *buckets; // own_buckets, or those of an earlier unit that is divided in the same way
};

// A buffer for the gradients of one unit.
struct gradient_buffer {
    int region;
    float *data;
    // (n_params) Address of each tensor's gradient while the buffer holds its unit. NULL: the tensor is
    // frozen.
    void **tensors;
    int unit;       // the unit whose gradients the buffer holds; -1: none
    int padded_for; // the unit for whose layout the padding between tensors was zeroed; -1: not zeroed yet
    comm_work work; // handle of the last collective that reads the buffer
};

struct gradients {
    const struct stage *stage;
    struct offload *offload;
    int whole_region;
    float *whole; // gradients of all units; NULL in stages 2 and 3
    // The sums that this rank owns, if stage_reduces_to_shard; else zero. With offload_uses_staging, only
    // those of the device's spans.
    struct partial_sums sums;
    // Addresses of the tensors' gradients; NULL: frozen. Stages 0 and 1: (n_params) in `whole`. Stages 2
    // and 3: (n_buffers, n_params) in each buffer.
    void **tensors;
    // Stages 2 and 3: (n_buffers) first the n_pool buffers of the pool, then the units' own.
    struct gradient_buffer *buffers;
    int n_pool, n_buffers;
    int n_taken;                   // number of buffers taken from the pool in this micro-batch
    struct buckets reduce_buckets; // stages 0 and 1: reduces all units, last unit first
    struct reduction *reductions;  // stages 2 and 3: (n_units) how each unit's gradients are reduced
    struct buckets gather_buckets; // stage 0: gathers the sums on every rank
    int next_call;                 // stages 0 and 1: index of the next call of reduce_buckets to issue
    bool beta_zero; // this micro-batch's gradients overwrite the buffers (beta = 0); false: add to them
    struct logical_micro_batch at;       // this micro-batch
    struct logical_micro_batch unfolded; // the last one after which partial_sums_fold is due; zero: none
};

// Adds regions to `table`. Call gradients_free also after a failure.
enum status gradients_init(struct gradients *gradients, const struct stage *stage, struct offload *offload,
                           struct region_table *table) MUST_CHECK;
// Builds the lists of buckets. Needs only gradients_init: no memory for gradients, no other ranks.
// gradients_bind does this too.
void gradients_build_buckets(struct gradients *gradients);
void gradients_bind(struct gradients *gradients, const struct region_table *table);
void gradients_free(struct gradients *gradients);

// Begins this rank's micro-batch i (from 0) of a step of n micro-batches.
enum status gradients_begin(struct gradients *gradients, struct stream *stream, int64_t i,
                            int64_t n) MUST_CHECK;
// Sets view->grads to the buffer for a unit's gradients, and view->beta_zero.
enum status gradients_acquire(struct gradients *gradients, struct stream *stream, int unit,
                              struct unit_view *view) MUST_CHECK;
// Call it when a unit's gradients are complete in this micro-batch. Reduces them (stages 2 and 3), or the
// buckets that are now full (stages 0 and 1). No-op if this micro-batch does not reduce.
enum status gradients_ready(struct gradients *gradients, struct stream *stream, int unit) MUST_CHECK;
// Call it after the last micro-batch. Stage 0 all-gathers the sums. Later work on `stream` sees the results
// of all collectives; then gradients_at is valid.
enum status gradients_finish(struct gradients *gradients, struct stream *stream) MUST_CHECK;
// Adds to `volume` what this rank sends per step of n_micro_batches in reduce-scatters and, in stage 0, in
// the all-gather. Needs only gradients_init.
void gradients_volume(const struct gradients *gradients, int64_t n_micro_batches, struct comm_volume *volume);

// Returns the device array that holds the sums after gradients_finish.
struct offload_source gradients_source(const struct gradients *gradients);
// Returns the address of a span's sums in the array of gradients_source. The span must be one of this rank's;
// in stage 0 it may be any span. Do not call it with offload_uses_staging: the array then holds only the
// device's spans, at other offsets.
float *gradients_at(const struct gradients *gradients, const struct stage_span *span);

#endif
