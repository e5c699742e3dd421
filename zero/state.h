// The model states of a run: parameters, gradients, master weights and moments, and the three hooks through
// which the model reaches them. This is stage 0 on one rank: everything whole, in one place.
#ifndef ZERO_ZERO_STATE_H
#define ZERO_ZERO_STATE_H

#include "base/region.h"
#include "configs/config.h"
#include "kernels/device.h"
#include "model/gpt.h"
#include "zero/checkpoint.h"

struct state {
    const struct params *params;
    struct device *device;
    enum dtype type; // compute type
    int n_kinds;     // as checkpoint.h counts them: master, m, v
    int params_region, grads_region;
    int kind_regions[N_CHECKPOINT_KINDS];
    void *compute, *grads;           // one span each, units one after the other
    void *kinds[N_CHECKPOINT_KINDS]; // master is `compute` itself where the compute type is fp32
    float *bounce;                   // host, CHECKPOINT_CHUNK elements: between device and files
    int bounce_region;
    struct unit_hooks hooks;
};

// Adds the regions to the table; state_bind finds them once it is bound.
enum status state_init(struct state *state, const struct params *params, const struct config *config,
                       enum dtype type, struct device *device, struct region_table *table) MUST_CHECK;
void state_bind(struct state *state, const struct region_table *table);

// Reads every unit's master weights, and with all_kinds the moments too, from where the source gives them
// (zeros for the moments otherwise), and rounds them to the compute type.
enum status state_load(struct state *state, struct stream *stream, const struct checkpoint_source *source,
                       bool all_kinds) MUST_CHECK;
// Where a checkpoint gets its numbers. `context` must outlive the source.
struct state_reader {
    struct state *state;
    struct stream *stream;
};
struct checkpoint_source state_source(struct state_reader *reader);

// Zeroes the gradients.
enum status state_clear_grads(struct state *state, struct stream *stream) MUST_CHECK;

#endif
