// The part of an optimizer update that all backends share, so that they agree bit for bit: the decision
// whether to update (kernels/ops.h: update_decide), the division of optimizer_spans into single spans, and
// the constants of a step. C, C++ and CUDA sources can include this file.
#ifndef ZERO_KERNELS_UPDATE_H
#define ZERO_KERNELS_UPDATE_H

#include <math.h>

#include "kernels/moments.h"
#include "kernels/ops.h"

#ifndef UPDATE_FUNCTION
#    define UPDATE_FUNCTION static inline
#endif

#define UPDATE_MOST_DEPTH 32 // maximum depth of the summation tree over logical ranks

// Returns the squares in a rank's sums (update_decide_args.sums); the losses follow them.
UPDATE_FUNCTION const int64_t *update_squares_of(const void *sums, int n_losses, int rank) {
    return (const int64_t *)sums + (size_t)rank * ((size_t)EXACT_WORDS + (size_t)n_losses);
}

// Sums the losses of all logical ranks along the tree of zero/comm/sum_tree.h. `partial` holds the sums of
// complete subtrees, each smaller than the one before.
UPDATE_FUNCTION double update_sum_losses(const void *sums, int ranks, int n_losses) {
    double partial[UPDATE_MOST_DEPTH] = {0};
    int depth = 0;
    for (int i = 0; i < ranks * n_losses; i++) {
        double sum =
            ((const double *)(update_squares_of(sums, n_losses, i % ranks) + EXACT_WORDS))[i / ranks];
        for (int filled = i; filled % 2 == 1; filled /= 2)
            sum = partial[--depth] + sum;
        partial[depth++] = sum;
    }
    while (depth > 1) {
        partial[depth - 2] += partial[depth - 1];
        depth--;
    }
    return partial[0];
}

// Returns the norm of the scaled gradients of all ranks.
UPDATE_FUNCTION double update_norm(const void *sums, int ranks, int n_losses) {
    int64_t squares[EXACT_WORDS] = {0};
    for (int rank = 0; rank < ranks; rank++)
        for (int i = 0; i < EXACT_WORDS; i++)
            squares[i] += update_squares_of(sums, n_losses, rank)[i];
    return sqrt(exact_value(squares));
}

// Decides an update from the sum of the losses and the norm of the gradients of all ranks.
//   max_norm      maximum gradient norm; 0: no clipping
//   scaled_norm   norm of the gradients before loss_scale is divided out
UPDATE_FUNCTION struct update_result update_result_of(const struct update_plan *plan, double max_norm,
                                                      double loss_sum, double scaled_norm) {
    struct update_result result;
    result.loss_sum = loss_sum;
    result.norm = scaled_norm / plan->loss_scale;
    const double bound = result.norm + 1e-6;
    const double clipping = max_norm > 0 && max_norm < bound ? max_norm / bound : 1;
    result.grad_scale = (float)(clipping / plan->loss_scale);
    result.skipped = UPDATE_DONE;
    // x - x is 0 for finite x, NaN otherwise.
    if (loss_sum - loss_sum != 0 || result.norm - result.norm != 0)
        result.skipped = UPDATE_NOT_FINITE;
    else if ((plan->most_loss_sum > 0 && loss_sum > plan->most_loss_sum) ||
             (plan->most_norm > 0 && result.norm > plan->most_norm))
        result.skipped = UPDATE_SPIKE;
    return result;
}

UPDATE_FUNCTION struct update_result update_decision(const struct update_decide_args *args) {
    struct update_result result = update_result_of(args->plan, args->max_norm,
                                                   update_sum_losses(args->sums, args->ranks, args->n_losses),
                                                   update_norm(args->sums, args->ranks, args->n_losses));
    if (args->plan->is_ahead && args->result->skipped)
        result.skipped = args->result->skipped;
    return result;
}

// The optimizer_step arguments of span i, for backends that update one span at a time.
static inline struct optimizer_step_args optimizer_span_step(const struct optimizer_spans_args *args, int i) {
    const struct optimizer_span *span = &args->spans[i];
    struct optimizer_step_args step;
    step.rule = args->rule;
    step.state = span->state;
    step.param = span->param;
    step.grad = span->grad;
    step.n = span->n;
    step.first = span->first;
    step.step = args->plan->step;
    step.lr = args->plan->lr * span->lr_scale;
    step.beta1 = args->beta1;
    step.beta2 = args->beta2;
    step.epsilon = args->epsilon;
    step.weight_decay = span->weight_decay;
    step.average_weight = args->plan->average_weight;
    step.grad_scale = args->result->grad_scale;
    step.type = args->type;
    step.grad_type = args->grad_type;
    step.state_type = args->state_type;
    return step;
}

// ---- the constants of an optimizer step

// The constants of an optimizer step, which do not depend on the element. Computed once per call, in double,
// and rounded to float.
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

// True if the step reads m. False on the first step of SGD and schedule-free AdamW, which has no previous
// m, and for SGD without momentum.
static inline bool optimizer_reads_moments(const struct optimizer_step_args *args) {
    if (args->rule == OPTIMIZER_SCHEDULE_FREE)
        return args->step > 1;
    return args->rule != OPTIMIZER_SGD || (args->state.m && args->step > 1);
}

#endif
