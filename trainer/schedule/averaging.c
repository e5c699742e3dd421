// See the header.
#include "trainer/schedule/averaging.h"

#include <math.h>

#include "zero/partition/optimizer_groups.h"

// c of kernels/ops.h.
static float schedule_free_next(double lr, struct average_record *record) {
    record->lr_max = fmax(record->lr_max, lr);
    const double weight = record->lr_max * record->lr_max;
    record->weight_sum += weight;
    record->n++;
    return weight > 0 ? (float)(weight / record->weight_sum) : 0;
}

// Before its start there is no average, even if a resumed run has one from an earlier start.
float averaging_next(const struct config *config, int64_t update, double lr, double progress,
                     struct average_record *record) {
    if (optimizer_traits_of_run(config).averages)
        return schedule_free_next(lr, record);
    if (config->train.ema.type == CONFIG_EMA_NONE)
        return 0;
    if (progress < config->train.ema.start_ratio)
        *record = (struct average_record){0};
    if (progress < config->train.ema.start_ratio || update % config->train.ema.every != 0)
        return 0;
    record->n++;
    if (record->n == 1)
        return 1;
    return config->train.ema.type == CONFIG_EMA_UNIFORM ? (float)(1 / (double)record->n)
                                                        : (float)(1 - config->train.ema.decay);
}

struct average_record averaging_resumed(const struct config *config, const struct average_record *record,
                                        bool has_average) {
    const bool goes_on = optimizer_traits_of_run(config).averages ||
                         (config->train.ema.type != CONFIG_EMA_NONE && has_average);
    return goes_on ? *record : (struct average_record){0};
}
