// The model states of one rank (parameters, gradients, optimizer states: ZeRO, arXiv 1910.02054,
// section 3.1), each whole or sharded according to the stage. The model reaches them through `hooks`:
//
//   params_acquire(unit)   before a unit is used: returns its parameters (zero/stages/parameters.h) and, in
//   backward, the
//                          buffer for its gradients (zero/stages/gradients.h)
//   grads_ready(unit)      when its gradients are complete: reduces them
//   params_release(unit)   after the unit was used
//
// Each call is compared with the recorded trace of its pass (model/trace.h), in every stage.
//
// What each stage (zero/partition/stage.h) does with them:
//   stage   parameters                        gradients                          optimizer states
//   0       whole                             whole, all-reduced                 whole
//   1       whole, all-gather after update    whole, reduce-scatter              sharded
//   2       whole, all-gather after update    sharded, reduce-scatter per unit   sharded
//   3       sharded, all-gather before use    sharded, reduce-scatter per unit   sharded
//
// There is a member per kind of state: `parameters`, `gradients`, and `placement` for the optimizer states;
// `offload` keeps some of them in host memory.
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
    struct placement placement; // spans that this rank updates, or frozen: in stage 0 all, else what it owns
    struct parameters parameters;
    struct gradients gradients;
    struct offload offload;
    struct norm norm;
    struct trace_cursor cursor; // position in the trace of the current pass
    // Host memory for CHECKPOINT_CHUNK elements, which are copied between states and files.
    int values_region, codes_region, scales_region;
    float *values; // fp32
    void *codes;   // moments, and frozen tensors, as they are stored, if not in fp32
    float *scales; // int8 moments: the scales of `codes`
    struct unit_hooks hooks;
    bool shows_average; // the parameters are the weights for evaluation (zero/optimizer/averaging.h)
};

// Plans the states of a stage and adds their regions to `table`. Allocates no state and does not communicate.
//   given   the inputs of stage_init
// Call model_states_free also after a failure. STATUS_INVALID: see optimizer_groups_init.
enum status model_states_init(struct model_states *state, const struct stage *given,
                              struct region_table *table) MUST_CHECK;
// Binds the regions once the table is allocated. From here on the states communicate.
//   host   the CPU's device, which updates the spans that are placed on the host
enum status model_states_bind(struct model_states *state, const struct region_table *table, struct comm *comm,
                              struct device *host) MUST_CHECK;
void model_states_free(struct model_states *state);

// ---- addresses, for optimizers

// The span that holds an element of a unit, or NULL if this rank does not update it.
const struct placement_span *model_states_span_at(const struct model_states *state, int unit, size_t element);

// The arrays that an optimizer step reads and writes for a span, from its element `offset` on.
struct optimizer_state model_states_optimizer_at(const struct model_states *state,
                                                 const struct placement_span *placed, size_t offset);
// The span's gradients, summed over micro-batches and ranks, on the side (device or host) that updates them.
// An update may overwrite them, because nothing reads them afterwards.
float *model_states_gradients_at(const struct model_states *state, const struct placement_span *placed);
// The span's parameters in the compute type on the device, from its element `offset` on; NULL with
// offload_param.
void *model_states_params_at(const struct model_states *state, const struct placement_span *placed,
                             size_t offset);

// ---- loading and saving

// Reads this rank's optimizer states from `source`, rounds the master weights to the compute type, and
// gathers the parameters that the stage keeps whole.
//   all_kinds   false: only master weights; moments stay zero, their initial value
enum status model_states_load(struct model_states *state, struct stream *stream,
                              const struct checkpoint_source *source, bool all_kinds) MUST_CHECK;
struct state_reader {
    struct model_states *state;
    struct stream *stream;
};
// A source of this rank's optimizer states, for writing a checkpoint. `reader` must outlive it.
struct checkpoint_source model_states_source(struct state_reader *reader);
// The kinds of values that this source has.
struct checkpoint_kinds model_states_kinds(const struct model_states *state);

#endif
