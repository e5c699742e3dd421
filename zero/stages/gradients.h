// The gradients of a ZeRO stage: the buffer to which backward adds a unit's gradients, when they are reduced,
// and where the sums are stored.
//
//   stages 0 and 1  Every rank has a buffer for all gradients. During the backward of the last micro-batch,
//                   each bucket is reduce-scattered in place as soon as its units are ready. Stage 0 then
//                   all-gathers the sums, because every rank does the whole update.
//                   (With reduce_every_micro_batch: after each micro-batch, and into a shard.)
//   stages 2 and 3  Backward uses a pool of buffers, each for one unit. Each buffer is reduce-scattered into
//   the owners'
//                   shards as soon as it is ready, in every micro-batch. A unit to which backward adds
//                   several times has its own buffer. With tied embeddings that is their unit: backward adds
//                   to it at its beginning (lm_head) and at its end.
//
// With offload_optimizer, zero/offload/offload.h copies the sums of the host's spans from these places.
#ifndef ZERO_ZERO_STAGES_GRADIENTS_H
#define ZERO_ZERO_STAGES_GRADIENTS_H

#include "zero/offload/offload.h"
#include "zero/partition/buckets.h"

#define GRADIENT_POOL 2

// Stages 2 and 3: how a unit's gradients are reduced.
struct reduction {
    struct gradient_buffer *own;   // buffer of this unit only; NULL: it uses the pool
    struct buckets own_buckets;    // from the buffer to the owners' unit shards
    const struct buckets *buckets; // own_buckets, or those of an earlier unit that is divided in the same way
};

// A buffer for the gradients of one unit.
struct gradient_buffer {
    int region;
    float *data;
    void **tensors; // (n_params) addresses of the gradients whose unit is here
    int unit;       // the unit whose gradients it holds; -1: none
    int padded_for; // the unit whose padding between tensors holds zeros; -1: none
    comm_work work; // handle of the collective that still reads it
};

struct gradients {
    const struct stage *stage;
    struct offload *offload;
    int whole_region, shard_region;
    float *whole, *shard; // gradients of all units; of this rank's shard. NULL if the stage has none
    void **tensors; // (n_params) addresses of tensors' gradients in `whole`, or in each buffer; NULL: frozen
    struct gradient_buffer *buffers; // stages 2 and 3: (n_buffers) the pool, then the units' own
    int n_pool, n_buffers;
    int n_taken;                   // buffers taken from the pool in this micro-batch
    struct buckets reduce_buckets; // stages 0 and 1: all units, last unit first
    struct reduction *reductions;  // stages 2 and 3: (n_units)
    struct buckets gather_buckets; // stage 0: gathers the sums on every rank
    int next_call;                 // stages 0 and 1: index of the next call of reduce_buckets to issue
    bool beta_zero;                // first micro-batch in these buffers: matrix products write with beta = 0
    bool accumulating;             // the shard holds earlier micro-batches: reductions add to it
    bool reducing;                 // this micro-batch's gradients will be reduced
};

// Adds regions to `table`. Call gradients_free also after a failure.
enum status gradients_init(struct gradients *gradients, const struct stage *stage, struct offload *offload,
                           struct region_table *table) MUST_CHECK;
// Builds the lists of buckets, without memory for gradients and without other ranks. Also done by
// gradients_bind.
void gradients_build_buckets(struct gradients *gradients);
void gradients_bind(struct gradients *gradients, const struct region_table *table);
void gradients_free(struct gradients *gradients);

// Begins micro-batch k of n of a step.
enum status gradients_begin(struct gradients *gradients, struct stream *stream, int64_t k,
                            int64_t n) MUST_CHECK;
// Sets view->grads to the buffer for a unit's gradients, and view->beta_zero.
enum status gradients_acquire(struct gradients *gradients, struct stream *stream, int unit,
                              struct unit_view *view) MUST_CHECK;
// Called when a unit's gradients are complete: reduces them, or the buckets that are now full.
enum status gradients_ready(struct gradients *gradients, struct stream *stream, int unit) MUST_CHECK;
// Call it after the last micro-batch. Waits for all reductions; then gradients_at is valid.
enum status gradients_finish(struct gradients *gradients, struct stream *stream) MUST_CHECK;
// Adds what this rank sends per step of n_micro_batches to `volume`: in reduce-scatters, and in stage 0's
// all-gather. Needs only gradients_init.
void gradients_volume(const struct gradients *gradients, int64_t n_micro_batches, struct comm_volume *volume);

// The device address of the sums after gradients_finish, for this rank's spans (in stage 0 for all). Not for
// spans that zero/offload has copied away.
struct offload_source gradients_source(const struct gradients *gradients);
float *gradients_at(const struct gradients *gradients, const struct stage_span *span);

#endif
