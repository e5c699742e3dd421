// The shape of each step: how many sequences, of how many tokens (train.batch_size_schedule and
// train.seq_len_schedule). A pure function of the step and the stages.
//
// Sequences of the data always have train.seq_len tokens; rows count them. A step with shorter sequences cuts
// each of its rows into several: it has the same tokens, and the order of the data is that of any other run.
#ifndef ZERO_TRAINER_SCHEDULE_SHAPE_H
#define ZERO_TRAINER_SCHEDULE_SHAPE_H

#include <stdint.h>

#include "configs/config.h"
#include "model/params.h"

struct step_shape {
    int64_t batch_size; // rows, over all ranks
    int64_t seq_len;    // of the sequences that the model sees
};

struct shapes {
    int64_t batch_size, row_tokens;         // before the first stage; train.seq_len
    struct config_stages batches, seq_lens; // their stages
    // Per token, forward and backward: before the first stage of seq_lens, and in each of them.
    double flops[1 + CONFIG_SCHEDULE_MOST];
};

struct shapes shapes_of(const struct config *config); // which is resolved
// Fills in `flops` (gpt_flops_per_token), which the last three functions below need.
enum status shapes_count_flops(struct shapes *shapes, const struct params *params) MUST_CHECK;
bool shapes_vary(const struct shapes *shapes);

// Steps are counted from 0.
struct step_shape shapes_at(const struct shapes *shapes, int64_t step);
// Rows of the steps before `step`.
uint64_t shapes_rows_before(const struct shapes *shapes, int64_t step);
// FLOPs of a step, forward and backward, over all ranks.
double shapes_flops(const struct shapes *shapes, int64_t step);
// The steps [from, to) as multiples of the work of step `unit`.
double shapes_work(const struct shapes *shapes, int64_t from, int64_t to, int64_t unit);
// The largest `to` such that the steps [from, to) take at most `work` steps like `unit`; at most `most`.
int64_t shapes_reach(const struct shapes *shapes, int64_t from, double work, int64_t unit, int64_t most);

#endif
