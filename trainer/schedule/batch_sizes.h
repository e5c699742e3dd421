// The batch size of each step, in sequences over all ranks (train.batch_size_schedule): a pure function of
// the step. Steps are counted from 0.
#ifndef ZERO_TRAINER_SCHEDULE_BATCH_SIZES_H
#define ZERO_TRAINER_SCHEDULE_BATCH_SIZES_H

#include <stdint.h>

#include "configs/config.h"

struct batch_sizes {
    int64_t first; // before the first stage
    struct config_stages stages;
};

struct batch_sizes batch_sizes_of(const struct config *config); // which is resolved

int64_t batch_sizes_at(const struct batch_sizes *sizes, int64_t step);
// Sequences of the steps before `step`.
uint64_t batch_sizes_before(const struct batch_sizes *sizes, int64_t step);
// The steps [from, to) as multiples of step `unit`.
double batch_sizes_work(const struct batch_sizes *sizes, int64_t from, int64_t to, int64_t unit);
// The largest `to` such that the steps [from, to) take at most `work` steps like `unit`; at most `most`.
int64_t batch_sizes_reach(const struct batch_sizes *sizes, int64_t from, double work, int64_t unit,
                          int64_t most);

#endif
