// The formulas are in trainer/schedule.h.
#include "trainer/schedule.h"

#include <math.h>

#include "zero/optimizer/rules/optimizer_groups.h"

// ---- the learning rate

// Returns how far `step` is on the way from `from` to `to`: 0 up to `from`, 1 from `to` on.
static double progress(double step, double from, double to) {
    if (to <= from)
        return 1;
    double p = (step - from) / (to - from);
    return p < 0 ? 0 : p > 1 ? 1 : p;
}

int64_t schedule_warmup_of(int64_t warmup, int64_t steps) {
    return warmup <= steps || steps == 0 ? warmup : steps < 10 ? 1 : steps / 10;
}

// Returns the learning rate after the warm-up, at p (schedule.h). warmup-stable-decay uses p_last instead,
// which goes from 0 to 1 over the last part of the schedule, the fraction decay_ratio.
static double decayed_rate(const struct config *config, double p, double p_last) {
    const double peak = config->optimizer.lr, lowest = config->scheduler.min_lr_ratio;
    switch (config->scheduler.type) {
    case CONFIG_SCHEDULE_CONSTANT:
        return peak;
    case CONFIG_SCHEDULE_COSINE:
        return peak * (lowest + (1 - lowest) * 0.5 * (1 + cos(M_PI * p)));
    case CONFIG_SCHEDULE_LINEAR:
        return peak * (1 - (1 - lowest) * p);
    case CONFIG_SCHEDULE_WARMUP_STABLE_DECAY:
        break;
    }
    return peak * (1 - (1 - lowest) * p_last);
}

double schedule_lr(const struct config *config, int64_t warmup, int64_t step) {
    const int64_t last = config_decay_steps(config) - 1;
    if (step < warmup)
        return config->optimizer.lr * (double)(step + 1) / (double)warmup;
    // However large decay_ratio is, the decay begins after the warm-up.
    const double warmed = warmup > 0 ? (double)warmup - 1 : 0,
                 decay = config->scheduler.decay_ratio * (double)(last + 1);
    return decayed_rate(config, progress((double)step, warmed, (double)last),
                        decay > 0 ? progress((double)step, fmax(warmed, (double)last - decay), (double)last)
                                  : 0);
}

double schedule_position(int64_t warmup, const struct pacing_decision *decision, int64_t step) {
    const int64_t warmed = warmup > 0 ? warmup - 1 : 0,
                  from = decision->step - 1 > warmed ? decision->step - 1 : warmed;
    if (step < warmed)
        return 0;
    return decision->position +
           (1 - decision->position) * progress((double)step, (double)from, (double)(decision->total - 1));
}

double schedule_lr_paced(const struct config *config, int64_t warmup, const struct pacing_decision *decision,
                         int64_t step) {
    const double decay = config->scheduler.decay_ratio;
    if (step < warmup)
        return config->optimizer.lr * (double)(step + 1) / (double)warmup;
    const double p = schedule_position(warmup, decision, step);
    return decayed_rate(config, p, decay > 0 ? progress(p, 1 - decay, 1) : 0);
}

// ---- batch sizes

// Sums over steps are computed stage by stage, because all steps of a stage have the same batch size.

struct batch_sizes batch_sizes_of(const struct config *config) {
    return (struct batch_sizes){config->train.train_batch_size, config->train.batch_size_schedule};
}

int64_t batch_sizes_at(const struct batch_sizes *sizes, int64_t step) {
    return config_stages_at(&sizes->stages, sizes->first, step);
}

// Returns the first step after `step` that begins a stage; at most `most`.
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

// ---- the gradient noise scale

void noise_record_add(struct noise_record *record, double small, double n_small, double large,
                      double n_large) {
    const double square = (n_large * large - n_small * small) / (n_large - n_small),
                 variance = (small - large) / (1 / n_small - 1 / n_large),
                 keep = record->n > 0 ? NOISE_DECAY : 0;
    record->square = keep * record->square + (1 - keep) * square;
    record->variance = keep * record->variance + (1 - keep) * variance;
    record->n++;
    record->n_since++;
}

double noise_scale(const struct noise_record *record) {
    return record->n > 0 && record->square > 0 ? fmax(0, record->variance) / record->square : NAN;
}

bool noise_wants_more(const struct noise_record *record, int64_t batch_size, int64_t most) {
    return record->n_since >= NOISE_PATIENCE && 2 * batch_size <= most &&
           noise_scale(record) >= 2 * (double)batch_size;
}

// ---- the average of the weights

// Returns the weight with which this update enters the average of schedule-free AdamW (average_weight in
// kernels/ops.h). Adds the update to the record.
static float schedule_free_next(double lr, struct average_record *record) {
    record->lr_max = fmax(record->lr_max, lr);
    const double weight = record->lr_max * record->lr_max;
    record->weight_sum += weight;
    record->n++;
    return weight > 0 ? (float)(weight / record->weight_sum) : 0;
}

float averaging_next(const struct config *config, double lr, struct average_record *record) {
    if (optimizer_averages(config))
        return schedule_free_next(lr, record);
    if (config->train.ema.type == CONFIG_EMA_NONE)
        return 0;
    return record->n++ == 0 ? 1 : (float)(1 - config->train.ema.decay);
}

struct average_record averaging_resumed(const struct config *config, const struct average_record *record,
                                        bool has_average) {
    const bool goes_on =
        optimizer_averages(config) || (config->train.ema.type != CONFIG_EMA_NONE && has_average);
    return goes_on ? *record : (struct average_record){0};
}
