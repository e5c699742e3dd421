// Shapes of the learning rate; see the header for their formulas.
#include "trainer/schedule.h"

#include <math.h>
#include <string.h>

// The part of [from, to] that lies behind step, in [0, 1]; the last step of the run is 1.
static double progress(double step, double from, double to) {
    if (to <= from)
        return 1;
    double p = (step - from) / (to - from);
    return p < 0 ? 0 : p > 1 ? 1 : p;
}

double schedule_lr(const struct config *config, int64_t step) {
    double peak = config->optimizer.lr, lowest = config->scheduler.min_lr_ratio;
    int64_t warmup = config->scheduler.warmup_steps, last = config->train.max_steps - 1;
    const char *type = config->scheduler.type;
    if (step < warmup)
        return peak * (double)(step + 1) / (double)warmup;
    double p = progress((double)step, (double)(warmup > 0 ? warmup - 1 : 0), (double)last);
    if (strcmp(type, "constant") == 0)
        return peak;
    if (strcmp(type, "cosine") == 0)
        return peak * (lowest + (1 - lowest) * 0.5 * (1 + cos(M_PI * p)));
    if (strcmp(type, "linear") == 0)
        return peak * (1 - (1 - lowest) * p);
    double decay = config->scheduler.decay_ratio * (double)config->train.max_steps;
    p = progress((double)step, (double)last - decay, (double)last);
    return decay > 0 ? peak * (1 - (1 - lowest) * p) : peak;
}
