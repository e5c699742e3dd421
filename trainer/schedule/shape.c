// Sums over steps go from stage to stage: between two, all steps are alike.
#include "trainer/schedule/shape.h"

#include <math.h>

#include "model/gpt.h"

struct shapes shapes_of(const struct config *config) {
    return (struct shapes){.batch_size = config->train.train_batch_size,
                           .row_tokens = config->train.seq_len,
                           .batches = config->train.batch_size_schedule,
                           .seq_lens = config->train.seq_len_schedule};
}

enum status shapes_count_flops(struct shapes *shapes, const struct params *params) {
    TRY(gpt_flops_per_token(params, (int)shapes->row_tokens, &shapes->flops[0]));
    for (int i = 0; i < shapes->seq_lens.n; i++)
        TRY(gpt_flops_per_token(params, (int)shapes->seq_lens.stages[i].value, &shapes->flops[i + 1]));
    return STATUS_OK;
}

bool shapes_vary(const struct shapes *shapes) {
    return shapes->batches.n > 0 || shapes->seq_lens.n > 0;
}

struct step_shape shapes_at(const struct shapes *shapes, int64_t step) {
    return (struct step_shape){config_stages_at(&shapes->batches, shapes->batch_size, step),
                               config_stages_at(&shapes->seq_lens, shapes->row_tokens, step)};
}

// The first step after `step` whose stage is another; at most `most`.
static int64_t next_stage(const struct config_stages *schedule, int64_t step, int64_t most) {
    for (int i = 0; i < schedule->n; i++)
        if (schedule->stages[i].step > step)
            return schedule->stages[i].step < most ? schedule->stages[i].step : most;
    return most;
}

static int64_t next_shape(const struct shapes *shapes, int64_t step, int64_t most) {
    return next_stage(&shapes->batches, step, next_stage(&shapes->seq_lens, step, most));
}

uint64_t shapes_rows_before(const struct shapes *shapes, int64_t step) {
    uint64_t rows = 0;
    for (int64_t at = 0, next; at < step; at = next) {
        next = next_shape(shapes, at, step);
        rows += (uint64_t)(next - at) * (uint64_t)shapes_at(shapes, at).batch_size;
    }
    return rows;
}

double shapes_flops(const struct shapes *shapes, int64_t step) {
    int stage = 0; // of seq_lens, from 1
    while (stage < shapes->seq_lens.n && shapes->seq_lens.stages[stage].step <= step)
        stage++;
    return shapes->flops[stage] * (double)(shapes_at(shapes, step).batch_size * shapes->row_tokens);
}

double shapes_work(const struct shapes *shapes, int64_t from, int64_t to, int64_t unit) {
    double work = 0;
    for (int64_t at = from, next; at < to; at = next) {
        next = next_shape(shapes, at, to);
        work += (double)(next - at) * shapes_flops(shapes, at);
    }
    return work / shapes_flops(shapes, unit);
}

int64_t shapes_reach(const struct shapes *shapes, int64_t from, double work, int64_t unit, int64_t most) {
    const double unit_flops = shapes_flops(shapes, unit);
    for (int64_t at = from, next; at < most; at = next) {
        const double each = shapes_flops(shapes, at) / unit_flops;
        next = next_shape(shapes, at, most);
        if (!((double)(next - at) * each <= work))
            return at + (int64_t)fmax(0, work / each);
        work -= (double)(next - at) * each;
    }
    return most;
}
