// Muon over the model states (Jordan 2024; scale "moonlight": arXiv 2502.16982). For each matrix inside a
// block, the direction of the momentum is orthogonalized (zero/optimizer/rules/newton_schulz.h) and scaled.
// AdamW updates all other tensors, by the elementwise rules.
//
// A step works in rounds (zero/optimizer/muon_rounds.h), each with these phases:
//   1. The owners compute momentum and direction, element by element.
//   2. An exchange sends each tensor's direction to one rank, its worker. The workers orthogonalize the
//      directions on their devices, on a GPU a batch of matrices at a time.
//   3. An exchange returns the results, and the owners update the weights, element by element.
// Nothing waits for the host, so the device may decide whether the step is skipped.
//
// Determinism: in every stage and partition, one rank orthogonalizes the whole tensor, from the same bits.
// So gradients that are bitwise equal give updates that are bitwise equal.
#ifndef ZERO_ZERO_OPTIMIZER_MUON_H
#define ZERO_ZERO_OPTIMIZER_MUON_H

#include "zero/optimizer/muon_rounds.h"
#include "zero/stages/model_states.h"

struct muon {
    struct model_states *state;
    enum dtype type; // dtype of directions and products: fp32 with fp32 parameters, else bf16
    struct muon_rounds rounds;
    struct newton_schulz products;
    int slices_region, tensors_region, spans_region;
    void *slices;  // (rounds.slice_elements) in `type`: this rank's slices in a round
    void *tensors; // (rounds.tensor_elements) in `type`: the tensors that this rank orthogonalizes in a round
    struct newton_schulz_batch *batches; // this rank's batches, round by round
    int *first_batch;                    // (n_rounds + 1) index of each round's first batch
    struct optimizer_spans_args *args; // (n_rounds) arguments to compute the directions of this rank's slices
    // The plan and the result of the current step, in device memory.
    const struct update_plan *plan;
    const struct update_result *result;
};

// Adds regions to `table`, after the states' own, if Muon updates any tensor. Call muon_free also after a
// failure.
enum status muon_init(struct muon *muon, struct model_states *state, struct region_table *table) MUST_CHECK;
// Call it after model_states_bind. Waits for `stream`.
//   plan, result   device memory that holds the plan and the result of the current step
enum status muon_bind(struct muon *muon, const struct region_table *table, struct stream *stream,
                      const struct update_plan *plan, const struct update_result *result) MUST_CHECK;
void muon_free(struct muon *muon); // call it before model_states_free

// Updates this rank's elements of the tensors that use Muon, by the plan and the result in device memory.
// If the step is skipped, the exchanges still happen, but nothing changes. No-op without such tensors.
enum status muon_update(const struct muon *muon, struct stream *stream) MUST_CHECK;
// Call it instead of muon_update when the host skips a step. It only makes the exchanges, so that every
// step has the planned communication volume.
enum status muon_skip(const struct muon *muon, struct stream *stream) MUST_CHECK;

// Adds to `volume` what this rank sends in exchanges per step. Needs only muon_init.
void muon_volume(const struct muon *muon, struct comm_volume *volume);
// Computes the FLOPs per step of the matrix products that orthogonalize.
//   all    [out] the FLOPs of all ranks together
//   most   [out] the FLOPs of the rank that has the most
void muon_flops(const struct muon *muon, double *all, double *most);

#endif
