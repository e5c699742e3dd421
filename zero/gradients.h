// The gradients' side of the ZeRO stages: where a unit's gradients are added up, how the ranks' shares come
// together, and where the sum ends up.
//
// Stages 0 and 1 keep all gradients; the last micro-batch's backward sends them to their owners as units
// become ready, summed in place. Stages 2 and 3 keep the embeddings' (added to at both ends of backward) and
// a pool of unit buffers; each unit is reduced into the owner's shard as soon as backward has it. Stage 0
// then gathers the sums, so that every rank can make the whole update. With an optimizer on the host
// zero/offload takes each unit from there.
#ifndef ZERO_ZERO_GRADIENTS_H
#define ZERO_ZERO_GRADIENTS_H

#include "base/region.h"
#include "model/gpt.h"
#include "zero/offload.h"
#include "zero/transfers.h"

#define GRADIENT_POOL 2

// A buffer for one unit's gradients.
struct gradient_buffer {
    int region;
    float *data;
    int unit;           // whose gradients it holds, -1: none
    comm_ticket ticket; // of the reduction that still reads it
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
    struct transfers together;   // stages 0 and 1: all units, the last first
    struct transfers *of_unit;   // stages 2 and 3: (n_units)
    struct transfers spread;     // stage 0: the sums, to all
    int next_call;               // of `together`
    size_t sent;                 // elements of the calls before it
    bool fresh;                  // this micro-batch's are the first in their buffers
    bool accumulating, reducing; // the shard holds earlier micro-batches; this one's backward reduces
};

// Adds regions for the rank that owns shard_elements, and lays the transfers out. `offload` must outlive it.
enum status gradients_init(struct gradients *gradients, const struct params *params,
                           const struct stage_options *options, const struct partition *partition,
                           size_t shard_elements, struct offload *offload, struct device *device,
                           struct region_table *table) MUST_CHECK;
void gradients_bind(struct gradients *gradients, const struct region_table *table, struct comm *comm);
void gradients_free(struct gradients *gradients);

// Before micro-batch k of n of a step.
enum status gradients_begin(struct gradients *gradients, struct stream *stream, int64_t k,
                            int64_t n) MUST_CHECK;
// Where a unit's gradients are to be added: view->grads and view->fresh.
enum status gradients_acquire(struct gradients *gradients, struct stream *stream, int unit,
                              struct unit_view *view) MUST_CHECK;
enum status gradients_ready(struct gradients *gradients, struct stream *stream, int unit) MUST_CHECK;
// After the last micro-batch: the sums are where gradients_at finds them.
enum status gradients_finish(struct gradients *gradients, struct stream *stream) MUST_CHECK;
// Where sums stand after gradients_finish, on the device, unless zero/offload has taken them from there:
// those of this rank's spans, and in stage 0 of all.
struct offload_source gradients_source(const struct gradients *gradients);
float *gradients_at(const struct gradients *gradients, const struct stage_span *span);

#endif
