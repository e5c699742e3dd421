// The model states of one rank (parameters, gradients, optimizer states: ZeRO, arXiv 1910.02054,
// section 3.1), each whole or sharded according to the stage. The model reaches them through `hooks`:
//
//   params_acquire(unit)   before a unit is used: returns its parameters (zero/stages/parameters.h) and, in
//                          backward, the buffer for its gradients (zero/stages/gradients.h)
//   grads_ready(unit)      when its gradients are complete: reduces them
//   params_release(unit)   after the unit was used
//
// Each call is compared with the recorded trace of its pass (model/trace.h), in every stage.
//
// What each stage (zero/partition/stage.h) does with the model states:
//   stage   parameters                        gradients                          optimizer states
//   0       whole                             whole, all-reduced                 whole
//   1       whole, all-gather after update    whole, reduce-scatter              sharded
//   2       whole, all-gather after update    sharded, reduce-scatter per unit   sharded
//   3       sharded, all-gather before use    sharded, reduce-scatter per unit   sharded
//
// struct model_states has a member for each kind of state: `parameters`, `gradients`, and `placement` for the
// optimizer states, on the device or the host. Its member `offload` copies gradients to the host, and updated
// parameters back.
#ifndef ZERO_ZERO_STAGES_MODEL_STATES_H
#define ZERO_ZERO_STAGES_MODEL_STATES_H

#include "zero/checkpoint/checkpoint.h"
#include "zero/offload/placement.h"
#include "zero/optimizer/rules/norm.h"
#include "zero/stages/gradients.h"
#include "zero/stages/parameters.h"

struct model_states {
    struct stage stage;
    struct optimizer_groups groups; // how each tensor is updated
    // The spans whose optimizer states this rank keeps: all spans in stage 0, otherwise those that it owns.
    // Frozen spans are listed too, but have no optimizer states.
    struct placement placement;
    struct parameters parameters;
    struct gradients gradients;
    struct offload offload;
    struct norm norm;
    struct trace_cursor cursor; // position in the trace of the current pass
    // Host memory for one chunk of CHECKPOINT_CHUNK elements that is copied between states and files.
    int values_region, codes_region, scales_region;
    float *values; // the chunk as in files: fp32
    void *codes;   // the chunk as the states store it: in 16 bits or int8; NULL if they are all fp32
    float *scales; // with int8 moments: the scales of `codes`
    struct unit_hooks hooks;
    bool shows_average; // the parameters are now the weights for evaluation (zero/optimizer/averaging.h)
};

// Plans the states of a stage and adds their regions to `table`. Allocates no state and does not communicate.
//   given   a stage whose inputs are set, as for stage_init
// Call model_states_free also after a failure. STATUS_INVALID: see optimizer_groups_init.
enum status model_states_init(struct model_states *state, const struct stage *given,
                              struct region_table *table) MUST_CHECK;
// Binds the regions once the table is allocated. Later calls communicate through `comm`.
//   host   the CPU's device, which updates the spans that are placed on the host
enum status model_states_bind(struct model_states *state, const struct region_table *table, struct comm *comm,
                              struct device *host) MUST_CHECK;
void model_states_free(struct model_states *state);

// ---- addresses, for optimizers

// Returns the placement span that holds an element of a unit; NULL if this rank's placement
// does not list the element. Frozen spans are listed.
const struct placement_span *model_states_span_at(const struct model_states *state, int unit, size_t element);

// Returns the arrays that an optimizer step reads and writes for a span, from its element `offset` on.
struct optimizer_state model_states_optimizer_at(const struct model_states *state,
                                                 const struct placement_span *placed, size_t offset);
// Returns the address of the span's gradients, summed over micro-batches and ranks, in the memory of the side
// (device or host) that updates the span. An update may overwrite them, because nothing reads them
// afterwards.
float *model_states_gradients_at(const struct model_states *state, const struct placement_span *placed);
// Returns the device address of the span's parameters in the compute type, from its element `offset` on; NULL
// with offload_param.
void *model_states_params_at(const struct model_states *state, const struct placement_span *placed,
                             size_t offset);

// ---- loading and saving

// Reads this rank's optimizer states from `source`, rounds the master weights to the compute type, and
// gathers the parameters that the stage keeps whole.
//   all_kinds   false: moments are not read and stay zero, their initial value
enum status model_states_load(struct model_states *state, struct stream *stream,
                              const struct checkpoint_source *source, bool all_kinds) MUST_CHECK;
struct state_reader {
    struct model_states *state;
    struct stream *stream;
};
// Returns a source of this rank's optimizer states, for writing a checkpoint. `reader` must outlive it.
struct checkpoint_source model_states_source(struct state_reader *reader);
// Returns the kinds of values that model_states_source has.
struct checkpoint_kinds model_states_kinds(const struct model_states *state);

#endif
