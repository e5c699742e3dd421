// Adafactor over the model states (Shazeer and Stern, arXiv 1804.04235; the variant of torch.optim.Adafactor,
// see kernels/adafactor.h). It needs sums over whole tensors, of which a rank has spans. Each rank sums its
// own spans, on the device and on the host, and two all-reduces per step add these over ranks: one of row and
// column sums of squares, one of update norms. In stage 0 every rank has all gradients and sums them alone.
//
// Determinism: sums are exact in any order (kernels/exact_sum.h), so the bits are the same for every stage,
// partition, number of ranks and placement.
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

// Updates the master weights and parameters of the spans that this rank updates. Parameters of the host's
// spans may still be on their way to the device when it returns (offload_params_wait).
enum status adafactor_update(struct model_states *state, struct stream *stream,
                             const struct adafactor_call *call) MUST_CHECK;
// Call instead to skip a step: makes the same all-reduces, so that plans hold for every step, and changes no
// state.
enum status adafactor_skip(struct model_states *state) MUST_CHECK;

// The bytes that this rank sends in these all-reduces per step, and their number.
void adafactor_traffic(const struct model_states *state, uint64_t *bytes, uint64_t *calls);

#endif
