// Learning-rate schedules. The rate is a pure function of the step, so resuming needs only the step number.
#ifndef ZERO_TRAINER_SCHEDULE_LEARNING_RATE_H
#define ZERO_TRAINER_SCHEDULE_LEARNING_RATE_H

#include <stdint.h>

#include "configs/config.h"
#include "zero/checkpoint/history.h"

// The steps of warm-up in a schedule of `steps` (0: a run without steps): scheduler.warmup_steps, or, where
// that is longer than the schedule, a tenth of the schedule and at least one step.
int64_t schedule_warmup_of(const struct config *config, int64_t steps);
int64_t schedule_warmup_steps(const struct config *config); // of config_decay_steps

// Learning rate of step `step` (from 0). Warm-up over W steps is linear: peak (step + 1) / W. Afterwards,
// with p going from 0 at the end of the warm-up to 1 at the last step of the schedule, and r = min_lr_ratio:
//   constant              peak
//   cosine                peak (r + (1 - r) (1 + cos(pi p)) / 2)
//   linear                peak (1 - (1 - r) p)
//   warmup-stable-decay   peak; over the last decay_ratio of the schedule linear to r times the peak
// After the schedule the rate stays.
double schedule_lr(const struct config *config, int64_t step);

// With train.max_minutes (trainer/pacing.h): p as above of step `step` (from 0), by the last decision; NULL:
// none yet, and p is 0. From the position of the last step before the decision, p moves in equal parts to 1.
double schedule_position(const struct config *config, const struct history_decision *decision, int64_t step);
// The rate at that position, of the same shapes; warmup-stable-decay decays from p = 1 - decay_ratio on.
double schedule_lr_paced(const struct config *config, const struct history_decision *decision, int64_t step);

#endif
