// The learning rate as a pure function of the step, so that a resumed run needs only the step number.
#ifndef ZERO_TRAINER_SCHEDULE_H
#define ZERO_TRAINER_SCHEDULE_H

#include <stdint.h>

#include "configs/config.h"

// The rate of step `step` (from 0). Warm-up is linear: step s of W gets (s + 1) / W of the peak. Then, with p
// from 0 at the end of the warm-up to 1 at the last step: constant; cosine and linear from the peak to
// min_lr_ratio of it; warmup-stable-decay stays at the peak but for the last decay_ratio of max_steps, which
// falls linearly.
double schedule_lr(const struct config *config, int64_t step);

#endif
