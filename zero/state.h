// The model states of one rank: parameters, gradients, master weights and moments, each whole or sharded as
// the ZeRO stage has it, and the three hooks through which the model reaches them.
#ifndef ZERO_ZERO_STATE_H
#define ZERO_ZERO_STATE_H

#include "base/region.h"
#include "kernels/device.h"
#include "model/gpt.h"
#include "zero/checkpoint.h"
#include "zero/gradients.h"
#include "zero/parameters.h"

struct state {
    const struct params *params;
    struct device *device;
    enum dtype type; // compute type
    struct stage_options options;
    int rank, world;
    int n_kinds; // as checkpoint.h counts them: master, m, v
    struct partition partition;
    struct stage_span *owned; // what this rank owns
    int n_owned;
    struct stage_span *updated; // what its optimizer updates: in stage 0 everything, else what it owns
    int n_updated;
    struct parameters parameters;
    struct gradients gradients;
    struct comm *comm; // from state_bind
    int kind_regions[N_CHECKPOINT_KINDS];
    float *kinds[N_CHECKPOINT_KINDS]; // master is the parameters themselves where the compute type is fp32
    float *bounce;                    // host, CHECKPOINT_CHUNK elements: between device and files
    int bounce_region;
    struct unit_hooks hooks;
};

// Plans the states of `rank` among `world`: adds their regions to the table. Touches no memory and no other
// rank. Free with state_free, also after a failure.
enum status state_init(struct state *state, const struct params *params, const struct config *config,
                       enum dtype type, int rank, int world, struct device *device,
                       struct region_table *table) MUST_CHECK;
// Finds the regions once the table is bound. From here on the state communicates.
void state_bind(struct state *state, const struct region_table *table, struct comm *comm);
void state_free(struct state *state);

// The fp32 values of a span (one of `updated`, or of `owned`) in one kind of state.
float *state_at(const struct state *state, int kind, const struct stage_span *span);

// Reads the master weights that this rank keeps, and with all_kinds the moments too, from where the source
// gives them (zeros for the moments otherwise), rounds them to the compute type, and lets every rank have the
// parameters that its stage keeps whole.
enum status state_load(struct state *state, struct stream *stream, const struct checkpoint_source *source,
                       bool all_kinds) MUST_CHECK;
// Where a checkpoint gets its numbers: those that this rank owns. `context` must outlive the source.
struct state_reader {
    struct state *state;
    struct stream *stream;
};
struct checkpoint_source state_source(struct state_reader *reader);

#endif
