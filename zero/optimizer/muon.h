// Muon over the model states (Jordan 2024; scale "moonlight": arXiv 2502.16982): of each matrix inside a
// block the momentum's direction is orthogonalized (zero/optimizer/rules/newton_schulz.h) and scaled; the
// other tensors are AdamW's, by the elementwise rules.
//
// A step, round by round (zero/optimizer/muon_rounds.h): momentum and direction at the owners, element by
// element; an exchange of directions to the workers, whose devices orthogonalize, a batch of matrices at once
// on a GPU; an exchange back; the weights, element by element. Nothing waits for the host, so that the
// device may decide whether the step is skipped.
//
// Determinism: a tensor is orthogonalized by one rank from the same bits in every stage and partition, so the
// bits of a run are the same wherever the gradients' are.
#ifndef ZERO_ZERO_OPTIMIZER_MUON_H
#define ZERO_ZERO_OPTIMIZER_MUON_H

#include "zero/optimizer/muon_rounds.h"
#include "zero/stages/model_states.h"

struct muon {
    struct model_states *state;
    enum dtype type; // of directions and products: fp32 with fp32 parameters, else bf16
    struct muon_rounds rounds;
    struct newton_schulz products;
    int slices_region, tensors_region, spans_region;
    void *slices, *tensors;              // (slice_elements), (tensor_elements) type
    struct newton_schulz_batch *batches; // of this rank, round by round
    int *first_batch;                    // (n_rounds + 1) of each round
    struct optimizer_spans_args *args;   // (n_rounds) this rank's slices of each round
    const struct update_plan *plan;      // in the device's memory
    const struct update_result *result;
};

// Adds regions to `table` if some tensor is Muon's, after the states' own. Call muon_free also after a
// failure.
enum status muon_init(struct muon *muon, struct model_states *state, struct region_table *table) MUST_CHECK;
// After model_states_bind. Waits for `stream`.
//   plan, result   of each step, in the device's memory
enum status muon_bind(struct muon *muon, const struct region_table *table, struct stream *stream,
                      const struct update_plan *plan, const struct update_result *result) MUST_CHECK;
void muon_free(struct muon *muon); // before model_states_free

// Updates the tensors of Muon that this rank updates, by the plan and the result in the device's memory. If
// the step is skipped, the same is exchanged and nothing changes. No-op without such tensors.
enum status muon_update(const struct muon *muon, struct stream *stream) MUST_CHECK;
// Call instead where the host skips a step: makes the exchanges only, so that plans hold for every step.
enum status muon_skip(const struct muon *muon, struct stream *stream) MUST_CHECK;

// Adds what this rank sends per step in exchanges to `volume`. Needs only muon_init.
void muon_volume(const struct muon *muon, struct comm_volume *volume);
// FLOPs per step of the products that orthogonalize: of all ranks, and of the rank that has most.
void muon_flops(const struct muon *muon, double *all, double *most);

#endif
