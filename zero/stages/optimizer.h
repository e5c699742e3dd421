// One optimizer step over the model states: the global norm, clipping, and the update of the parts that this
// rank updates, by the device or by the host.
#ifndef ZERO_ZERO_STAGES_OPTIMIZER_H
#define ZERO_ZERO_STAGES_OPTIMIZER_H

#include "zero/offload/speculation.h"
#include "zero/stages/model_states.h"

// What all calls of a step share.
struct optimizer_call {
    int64_t step; // from 1
    double lr;
    float grad_scale;
    int from, to; // copies of the host's state
};

struct optimizer {
    const struct config *config;
    struct model_states *state;
    bool adafactor; // else it goes by `rule`
    enum optimizer_rule rule;
    struct speculation *speculation; // NULL: the host steps when the norm is known
    struct optimizer_call expected;  // what it steps by
    bool stepped_ahead;              // the last step was as expected: what the host had stepped counted
};

void optimizer_init(struct optimizer *optimizer, const struct config *config, struct model_states *state);
enum status optimizer_bind(struct optimizer *optimizer) MUST_CHECK; // once the state is bound
void optimizer_free(struct optimizer *optimizer);                   // before the state is

// Before a step's gradients: what it will be if it neither clips nor overflows. The host may step by it while
// they are made (offload_optimizer.speculative).
void optimizer_expect(struct optimizer *optimizer, int64_t step, double lr, double loss_scale);

// The global norm of the gradients as they are, scaled if the losses were, in double. The same bits on every
// rank and in every stage. A pass of its own, with clipping or without: nothing of the state may change
// before gradients are known to be finite, unless it can be undone (speculative).
enum status optimizer_norm(struct optimizer *optimizer, struct stream *stream, double *norm) MUST_CHECK;
// Updates the weights of this rank's parts and lets every rank see them. step counts updates from 1.
// Gradients are first divided by loss_scale and multiplied by min(1, clip / (norm + 1e-6)), as
// torch.nn.utils.clip_grad_norm_ does; norm: of the gradients so divided. Weight decay applies to tensors of
// two or more dimensions. What the host stepped ahead counts if this is what was expected, else it is undone:
// the state before it still stands, and is stepped from again.
enum status optimizer_update(struct optimizer *optimizer, struct stream *stream, int64_t step, double lr,
                             double norm, double loss_scale) MUST_CHECK;
// In place of an update: the step is skipped, and what the host stepped ahead does not count.
enum status optimizer_skip(struct optimizer *optimizer, struct stream *stream) MUST_CHECK;

#endif
