// The rules of loss scaling. The caller detects an overflow: the global norm of the gradients is not finite.
#include "zero/optimizer/rules/loss_scale.h"

#include <math.h>
#include <stdio.h>

#define SCALE_FACTOR 2.0

struct loss_scale loss_scale_initial(const struct config *config) {
    const bool fixed = config->fp16.loss_scale > 0;
    if (!config_scales_losses(config))
        return (struct loss_scale){0};
    return (struct loss_scale){.scale = fixed ? config->fp16.loss_scale
                                              : ldexp(1.0, (int)config->fp16.initial_scale_power),
                               .hysteresis_left = config->fp16.hysteresis,
                               .last_overflow = -1};
}

double loss_scale_factor(const struct loss_scale *loss_scale) {
    return loss_scale->scale > 0 ? loss_scale->scale : 1.0;
}

static enum status too_many_skips(const struct loss_scale *loss_scale, const struct config *config,
                                  int64_t step) {
    bool dynamic = config->fp16.loss_scale == 0;
    int64_t last_good = step + 1 - loss_scale->consecutive;
    char diverged[160] = "";
    if (last_good > 0)
        snprintf(diverged, sizeof diverged,
                 "; if the run has diverged, resume from a checkpoint of step %lld or earlier with "
                 "checkpoint.resume=PATH, or lower optimizer.lr",
                 (long long)last_good);
    return FAIL(
        STATUS_FAILED,
        "step %lld: %lld steps in a row were skipped because the gradients overflow at the %s loss scale "
        "of %g; the model no longer learns. If the scale is too high, "
        "start a new run with %s%s",
        (long long)step + 1, (long long)loss_scale->consecutive, dynamic ? "dynamic" : "fixed",
        loss_scale->scale,
        dynamic ? "a lower fp16.initial_scale_power" : "a lower fp16.loss_scale, or 0 (dynamic)", diverged);
}

static enum status below_minimum(const struct config *config, int64_t step) {
    return FAIL(STATUS_FAILED,
                "step %lld: the gradients overflow although the loss scale is at fp16.min_loss_scale %g; the "
                "run has diverged. Resume from an earlier checkpoint with checkpoint.resume=PATH, or lower "
                "optimizer.lr",
                (long long)step + 1, config->fp16.min_loss_scale);
}

static enum status shrink(struct loss_scale *loss_scale, const struct config *config, int64_t step) {
    const double minimum = config->fp16.min_loss_scale;
    loss_scale->last_overflow = step;
    if (loss_scale->hysteresis_left > 1) {
        loss_scale->hysteresis_left--;
        return STATUS_OK;
    }
    if (loss_scale->scale <= minimum)
        return below_minimum(config, step);
    loss_scale->scale = fmax(loss_scale->scale / SCALE_FACTOR, minimum);
    return STATUS_OK;
}

enum status loss_scale_update(struct loss_scale *loss_scale, const struct config *config, int64_t step,
                              bool overflow) {
    loss_scale->skipped += overflow;
    loss_scale->consecutive = overflow ? loss_scale->consecutive + 1 : 0;
    if (loss_scale->scale == 0)
        return STATUS_OK;
    if (loss_scale->consecutive >= LOSS_SCALE_MOST_SKIPS)
        return too_many_skips(loss_scale, config, step);
    if (config->fp16.loss_scale > 0)
        return STATUS_OK;
    if (overflow)
        return shrink(loss_scale, config, step);
    if ((step - loss_scale->last_overflow) % config->fp16.loss_scale_window == 0) {
        loss_scale->hysteresis_left = config->fp16.hysteresis;
        loss_scale->scale *= SCALE_FACTOR;
    }
    return STATUS_OK;
}
