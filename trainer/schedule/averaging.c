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

float averaging_next(const struct config *config, double lr, struct average_record *record) {
    if (optimizer_traits_of_run(config).averages)
        return schedule_free_next(lr, record);
    if (config->train.ema.type == CONFIG_EMA_NONE)
        return 0;
    return record->n++ == 0 ? 1 : (float)(1 - config->train.ema.decay);
}

struct average_record averaging_resumed(const struct config *config, const struct average_record *record,
                                        bool has_average) {
    const bool goes_on = optimizer_traits_of_run(config).averages ||
                         (config->train.ema.type != CONFIG_EMA_NONE && has_average);
    return goes_on ? *record : (struct average_record){0};
}
