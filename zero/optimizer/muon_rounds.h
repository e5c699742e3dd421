// Who orthogonalizes which matrix for Muon, and what ranks exchange for it. A pure function of the
// parameters, the partition and the stage: the same on every rank.
//
// A tensor is worked on whole (a fused one part by part) by one rank, its worker:
//   - a rank that owns all of it, if there is one: then nothing is sent
//   - else one of the ranks that own some of it (stage 0: of all ranks), such that no tensor has another one
//     with so little work that it should move there
// Rounds: all ranks work side by side, in each round on one tensor of each, or on several that together have
// at most `most_elements`, the dearest first and those of one shape together. A rank's tensors of a round lie
// in one buffer.
//
// A rank's slices of a tensor are the elements that it updates: in stage 0 all, else those that it owns. The
// slices of a round lie one after another in one buffer. Two exchanges make a round: directions from the
// slices to the workers, and what they make of them back to the slices.
#ifndef ZERO_ZERO_OPTIMIZER_MUON_ROUNDS_H
#define ZERO_ZERO_OPTIMIZER_MUON_ROUNDS_H

#include "zero/optimizer/rules/newton_schulz.h"
#include "zero/optimizer/rules/optimizer_groups.h"
#include "zero/partition/stage.h"

struct muon_tensor {
    int param;    // index in params->params
    int64_t rows; // of it
    int worker;
    size_t at; // in its worker's buffer of tensors, in elements: a multiple of REGION_ALIGNMENT
    double flops;
};

// Elements [begin, end) of a unit, of one tensor, that a rank updates.
struct muon_slice {
    int tensor; // index in muon_rounds.tensors
    int rank;
    size_t begin, end;
    size_t at; // of `begin` in the rank's buffer of slices
};

struct muon_round {
    int first_tensor, n_tensors;
    int first_slice, n_slices; // of all ranks
    struct comm_transfer there, back;
    bool sends; // some element moves between ranks
};

struct muon_rounds {
    const struct params *params;
    const struct partition *partition;
    int world;
    bool whole;                  // stage 0: every rank updates everything
    size_t most_elements;        // of a rank in a round that has several tensors
    struct muon_tensor *tensors; // round by round, in each by worker
    int n_tensors;
    struct muon_slice *slices; // round by round
    int n_slices;
    struct muon_round *rounds;
    int n_rounds;
    size_t slice_elements, tensor_elements; // of the buffers: the most of a rank in a round
    struct comm_span *spans;                // of all transfers
};

// The matrices of a tensor: its parts, or itself. Returns their number.
//   first_row   [out] (PARAM_PARTS_MOST) of each
int muon_matrices(const struct param *param, struct matrix_shape shapes[PARAM_PARTS_MOST],
                  int64_t first_row[PARAM_PARTS_MOST]);
// FLOPs of newton_schulz_run for all of them.
//   strip   of symmetric products, as for newton_schulz_flops
double muon_tensor_flops(const struct param *param, int strip);

// Lists the rounds of a stage.
//   most_elements  of a rank in a round
void muon_rounds_init(struct muon_rounds *rounds, const struct stage *stage,
                      const struct optimizer_groups *groups, size_t most_elements);
void muon_rounds_free(struct muon_rounds *rounds);

// One transfer of a round, from the buffer `in` to the buffer `out`: among ranks, or, where the round sends
// nothing, within this one's memory.
enum status muon_rounds_exchange(const struct muon_round *round, const struct comm_transfer *transfer,
                                 struct comm *comm, struct stream *stream, const void *in, void *out,
                                 enum dtype type) MUST_CHECK;

// What `rank` sends per step, in elements, and the number of exchanges.
void muon_rounds_traffic(const struct muon_rounds *rounds, int rank, uint64_t *elements, uint64_t *calls);

#endif
