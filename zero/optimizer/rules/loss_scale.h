// Loss scaling for fp16. Losses are multiplied by a scale so that small gradients do not underflow, and the
// optimizer divides gradients by it. A step whose gradients overflow is skipped. The dynamic scale is
// halved at the `hysteresis`-th overflow and at each later one. After `loss_scale_window` steps without an
// overflow it is doubled, and overflows are counted anew.
//
// Sources: Mixed Precision Training (arXiv 1710.03740); names and rules of DeepSpeed's DynamicLossScaler
// (scale factor 2; hysteresis is refilled when the scale grows).
#ifndef ZERO_ZERO_OPTIMIZER_RULES_LOSS_SCALE_H
#define ZERO_ZERO_OPTIMIZER_RULES_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "options/config.h"

// The state of loss scaling. Checkpoints record it.
struct loss_scale {
    double scale;            // 0: losses are not scaled
    int64_t hysteresis_left; // number of overflows until the dynamic scale is halved; 1: at the next one
    int64_t last_overflow;   // the step of the last overflow, counted from 0; -1: none yet
    int64_t skipped;         // steps skipped so far
    int64_t consecutive;     // steps skipped since the last step that was not skipped
};

// Returns the state at step 0. Its `scale` is 0 if the config asks for no scaling.
struct loss_scale loss_scale_initial(const struct config *config);
// Returns the factor that losses are multiplied by; 1 if they are not scaled.
double loss_scale_factor(const struct loss_scale *loss_scale);
enum { LOSS_SCALE_MOST_SKIPS = 50 };
// Call it after each step; `step` counts from 0. Halves or doubles a dynamic scale by the rules above.
// STATUS_FAILED: the scale would be halved but is fp16.min_loss_scale already, or LOSS_SCALE_MOST_SKIPS steps
// in a row were skipped (also at a fixed scale).
//   overflow   the step's gradients were not finite, and it was skipped
enum status loss_scale_update(struct loss_scale *loss_scale, const struct config *config, int64_t step,
                              bool overflow) MUST_CHECK;

#endif
