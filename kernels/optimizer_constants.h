// What of an optimizer step does not depend on the element: computed once a call, in double, and rounded to
// the float that every element then uses. One place for all backends, whose steps agree to the bit. Valid in
// C and in C++.
#ifndef ZERO_KERNELS_OPTIMIZER_CONSTANTS_H
#define ZERO_KERNELS_OPTIMIZER_CONSTANTS_H

#include <math.h>

#include "kernels/ops.h"

// The moments move towards their targets, m += (1 - beta) (g - m): beta itself, rounded to float, would move
// the small factor 1 - beta by far more than a rounding.
struct adamw_constants {
    float take1, take2;   // 1 - beta1, 1 - beta2
    float step_size;      // lr / (1 - beta1^step)
    float root_scale;     // 1 / sqrt(1 - beta2^step)
    float epsilon, decay; // decay: lr * weight_decay
};

static inline struct adamw_constants adamw_constants_of(const struct adamw_args *args) {
    double step = (double)args->step;
    struct adamw_constants constants;
    constants.take1 = (float)(1.0 - args->beta1);
    constants.take2 = (float)(1.0 - args->beta2);
    constants.step_size = (float)(args->lr / (1.0 - pow(args->beta1, step)));
    constants.root_scale = (float)(1.0 / sqrt(1.0 - pow(args->beta2, step)));
    constants.epsilon = (float)args->epsilon;
    constants.decay = (float)(args->lr * args->weight_decay);
    return constants;
}

struct sgd_constants {
    float lr, momentum, decay;
};

static inline struct sgd_constants sgd_constants_of(const struct sgd_args *args) {
    struct sgd_constants constants;
    constants.lr = (float)args->lr;
    constants.momentum = (float)args->momentum;
    constants.decay = (float)args->weight_decay;
    return constants;
}

#endif
