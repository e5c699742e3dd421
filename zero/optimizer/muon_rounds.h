// Plans for Muon which rank orthogonalizes which matrix, and what the ranks exchange for it. The plan is a
// pure function of the parameters, the partition and the stage, so it is the same on every rank.
//
// Workers. One rank, the worker, orthogonalizes a whole tensor (a fused tensor part by part). The worker is
//   - a rank that owns the whole tensor, if there is one: then nothing is sent.
//   - else one of the ranks that own some of it (in stage 0: any rank). A rank's load is the FLOPs of its
//     tensors. Loads are balanced: moving a tensor to another of these ranks would not lower the larger of
//     the two ranks' loads.
//
// Rounds. In each round, each worker takes one tensor, or several that together have at most
// `most_elements`. The most expensive tensors come first, and tensors of one shape are together. The
// tensors that a worker takes in a round are in one buffer.
//
// Slices. A rank's slices of a tensor are the elements that it updates: in stage 0 all, else those that it
// owns. The slices of a round are contiguous in another buffer. A round has two exchanges: directions from
// the slices to the workers, and the orthogonalized directions back to the slices.
#ifndef ZERO_ZERO_OPTIMIZER_MUON_ROUNDS_H
#define ZERO_ZERO_OPTIMIZER_MUON_ROUNDS_H

#include "zero/optimizer/rules/newton_schulz.h"
#include "zero/optimizer/rules/optimizer_groups.h"
#include "zero/partition/stage.h"

struct muon_tensor {
    int param;    // index in params->params
    int64_t rows; // rows of that parameter
    int worker;
    size_t at; // offset in its worker's buffer of tensors, in elements: a multiple of REGION_ALIGNMENT
    double flops;
};

// Elements [begin, end) of a unit, within one tensor, that a rank updates.
struct muon_slice {
    int tensor; // index in muon_rounds.tensors
    int rank;
    size_t begin, end;
    size_t at; // offset of `begin` in the rank's buffer of slices
};

struct muon_round {
    int first_tensor, n_tensors;
    int first_slice, n_slices;        // the slices of all ranks in this round
    struct comm_transfer there, back; // the exchanges: directions to the workers; results to the slices
    bool sends;                       // some elements move between ranks
};

struct muon_rounds {
    const struct params *params;
    const struct partition *partition;
    int world;
    bool whole;                  // stage 0: every rank updates every element
    size_t most_elements;        // limit on a rank's elements in a round with several tensors
    struct muon_tensor *tensors; // in the order of rounds; within a round by FLOPs, most first
    int n_tensors;
    struct muon_slice *slices; // in order of rounds
    int n_slices;
    struct muon_round *rounds;
    int n_rounds;
    size_t slice_elements, tensor_elements; // buffer sizes: maximum over all ranks and rounds
    struct comm_span *spans;                // the spans of all transfers
};

// Lists the matrices of a tensor: its parts (named rows), or the whole tensor. Returns their number.
//   first_row   [out] (PARAM_PARTS_MOST) first row of each matrix in the tensor
int muon_matrices(const struct param *param, struct matrix_shape shapes[PARAM_PARTS_MOST],
                  int64_t first_row[PARAM_PARTS_MOST]);
// Returns the FLOPs of newton_schulz_run for all matrices of a tensor.
//   strip   symmetric products are computed in strips of this many columns; 0: completely
double muon_tensor_flops(const struct param *param, int strip);

// Computes the rounds of a stage.
//   most_elements   limit on a rank's elements in a round with several tensors
void muon_rounds_init(struct muon_rounds *rounds, const struct stage *stage,
                      const struct optimizer_groups *groups, size_t most_elements);
void muon_rounds_free(struct muon_rounds *rounds);

// Issues one transfer of a round, from the buffer `in` to the buffer `out`. Later work on `stream` sees the
// result. If the round sends nothing, copies within this rank's memory.
enum status muon_rounds_exchange(const struct muon_round *round, const struct comm_transfer *transfer,
                                 struct comm *comm, struct stream *stream, const void *in, void *out,
                                 enum dtype type) MUST_CHECK;

// Computes what `rank` sends per step, in elements, and the number of exchanges.
void muon_rounds_traffic(const struct muon_rounds *rounds, int rank, uint64_t *elements, uint64_t *calls);

#endif
