// Learning-rate schedules. The rate is a pure function of the step, so resuming needs only the step number.
#ifndef ZERO_TRAINER_SCHEDULE_H
#define ZERO_TRAINER_SCHEDULE_H

#include <stdint.h>

#include "configs/config.h"

// Learning rate of step `step` (from 0). Warm-up over W steps is linear: peak (step + 1) / W. Afterwards,
// with p going from 0 at the end of the warm-up to 1 at the last step, and r = min_lr_ratio:
//   constant              peak
//   cosine                peak (r + (1 - r) (1 + cos(pi p)) / 2)
//   linear                peak (1 - (1 - r) p)
//   warmup-stable-decay   peak; over the last decay_ratio of max_steps linear to r times the peak
double schedule_lr(const struct config *config, int64_t step);

#endif
