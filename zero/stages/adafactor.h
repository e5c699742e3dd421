// Adafactor's step over the model states (Shazeer and Stern, arXiv 1804.04235; as torch.optim.Adafactor has
// it: kernels/adafactor.h). It needs sums over whole tensors, of which a rank has stretches: each rank, and
// on it the device and the host, sums its own, and the ranks add up in two all-reduces a step, of all sums by
// row and column and of all norms. Sums are exact in any order (kernels/exact_sum.h): every stage, partition,
// number of ranks that share a tensor, and place of the optimizer's state gives the same bits. In stage 0
// every rank has all gradients, and sums them itself.
#ifndef ZERO_ZERO_STAGES_ADAFACTOR_H
#define ZERO_ZERO_STAGES_ADAFACTOR_H

#include "zero/stages/model_states.h"

struct adafactor_call {
    const struct config *config;
    int64_t step; // from 1
    double lr;
    double norm; // global, of the gradients times grad_scale
    float grad_scale;
};

// Updates the master weights of this rank's parts, and their parameters; those of the host's parts are on
// their way to the device when it returns.
enum status adafactor_update(struct model_states *state, struct stream *stream,
                             const struct adafactor_call *call) MUST_CHECK;
// A step that is skipped: sends what the plan says of every step, and changes nothing.
enum status adafactor_skip(struct model_states *state) MUST_CHECK;

// What a rank sends in a step beside what every optimizer sends.
void adafactor_traffic(const struct model_states *state, uint64_t *bytes, uint64_t *calls);

#endif
