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
struct placement_span {
    struct stage_span span;
    bool on_host;
    size_t at; // of its first element among all of that place, in elements
};

// X(array, name in plans, the region's kind)
#define STATE_ARRAYS(X)                                                                                      \
    X(STATE_MASTER, "master", REGION_MASTER)                                                                 \
    X(STATE_M, "m", REGION_MOMENTS)                                                                          \
    X(STATE_V, "v", REGION_MOMENTS)                                                                          \
    X(STATE_M_SCALES, "m's scales", REGION_MOMENTS)                                                          \
    X(STATE_V_SCALES, "v's scales", REGION_MOMENTS)                                                          \
    X(STATE_PARAMS, "updated params", REGION_PARAMS) /* compute type: what the host's steps give */
#define STATE_ENUM(array, name, kind) array,
enum state_array { STATE_ARRAYS(STATE_ENUM) N_STATE_ARRAYS };
#undef STATE_ENUM

#define STATE_COPIES 2

struct placement_side {
    size_t elements;
    int regions[STATE_COPIES][N_STATE_ARRAYS]; // -1: not kept
    void *arrays[STATE_COPIES][N_STATE_ARRAYS];
};

struct placement {
    enum dtype type, moment_type; // of parameters, of m and v
    int n_kinds;                  // as checkpoint.h counts them: master, m, v
    struct placement_span *spans;
    int n_spans, *first_span; // (n_units + 1)
    struct placement_side device, host;
    int current;          // which of the host's copies holds
    bool double_buffered; // the host has two
};

// Plans the state of `spans` (in the order of units) and adds its regions. type: the compute type; where it
// is fp32 the device's master weights are the parameters themselves, kept elsewhere. Free with
// placement_free, also after a failure.
enum status placement_init(struct placement *placement, const struct config *config,
                           const struct stage_options *options, const struct params *params,
                           const struct stage_span *spans, int n_spans, enum dtype type,
                           struct device *device, struct region_table *table) MUST_CHECK;
void placement_bind(struct placement *placement, const struct region_table *table);
void placement_free(struct placement *placement);

// A part's elements [offset, offset + n), all with or all without weight decay.
struct decay_span {
    size_t offset, n;
    bool decay;
};
// The next stretch after `last` (a zeroed one for the first), of n 0 when there is none. Padding between
// tensors is zero and stays so.
struct decay_span placement_next_decay_span(const struct params *params, const struct placement_span *placed,
                                            const struct decay_span *last);

// What an array holds for the part's element `offset` (a multiple of MOMENT_BLOCK for scales); NULL where the
// array is not kept. copy: placement->current, or the other.
void *placement_array_at(const struct placement *placement, const struct placement_span *placed,
                         enum state_array array, size_t offset, int copy);
// What the host's steps write parameters to: of the copy whose parameters are in use, or one for both.
void *placement_params_at(const struct placement *placement, const struct placement_span *placed,
                          size_t offset, int copy);
// With offload_param: the shard's parameters, of the copy that holds.
void *placement_host_params(const struct placement *placement);

#endif
