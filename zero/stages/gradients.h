// The gradients' side of the ZeRO stages: where a unit's gradients are added up, how the ranks' shares come
// together, and where the sum ends up.
//
// Stages 0 and 1 keep all gradients; the last micro-batch's backward sends them to their owners as units
// become ready, summed in place. Stages 2 and 3 keep the embeddings' (added to at both ends of backward) and
// a pool of unit buffers; each unit, of a large block each group of its tensors (stage_by_group), is reduced
// into the owner's shard as soon as backward has it. Stage 0
// then gathers the sums, so that every rank can make the whole update. With an optimizer on the host
// zero/offload takes each unit from there.
#ifndef ZERO_ZERO_STAGES_GRADIENTS_H
#define ZERO_ZERO_STAGES_GRADIENTS_H

#include "base/region.h"
#include "model/gpt.h"
#include "zero/offload/offload.h"
#include "zero/partition/buckets.h"

#define GRADIENT_POOL 2

// Gradients that are reduced at once: of a unit or a group of its tensors.
struct reduction {
    int unit;
    struct param_range range;
    struct buckets own_buckets;    // into what the owners have of the unit
    const struct buckets *buckets; // those, or the same of an earlier unit
};

// A buffer for what one reduction sends.
struct gradient_buffer {
    int region;
    float *data;
    int reduction;  // whose gradients it holds, -1: none
    comm_work work; // of the reduction that still reads it
};

struct gradients {
    const struct params *params;
    const struct stage_options *options;
    struct device *device;
    struct offload *offload;
    struct comm *comm; // from gradients_bind
    int whole_region, shard_region;
    float *whole, *shard; // NULL where the stage has none
    struct gradient_buffer embeddings, pool[GRADIENT_POOL];
    int n_pool;
    struct buckets reduce_buckets; // stages 0 and 1: all units, the last first
    const struct partition *partition;
    const struct stage_spans *owned;
    struct reduction *reductions;  // stages 2 and 3
    int *first_reduction;          // (n_units + 1) the reductions of a unit
    struct buckets gather_buckets; // stage 0: the sums, to all
    comm_work latest;              // stages 2 and 3: of the reduction begun last
    int next_call;                 // of `together`
    size_t n_issued;               // elements of the calls before it
    bool beta_zero;                // this micro-batch's are the first in their buffers
    bool accumulating, reducing;   // the shard holds earlier micro-batches; this one's backward reduces
};

// Adds regions for the rank that owns shard_elements. `partition` and `offload` must outlive it.
enum status gradients_init(struct gradients *gradients, const struct params *params,
                           const struct stage_options *options, const struct partition *partition,
                           const struct stage_spans *owned, size_t shard_elements, struct offload *offload,
                           struct device *device, struct region_table *table) MUST_CHECK;
// Lays the transfers out, without memory or others: gradients_bind does.
enum status gradients_build_buckets(struct gradients *gradients) MUST_CHECK;
// Finds the regions and lays the transfers out.
enum status gradients_bind(struct gradients *gradients, const struct region_table *table,
                           struct comm *comm) MUST_CHECK;
void gradients_free(struct gradients *gradients);

// Before micro-batch k of n of a step.
enum status gradients_begin(struct gradients *gradients, struct stream *stream, int64_t k,
                            int64_t n) MUST_CHECK;
// Where a unit's gradients are to be added: view->grads (NULL where that is asked for by group) and
// view->beta_zero.
enum status gradients_acquire(struct gradients *gradients, struct stream *stream, int unit,
                              struct unit_view *view) MUST_CHECK;
enum status gradients_ready(struct gradients *gradients, struct stream *stream, int unit) MUST_CHECK;
// The same of a group, within its unit's; where units are reduced whole they do nothing and leave the view.
enum status gradients_acquire_group(struct gradients *gradients, struct stream *stream, int unit,
                                    enum block_group group, struct unit_view *view) MUST_CHECK;
enum status gradients_ready_group(struct gradients *gradients, struct stream *stream, int unit,
                                  enum block_group group) MUST_CHECK;
// After the last micro-batch: the sums are where gradients_at finds them.
enum status gradients_finish(struct gradients *gradients, struct stream *stream) MUST_CHECK;
// Where sums stand after gradients_finish, on the device, unless zero/offload has taken them from there:
// those of this rank's spans, and in stage 0 of all.
struct offload_source gradients_source(const struct gradients *gradients);
float *gradients_at(const struct gradients *gradients, const struct stage_span *span);

#endif
