// The parameters of a ZeRO stage, in the compute type: where forward and backward find a unit's parameters,
// and how an update reaches every rank.
//
// - Stage 0: every rank has all parameters and updates all of them.
// - Stages 1 and 2: every rank has all parameters. After the update, all-gathers send the owners' spans
//   to all ranks.
// - Stage 3: every rank has its shard. A fetch all-gathers a unit into a slot just before the unit is used,
//   and the slot is freed after the use. With overlap_comm, and unless stage3_prefetch_bucket_size is 0,
//   the next unit is fetched into another slot while this one is used. The recorded traces determine the
//   slots and the next fetch (zero/stages/gathers.h).
//   Persistent tensors are those with fewer elements than stage3_param_persistence_threshold (as in
//   DeepSpeed). Every rank keeps them whole. They are gathered once per step into an array of their own, and
//   used there. A slot has space for all tensors of its unit, also the persistent ones, but does not hold
//   those.
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
    bool persists;                 // all tensors of the unit are persistent: nothing to gather
    int uses;                      // number of times that a training pass gathers the unit
    struct buckets own_buckets;    // the all-gathers of the unit's tensors that are not persistent
    const struct buckets *buckets; // own_buckets, or those of an earlier unit that is divided in the same way
};

// Memory for one fetch.
struct gather_slot {
    int region;
    void *data;
    void **tensors;      // (n_params) address of each tensor while its unit is in this slot
    int fetch;           // the unit in the slot; NO_FETCH: the slot is free
    comm_work work;      // handle of its last all-gather
    struct event loaded; // offload_param: this rank's spans have been copied from the host
};

struct parameters {
    const struct stage *stage;
    struct offload *offload;
    int stored_region, persistent_region;
    // Stages 0 to 2: all units, one after another. Stage 3: this rank's shard, in host memory with
    // offload_param.
    void *stored;
    void *persistent;          // stage 3: the persistent tensors
    size_t *persistent_offset; // (n_params) offset of each tensor in `persistent`, or NOT_PERSISTENT
    struct fetch *fetches;     // stage 3: (n_units) how each unit is gathered
    struct gather_pass passes[N_TRACES]; // stage 3: for each kind of pass, the gathers at each event
    struct gather_pass *pass;            // the element of `passes` for the current pass
    struct gather_slot slots[GATHER_SLOTS_MOST];
    int n_slots;
    struct buckets update_buckets; // the all-gathers after an update
    // First (n_params) the address of each tensor in `stored` (stages 0 to 2) or `persistent` (stage 3),
    // NULL if it is in neither. Then the `tensors` of each slot.
    void **tensors;
    uint64_t n_fetches, n_ahead; // number of fetches so far; number of prefetched ones among them
};
#define NOT_PERSISTENT SIZE_MAX

// Adds regions to `table`. Call parameters_free also after a failure.
enum status parameters_init(struct parameters *parameters, const struct stage *stage, struct offload *offload,
                            struct region_table *table) MUST_CHECK;
// Builds the lists of buckets. Needs only parameters_init: no memory for parameters, no other ranks.
// parameters_bind does this too.
void parameters_build_buckets(struct parameters *parameters);
enum status parameters_bind(struct parameters *parameters, const struct region_table *table) MUST_CHECK;
void parameters_free(struct parameters *parameters);

// Returns the address in `stored` of one of this rank's spans.
void *parameters_at(const struct parameters *parameters, const struct stage_span *span);

// Begins a pass of this kind.
void parameters_begin(struct parameters *parameters, enum trace_kind kind);
// Acquires a unit. In stage 3, gathers it first unless it is already here.
//   event   index of the event in the trace of the current pass
//   out     [out] the addresses of the unit's parameters, valid until its release
enum status parameters_acquire(struct parameters *parameters, struct stream *stream, int event, int unit,
                               void *const **out) MUST_CHECK;
// Releases the unit of an event. In stage 3, frees its slot.
//   event   as for parameters_acquire
enum status parameters_release(struct parameters *parameters, struct stream *stream, int event) MUST_CHECK;
// Adds to `volume` what this rank sends in all-gathers per step of n_micro_batches. Needs only
// parameters_init.
void parameters_volume(const struct parameters *parameters, int64_t n_micro_batches,
                       struct comm_volume *volume);
// Call it on every rank after the rank has updated its spans. All-gathers the parameters that ranks keep
// whole, except frozen tensors. Later work on `stream` sees the results.
enum status parameters_gather_updated(struct parameters *parameters, struct stream *stream) MUST_CHECK;
// Like parameters_gather_updated, but includes frozen tensors. Call it on every rank after the rank has
// loaded its spans.
enum status parameters_gather_loaded(struct parameters *parameters, struct stream *stream) MUST_CHECK;

#endif
