// The placement of optimizer states: whether the device or, with offload_optimizer, the host updates an
// element (ZeRO-Offload, arXiv 2101.06840). Master weights and moments are stored where they are used.
// offload_optimizer.ratio is the fraction of each span that the host updates (DeepSpeed's Twin-Flow).
#ifndef ZERO_ZERO_OFFLOAD_PLACEMENT_H
#define ZERO_ZERO_OFFLOAD_PLACEMENT_H

#include "zero/optimizer/rules/optimizer_groups.h"
#include "zero/partition/stage.h"

// Elements of a unit that are all updated on the same side, the device or the host. `begin` and `end` are
// multiples of PARAM_ALIGNMENT.
struct placement_span {
    struct stage_span span, grads; // the same elements, in arrays of parameters and of gradients
    bool on_host;
    // The span's tensors are not updated. Such spans have no place in the arrays, except in the array in
    // which offload_param keeps all of this rank's parameters.
    bool is_frozen;
    int n_moments;       // number of moments that each of its elements has
    size_t at;           // offset of span.begin in the arrays of its side (host or device), in elements
    size_t moment_at[2]; // offset of span.begin in the arrays of m [0] and v [1], in elements
};

// X(array, name in plans, kind of region)
#define STATE_ARRAYS(X)                                                                                      \
    X(STATE_MASTER, "master", REGION_MASTER)                                                                 \
    X(STATE_M, "m", REGION_MOMENTS)                                                                          \
    X(STATE_V, "v", REGION_MOMENTS)                                                                          \
    X(STATE_M_SCALES, "m's scales", REGION_MOMENTS)                                                          \
    X(STATE_V_SCALES, "v's scales", REGION_MOMENTS)                                                          \
    X(STATE_AVERAGE, "average", REGION_AVERAGE) /* train.ema */                                              \
    X(STATE_PARAMS, "updated params",                                                                        \
      REGION_PARAMS) /* offload_param: this rank's parameters in the compute type, unless that is fp32 */
#define STATE_ENUM(array, name, kind) array,
enum state_array { STATE_ARRAYS(STATE_ENUM) N_STATE_ARRAYS };
#undef STATE_ENUM

// The arrays of one side: the device or the host.
struct placement_side {
    size_t elements;             // number of elements that are not frozen
    size_t with_moment[2];       // number of elements with m [0] and with v [1]
    int regions[N_STATE_ARRAYS]; // index in the region table of each array; -1: not stored
    void *arrays[N_STATE_ARRAYS];
};

struct placement {
    const struct stage *stage;
    const struct optimizer_groups *groups;
    enum dtype moment_type; // dtype of m and v
    int n_kinds;            // checkpoint kinds in use: 1: master; 2: also m; 3: also v
    bool has_average;       // the average of the weights is stored too (train.ema)
    struct placement_span *spans;
    int n_spans, *first_span; // (n_units + 1) unit u has spans first_span[u] .. first_span[u + 1] - 1
    struct placement_side device, host;
};

// Lists the spans whose states this rank keeps: all in stage 0, otherwise those that it owns. Frozen spans
// are listed too, without states. Adds the states' regions to `table`. With fp32, the device's master
// weights are the parameters themselves and take no region. Call placement_free after a failure too.
enum status placement_init(struct placement *placement, const struct stage *stage,
                           const struct optimizer_groups *groups, struct region_table *table) MUST_CHECK;
void placement_bind(struct placement *placement, const struct region_table *table);
void placement_free(struct placement *placement);

// Elements [offset, offset + n) of a placement span, all in one optimizer group.
struct group_span {
    size_t offset, n;
    int group;
};
// Returns the group span after `last` (zeroed for the first), with n == 0 at the end. It may include padding
// between tensors, which is zero and stays zero.
struct group_span placement_next_group_span(const struct placement *placement,
                                            const struct placement_span *placed,
                                            const struct group_span *last);

// Returns the address of element `offset` of a placement span in an array; NULL if the array is not stored.
// For scales, `offset` must be a multiple of MOMENT_BLOCK.
void *placement_array_at(const struct placement *placement, const struct placement_span *placed,
                         enum state_array array, size_t offset);
// With offload_param: returns the host array with the parameters of this rank's shard.
void *placement_host_params(const struct placement *placement);

#endif
