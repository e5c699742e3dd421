// Where the optimizer's state of each element stands: master weights and moments of the spans that this rank
// updates, kept and updated by the device or, a part of each span, by the host (ZeRO-Offload, arXiv
// 2101.06840; the part is DeepSpeed's Twin-Flow `ratio`). Where the host steps before it may (`speculative`)
// it has two copies, steps from the one into the other, and a step counts when they change roles.
#ifndef ZERO_ZERO_OFFLOAD_PLACEMENT_H
#define ZERO_ZERO_OFFLOAD_PLACEMENT_H

#include "base/region.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "zero/partition/stage.h"

// A part of a span, all of it kept in one place. Begins and ends at multiples of PARAM_ALIGNMENT elements.
struct tier_part {
    struct stage_span span;
    bool on_host;
    size_t at; // of its first element among all of that place, in elements
};

// X(array, name in plans, the region's kind)
#define TIER_ARRAYS(X)                                                                                       \
    X(TIER_MASTER, "master", REGION_MASTER)                                                                  \
    X(TIER_M, "m", REGION_MOMENTS)                                                                           \
    X(TIER_V, "v", REGION_MOMENTS)                                                                           \
    X(TIER_M_SCALES, "m's scales", REGION_MOMENTS)                                                           \
    X(TIER_V_SCALES, "v's scales", REGION_MOMENTS)                                                           \
    X(TIER_PARAMS, "updated params", REGION_PARAMS) /* compute type: what the host's steps give */
#define TIER_ENUM(array, name, kind) array,
enum tier_array { TIER_ARRAYS(TIER_ENUM) N_TIER_ARRAYS };
#undef TIER_ENUM

#define TIER_COPIES 2

struct tier {
    size_t elements;
    int regions[TIER_COPIES][N_TIER_ARRAYS]; // -1: not kept
    void *arrays[TIER_COPIES][N_TIER_ARRAYS];
};

struct tiers {
    enum dtype type, moment_type; // of parameters, of m and v
    int n_kinds;                  // as checkpoint.h counts them: master, m, v
    struct tier_part *parts;
    int n_parts, *first_part; // (n_units + 1)
    struct tier device, host;
    int current; // which of the host's copies holds
    bool undoes; // the host has two
};

// Plans the state of `spans` (in the order of units) and adds its regions. type: the compute type; where it
// is fp32 the device's master weights are the parameters themselves, kept elsewhere. Free with tiers_free,
// also after a failure.
enum status tiers_init(struct tiers *tiers, const struct config *config, const struct stage_options *options,
                       const struct params *params, const struct stage_span *spans, int n_spans,
                       enum dtype type, struct device *device, struct region_table *table) MUST_CHECK;
void tiers_bind(struct tiers *tiers, const struct region_table *table);
void tiers_free(struct tiers *tiers);

// A part's elements [offset, offset + n), all with or all without weight decay.
struct tier_stretch {
    size_t offset, n;
    bool decay;
};
// The next stretch after `last` (a zeroed one for the first), of n 0 when there is none. Padding between
// tensors is zero and stays so.
struct tier_stretch tiers_next_stretch(const struct params *params, const struct tier_part *part,
                                       const struct tier_stretch *last);

// What an array holds for the part's element `offset` (a multiple of MOMENT_BLOCK for scales); NULL where the
// array is not kept. copy: tiers->current, or the other.
void *tiers_at(const struct tiers *tiers, const struct tier_part *part, enum tier_array array, size_t offset,
               int copy);
// What the host's steps write parameters to: of the copy whose parameters are in use, or one for both.
void *tiers_params_at(const struct tiers *tiers, const struct tier_part *part, size_t offset, int copy);
// With offload_param: the shard's parameters, of the copy that holds.
void *tiers_shard(const struct tiers *tiers);

#endif
