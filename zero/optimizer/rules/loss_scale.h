// Loss scaling for fp16. Losses are multiplied by a scale so that small gradients do not underflow, and the
// optimizer divides gradients by it. A step whose gradients overflow is skipped. The dynamic scale is halved
// after `hysteresis` overflows and doubled after `loss_scale_window` steps without one.
//
// Sources: Mixed Precision Training (arXiv 1710.03740); names and rules of DeepSpeed's DynamicLossScaler
// (scale factor 2; hysteresis is refilled when the scale grows).
#ifndef ZERO_ZERO_OPTIMIZER_RULES_LOSS_SCALE_H
#define ZERO_ZERO_OPTIMIZER_RULES_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "options/config.h"

// Saved with a checkpoint.
struct loss_scale {
    double scale; // 0: losses are not scaled
    int64_t hysteresis_left;
    int64_t last_overflow; // step, counted from 0; -1: none yet
    int64_t skipped;       // steps skipped so far
    int64_t consecutive;   // steps skipped since the last step that was not skipped
};

// The state at step 0. scale is 0 if the config asks for no scaling.
struct loss_scale loss_scale_initial(const struct config *config);
// The factor for losses; 1 if they are not scaled.
double loss_scale_factor(const struct loss_scale *loss_scale);
enum { LOSS_SCALE_MOST_SKIPS = 50 };
// Call after each step (counted from 0). overflow: gradients were not finite, and the step was skipped.
// STATUS_FAILED if the scale would fall below fp16.min_loss_scale, or after LOSS_SCALE_MOST_SKIPS
// skipped steps in a row, also at a fixed scale.
enum status loss_scale_update(struct loss_scale *loss_scale, const struct config *config, int64_t step,
                              bool overflow) MUST_CHECK;

#endif
