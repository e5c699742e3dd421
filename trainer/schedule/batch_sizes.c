// Sums over steps go from stage to stage: between two, all steps are alike.
#include "trainer/schedule/batch_sizes.h"

#include <math.h>

struct batch_sizes batch_sizes_of(const struct config *config) {
    return (struct batch_sizes){config->train.train_batch_size, config->train.batch_size_schedule};
}

int64_t batch_sizes_at(const struct batch_sizes *sizes, int64_t step) {
    return config_stages_at(&sizes->stages, sizes->first, step);
}

// The first step after `step` that begins a stage; at most `most`.
static int64_t next_stage(const struct batch_sizes *sizes, int64_t step, int64_t most) {
    for (int i = 0; i < sizes->stages.n; i++)
        if (sizes->stages.stages[i].step > step)
            return sizes->stages.stages[i].step < most ? sizes->stages.stages[i].step : most;
    return most;
}

uint64_t batch_sizes_before(const struct batch_sizes *sizes, int64_t step) {
    uint64_t rows = 0;
    for (int64_t at = 0, next; at < step; at = next) {
        next = next_stage(sizes, at, step);
        rows += (uint64_t)(next - at) * (uint64_t)batch_sizes_at(sizes, at);
    }
    return rows;
}

double batch_sizes_work(const struct batch_sizes *sizes, int64_t from, int64_t to, int64_t unit) {
    return from < to ? (double)(batch_sizes_before(sizes, to) - batch_sizes_before(sizes, from)) /
                           (double)batch_sizes_at(sizes, unit)
                     : 0;
}

int64_t batch_sizes_reach(const struct batch_sizes *sizes, int64_t from, double work, int64_t unit,
                          int64_t most) {
    for (int64_t at = from, next; at < most; at = next) {
        const double each = (double)batch_sizes_at(sizes, at) / (double)batch_sizes_at(sizes, unit);
        next = next_stage(sizes, at, most);
        if (!((double)(next - at) * each <= work))
            return at + (int64_t)fmax(0, work / each);
        work -= (double)(next - at) * each;
    }
    return most;
}
