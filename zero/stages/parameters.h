// The parameters' side of the ZeRO stages: where forward and backward find a unit's parameters in the compute
// type, and how an update reaches every rank.
//
// Stages 0 to 2 keep all of them on every rank; after the update stages 1 and 2 gather what each owner
// changed. Stage 3 keeps a shard: a unit (of a large block, one group of its tensors: stage_by_group) is
// gathered into one of two slots just before it is used and dropped after, the next one fetched meanwhile,
// whatever its size (not with stage3_prefetch_bucket_size 0). Tensors of fewer elements than the persistence
// threshold stay whole and are gathered once a step (DeepSpeed's stage3_param_persistence_threshold). With
// offload_param the shard is on the host (ZeRO-Infinity, arXiv 2104.07857): this rank's share of a unit is
// copied into the slot first, on offload's stream, and gathered there.
#ifndef ZERO_ZERO_STAGES_PARAMETERS_H
#define ZERO_ZERO_STAGES_PARAMETERS_H

#include "base/region.h"
#include "kernels/device.h"
#include "zero/offload/offload.h"
#include "zero/partition/buckets.h"

#define N_SLOTS                                                                                              \
    3 // two that units take in turn, and a small one for the final norm, which the head uses with
      // the embeddings

// What stage 3 gathers at once and drops at once: a unit or a group of its tensors.
struct fetch {
    int unit;
    struct param_range range;
    bool persists;                 // all its tensors do: they stand there as in the unit
    struct buckets own_buckets;    // of those that do not, from what the owners have of the unit
    const struct buckets *buckets; // those, or the same of an earlier unit
};

// Room for one fetch.
struct slot {
    int region;
    size_t elements;
    void *data;
    int fetch; // -1: free
    bool in_use;
    comm_work work;      // of its gathering
    struct event loaded; // offload_param: this rank's share is there
};

struct parameters {
    const struct params *params;
    const struct stage_options *options;
    struct device *device;
    enum dtype type;
    struct offload *offload;
    struct comm *comm; // from parameters_bind
    int stored_region, persistent_region;
    void *stored;     // all units one after another, or (stage 3) the shard; with offload_param the host's
    void *persistent; // stage 3
    size_t *persistent_offset; // (n_params) elements from there; NOT_PERSISTENT
    const struct partition *partition;
    const struct stage_spans *owned;
    struct fetch *fetches; // stage 3
    int *first_fetch;      // (n_units + 1) the fetches of a unit
    struct slot slots[N_SLOTS];
    struct buckets update_buckets; // after an update: what all ranks need
    int ahead;                     // the fetch to make when there is room, -1: none
    uint64_t n_fetches, n_ahead;   // made so far, and how many of them before they were asked for
};
#define NOT_PERSISTENT SIZE_MAX

// shard_elements: of this rank. Adds regions. `partition` and `offload` must outlive it.
enum status parameters_init(struct parameters *parameters, const struct params *params,
                            const struct stage_options *options, const struct partition *partition,
                            const struct stage_spans *owned, size_t shard_elements, enum dtype type,
                            struct offload *offload, struct device *device,
                            struct region_table *table) MUST_CHECK;
// Lays the transfers out, without memory or others: parameters_bind does.
enum status parameters_build_buckets(struct parameters *parameters) MUST_CHECK;
// Finds the regions and lays the transfers out.
enum status parameters_bind(struct parameters *parameters, const struct region_table *table,
                            struct comm *comm) MUST_CHECK;
// With offload_param: where the host has the shard from now on.
void parameters_set_shard(struct parameters *parameters, void *shard);
void parameters_free(struct parameters *parameters);

static inline bool parameters_has_all(const struct parameters *parameters) {
    return parameters->options->stage < 3;
}
// A span of this rank's, in what is kept: on the device but for offload_param.
void *parameters_at(const struct parameters *parameters, const struct stage_span *span);

// A unit's parameters, valid until its release; NULL where they are lent by group. next: as unit_hooks has
// it.
enum status parameters_acquire(struct parameters *parameters, struct stream *stream, int unit,
                               struct gpt_next next, const void **out) MUST_CHECK;
enum status parameters_release(struct parameters *parameters, struct stream *stream, int unit) MUST_CHECK;
// A group's, within its unit's; where units are lent whole they do nothing and leave *out.
enum status parameters_acquire_group(struct parameters *parameters, struct stream *stream, int unit,
                                     enum block_group group, struct gpt_next next,
                                     const void **out) MUST_CHECK;
enum status parameters_release_group(struct parameters *parameters, struct stream *stream, int unit,
                                     enum block_group group) MUST_CHECK;
// Every rank has updated (or loaded) the spans that it owns: from here on all see them.
enum status parameters_gather_updated(struct parameters *parameters, struct stream *stream) MUST_CHECK;

#endif
