// The constants of an optimizer step that do not depend on the element: computed once per call, in double,
// and rounded to float. All backends share this file, since their steps agree to the bit. Valid in C and C++.
#ifndef ZERO_KERNELS_OPTIMIZER_CONSTANTS_H
#define ZERO_KERNELS_OPTIMIZER_CONSTANTS_H

#include <math.h>

#include "kernels/moments.h"
#include "kernels/ops.h"

static inline struct optimizer_constants optimizer_constants_of(const struct optimizer_step_args *args) {
    double step = (double)args->step;
    struct optimizer_constants constants;
    constants.take1 = (float)(1.0 - args->beta1);
    constants.take2 = (float)(1.0 - args->beta2);
    constants.momentum = (float)args->beta1;
    constants.lr = (float)args->lr;
    constants.step_size = (float)(args->lr / (1.0 - pow(args->beta1, step)));
    constants.root_scale = (float)(1.0 / sqrt(1.0 - pow(args->beta2, step)));
    constants.epsilon = (float)args->epsilon;
    constants.decay = (float)(args->lr * args->weight_decay);
    constants.coupled_decay = (float)args->weight_decay;
    constants.noise_key = moment_noise_key(args->step);
    return constants;
}

// The weight of z in x = y + weight (z - y), schedule-free AdamW's average of the weights.
static inline float schedule_free_weight(double beta1) {
    return (float)(1.0 - 1.0 / beta1);
}

// False on the first step of SGD and schedule-free AdamW, which has no previous m, and for SGD without
// momentum.
static inline bool optimizer_reads_moments(const struct optimizer_step_args *args) {
    if (args->rule == OPTIMIZER_SCHEDULE_FREE)
        return args->step > 1;
    return args->rule != OPTIMIZER_SGD || (args->from.m && args->step > 1);
}

#endif
