// The optimizer step: global norm, clipping, and the update of the spans that this rank updates, on the
// device or on the host (zero/offload/placement.h).
#ifndef ZERO_ZERO_STAGES_OPTIMIZER_H
#define ZERO_ZERO_STAGES_OPTIMIZER_H

#include "zero/offload/speculation.h"
#include "zero/stages/model_states.h"

// What all calls of a step have in common.
struct optimizer_call {
    int64_t step; // from 1
    double lr;
    float grad_scale;
    int from, to; // copies of the host's states that are read and written
};

struct optimizer {
    const struct config *config;
    struct model_states *state;
    bool adafactor; // else `rule`
    enum optimizer_rule rule;
    struct speculation *speculation; // NULL: the host updates once the norm is known
    struct optimizer_call expected;  // what the speculative step assumes
    bool stepped_ahead;              // the last update used the speculative step
};

void optimizer_init(struct optimizer *optimizer, const struct config *config, struct model_states *state);
enum status optimizer_bind(struct optimizer *optimizer) MUST_CHECK; // after model_states_bind
void optimizer_free(struct optimizer *optimizer);                   // before model_states_free

// Call before a step's first micro-batch: the update that will happen if gradients neither overflow nor are
// clipped. With offload_optimizer.speculative the host computes it while gradients arrive.
void optimizer_expect(struct optimizer *optimizer, int64_t step, double lr, double loss_scale);

// The global norm of the gradients, in double, before unscaling: if losses were scaled, so is the norm. The
// bits are the same on every rank and in every stage. It is a pass of its own, with or without clipping,
// because no state may change (except speculatively) before gradients are known to be finite.
enum status optimizer_norm(struct optimizer *optimizer, struct stream *stream, double *norm) MUST_CHECK;
// Updates the spans of this rank and makes the new parameters visible to every rank. Gradients are divided by
// loss_scale and multiplied by min(1, clip / (norm + 1e-6)), as by torch.nn.utils.clip_grad_norm_. Weight
// decay applies to tensors of two or more dimensions. A speculative step is accepted if it assumed exactly
// this update; otherwise the host repeats the step from the states before it, which are still there.
//   step         counts updates, from 1
//   norm         of the gradients divided by loss_scale
enum status optimizer_update(struct optimizer *optimizer, struct stream *stream, int64_t step, double lr,
                             double norm, double loss_scale) MUST_CHECK;
// Call instead of optimizer_update to skip a step. Discards the speculative step.
enum status optimizer_skip(struct optimizer *optimizer, struct stream *stream) MUST_CHECK;

#endif
