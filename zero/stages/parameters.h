// The parameters of a ZeRO stage, in the compute type: where forward and backward find a unit's parameters,
// and how an update reaches every rank.
//
// - Stage 0: every rank has all parameters and updates all of them.
// - Stages 1 and 2: every rank has all parameters. After the update, all-gathers send the owners' spans
//   to all ranks.
// - Stage 3: every rank has its shard. A fetch all-gathers a unit into a slot just before the unit is used.
//   Afterwards the slot is freed. Meanwhile the next fetch is prefetched into another slot (overlap_comm; not
//   with stage3_prefetch_bucket_size 0). The recorded traces determine the slots and the next fetch
//   (zero/stages/gathers.h). Persistent tensors, with fewer elements than stage3_param_persistence_threshold
//   (as in DeepSpeed), are whole on every rank. They are gathered once per step, and used in place; a slot
//   has a gap for them in the unit.
//
// With offload_param (ZeRO-Infinity, arXiv 2104.07857) the shard is in host memory. A fetch first copies this
// rank's spans into the slot, on the upload stream of zero/offload, and then gathers them there.
#ifndef ZERO_ZERO_STAGES_PARAMETERS_H
#define ZERO_ZERO_STAGES_PARAMETERS_H

#include "zero/offload/offload.h"
#include "zero/partition/buckets.h"
#include "zero/stages/gathers.h"

// Stage 3: how a unit is gathered.
struct fetch {
    bool persists;                 // all its tensors are persistent: nothing to gather
    int uses;                      // how often a training pass acquires it
    struct buckets own_buckets;    // for the other tensors, from the owners' unit shards
    const struct buckets *buckets; // own_buckets, or those of an earlier unit that is divided in the same way
};

// Memory for one fetch.
struct gather_slot {
    int region;
    void *data;
    void **tensors;      // (n_params) addresses of the tensors while their fetch is here
    int fetch;           // the unit in the slot; NO_FETCH: free
    comm_work work;      // handle of its last all-gather
    struct event loaded; // offload_param: this rank's spans were copied from the host
};

struct parameters {
    const struct stage *stage;
    struct offload *offload;
    int stored_region, persistent_region;
    // All units, one after another; in stage 3 this rank's shard, with offload_param on the host.
    void *stored;
    void *persistent;          // stage 3: the persistent tensors
    size_t *persistent_offset; // (n_params) a tensor's offset there, in elements, or NOT_PERSISTENT
    struct fetch *fetches;     // stage 3: (n_units)
    struct gather_pass passes[N_TRACES], *pass; // stage 3: gathers at each event; `pass`: the current pass
    struct gather_slot slots[GATHER_SLOTS_MOST];
    int n_slots;
    struct buckets update_buckets; // gathers what every rank needs after an update
    void **tensors; // (n_params) addresses of tensors in `stored` (stages 0 to 2) or `persistent`; else NULL
    uint64_t n_fetches, n_ahead; // all-gathers so far; prefetched ones among them
};
#define NOT_PERSISTENT SIZE_MAX

// Adds regions to `table`. Call parameters_free also after a failure.
enum status parameters_init(struct parameters *parameters, const struct stage *stage, struct offload *offload,
                            struct region_table *table) MUST_CHECK;
// Builds the lists of buckets, without memory for parameters and without other ranks. Also done by
// parameters_bind.
void parameters_build_buckets(struct parameters *parameters);
enum status parameters_bind(struct parameters *parameters, const struct region_table *table) MUST_CHECK;
void parameters_free(struct parameters *parameters);

// The address in `stored` of one of this rank's spans.
void *parameters_at(const struct parameters *parameters, const struct stage_span *span);

// Begins a pass of this kind.
void parameters_begin(struct parameters *parameters, enum trace_kind kind);
// Acquires a unit at event `event` of the trace.
//   out   [out] the addresses of the unit's parameters, valid until its release
enum status parameters_acquire(struct parameters *parameters, struct stream *stream, int event, int unit,
                               void *const **out) MUST_CHECK;
enum status parameters_release(struct parameters *parameters, struct stream *stream, int event) MUST_CHECK;
// Adds what this rank sends per step of n_micro_batches in all-gathers to `volume`. Needs only
// parameters_init.
void parameters_volume(const struct parameters *parameters, int64_t n_micro_batches,
                       struct comm_volume *volume);
// Call when every rank has updated the spans that it owns. All-gathers what ranks keep whole, but for frozen
// tensors, and returns when it is complete.
enum status parameters_gather_updated(struct parameters *parameters, struct stream *stream) MUST_CHECK;
// The same with frozen tensors, when every rank has loaded its spans.
enum status parameters_gather_loaded(struct parameters *parameters, struct stream *stream) MUST_CHECK;

#endif
