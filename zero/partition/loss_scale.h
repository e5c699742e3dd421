// Loss scaling: losses are multiplied by a scale, so that small gradients do not vanish in a narrow type, and
// gradients divided by it again in the update. A step whose gradients overflow is skipped. The scale is
// halved after `hysteresis` overflows and doubled after `window` steps without any.
//
// Source: Mixed Precision Training (arXiv 1710.03740), with the names and rules of DeepSpeed's
// DynamicLossScaler (scale factor 2, hysteresis refilled when the scale grows).
#ifndef ZERO_ZERO_PARTITION_LOSS_SCALE_H
#define ZERO_ZERO_PARTITION_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "configs/config.h"

// What a run must remember to go on.
struct loss_scale {
    double scale; // 0: losses are not scaled
    int64_t hysteresis_left;
    int64_t last_overflow; // step, -1: none yet
    int64_t skipped;       // steps so far
    int64_t consecutive;   // of them, those since the last step that was not
};

// As a run begins: scale 0 where the config asks for no scaling.
struct loss_scale loss_scale_initial(const struct config *config);
// What losses are multiplied by: 1 where they are not scaled.
double loss_scale_factor(const struct loss_scale *loss_scale);
// After step `step` (from 0): whether its gradients overflowed, and so were not used. STATUS_FAILED when the
// scale would have to fall below fp16.min_loss_scale, or fp16.max_consecutive_skips steps were skipped in a
// row.
enum status loss_scale_update(struct loss_scale *loss_scale, const struct config *config, int64_t step,
                              bool overflow) MUST_CHECK;

#endif
