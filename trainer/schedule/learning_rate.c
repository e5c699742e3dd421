// The formulas are in the header.
#include "trainer/schedule/learning_rate.h"

#include <math.h>

// How far step is on the way from `from` to `to`, in [0, 1].
static double progress(double step, double from, double to) {
    if (to <= from)
        return 1;
    double p = (step - from) / (to - from);
    return p < 0 ? 0 : p > 1 ? 1 : p;
}

int64_t schedule_warmup_of(const struct config *config, int64_t steps) {
    const int64_t warmup = config->scheduler.warmup_steps;
    return warmup <= steps || steps == 0 ? warmup : steps < 10 ? 1 : steps / 10;
}

int64_t schedule_warmup_steps(const struct config *config) {
    return schedule_warmup_of(config, config_decay_steps(config));
}

// The rate after the warm-up, at position p of the decay; of warmup_stable_decay at position p_last of its
// last part.
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

double schedule_lr(const struct config *config, int64_t step) {
    int64_t warmup = schedule_warmup_steps(config), last = config_decay_steps(config) - 1;
    if (step < warmup)
        return config->optimizer.lr * (double)(step + 1) / (double)warmup;
    // The last part begins after the warm-up, however long it was to be.
    const double warmed = warmup > 0 ? (double)warmup - 1 : 0,
                 decay = config->scheduler.decay_ratio * (double)(last + 1);
    return decayed_rate(config, progress((double)step, warmed, (double)last),
                        decay > 0 ? progress((double)step, fmax(warmed, (double)last - decay), (double)last)
                                  : 0);
}

// A schedule that has left the warm-up does not return to it when the run turns out to be longer.
static int64_t warmup_paced(const struct config *config, const struct history_decision *decision) {
    if (!decision)
        return config->scheduler.warmup_steps;
    return decision->position > 0 ? 0 : schedule_warmup_of(config, decision->total);
}

double schedule_position(const struct config *config, const struct history_decision *decision, int64_t step) {
    if (!decision)
        return 0;
    const int64_t warmup = warmup_paced(config, decision), warmed = warmup > 0 ? warmup - 1 : 0,
                  from = decision->step - 1 > warmed ? decision->step - 1 : warmed;
    if (step < warmed)
        return 0;
    return decision->position +
           (1 - decision->position) * progress((double)step, (double)from, (double)(decision->total - 1));
}

double schedule_lr_paced(const struct config *config, const struct history_decision *decision, int64_t step) {
    const double decay = config->scheduler.decay_ratio;
    const int64_t warmup = warmup_paced(config, decision);
    if (step < warmup)
        return config->optimizer.lr * (double)(step + 1) / (double)warmup;
    const double p = schedule_position(config, decision, step);
    return decayed_rate(config, p, decay > 0 ? progress(p, 1 - decay, 1) : 0);
}
