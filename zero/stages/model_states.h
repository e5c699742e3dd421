// The model states of one rank: parameters, gradients, master weights and moments, each whole or sharded as
// the ZeRO stage has it, and the three hooks through which the model reaches them.
#ifndef ZERO_ZERO_STAGES_MODEL_STATES_H
#define ZERO_ZERO_STAGES_MODEL_STATES_H

#include "base/region.h"
#include "kernels/device.h"
#include "model/gpt.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/offload/placement.h"
#include "zero/partition/norm.h"
#include "zero/partition/second_moments.h"
#include "zero/stages/gradients.h"
#include "zero/stages/parameters.h"

struct model_states {
    const struct params *params;
    struct device *device, *host; // host, from model_states_bind: what updates the parts on the host
    enum dtype type;              // compute type
    struct stage_options options;
    int rank, world;
    struct partition partition;
    bool partition_is_borrowed;
    struct stage_spans owned;   // what this rank owns
    struct placement placement; // what its optimizer updates: in stage 0 everything, else what it owns
    struct parameters parameters;
    struct gradients gradients;
    struct offload offload;
    struct norm norm;
    struct second_moments second_moments; // Adafactor's
    struct comm *comm;                    // from model_states_bind
    int bounce_region, narrow_region, scales_region;
    float *bounce; // host, CHECKPOINT_CHUNK elements: between where state is kept and files
    void *narrow;  // moments of a chunk as they are kept, where that is not fp32
    float *scales; // int8: theirs
    struct unit_hooks hooks;
};

// Plans the states of `rank` among `world`: adds their regions to the table. Touches no memory and no other
// rank. partition: of these params and ranks, to outlive the state, for who plans several ranks; NULL: it
// makes its own. Free with model_states_free, also after a failure.
enum status model_states_init(struct model_states *state, const struct params *params,
                              const struct config *config, enum dtype type, int rank, int world,
                              const struct partition *partition, struct device *device,
                              struct region_table *table) MUST_CHECK;
// Finds the regions once the table is bound. From here on the state communicates. host: a device whose memory
// is the host's, for the parts of the optimizer that are there.
enum status model_states_bind(struct model_states *state, const struct region_table *table, struct comm *comm,
                              struct device *host) MUST_CHECK;
void model_states_free(struct model_states *state);

// What an optimizer's step reads and writes of a placed, from its element `offset` on: on the host in that
// copy (placement->current or the other), on the device in its only one.
struct optimizer_state model_states_optimizer_at(const struct model_states *state,
                                                 const struct placement_span *placed, size_t offset,
                                                 int copy);
// A part's gradients, summed over micro-batches and ranks, where the part is updated.
const float *model_states_gradients_at(const struct model_states *state, const struct placement_span *placed);
// Where a part's parameters of the compute type stand on the device; NULL where they stay on the host.
void *model_states_params_at(const struct model_states *state, const struct placement_span *placed,
                             size_t offset);

// Reads the master weights that this rank keeps, and with all_kinds the moments too, from where the source
// gives them (otherwise they stay the zeros of new memory), rounds them to the compute type, and lets every
// rank have the parameters that its stage keeps whole.
enum status model_states_load(struct model_states *state, struct stream *stream,
                              const struct checkpoint_source *source, bool all_kinds) MUST_CHECK;
// Where a checkpoint gets its numbers: those that this rank owns. `context` must outlive the source.
struct state_reader {
    struct model_states *state;
    struct stream *stream;
};
struct checkpoint_source model_states_source(struct state_reader *reader);

#endif
