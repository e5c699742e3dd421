// The sum of squares of a rank's gradients of one micro-batch, for the gradient noise scale
// (trainer/schedule.h). The gradients are read when the model reports that they are ready, before they are
// reduced. Squares are added tensor by tensor, so the bits are the same in every stage.
#ifndef ZERO_ZERO_OPTIMIZER_NOISE_PROBE_H
#define ZERO_ZERO_OPTIMIZER_NOISE_PROBE_H

#include "model/hooks.h"
#include "zero/optimizer/rules/optimizer_groups.h"

// The number of doubles of device memory that a probe needs.
size_t noise_probe_elements(const struct params *params);

struct noise_probe {
    const struct params *params;
    const struct unit_hooks *hooks; // the stage's hooks, which the probe's hooks call
    double *sums;                   // on the device: a sum of squares per tensor, their total, then scratch
    void *const *unit_grads;        // gradients of the unit, other than unit 0, that backward acquired last
    void *const *embedding_grads;   // gradients of unit 0
};

// Returns the hooks for a pass that the probe measures: they sum the squares, and call the stage's hooks.
// Only for a micro-batch whose gradients are not added to earlier ones.
struct unit_hooks noise_probe_hooks(struct noise_probe *probe);
// Call it after the pass. Sets *sum to the sum of the squares of all gradients. Waits for `stream`.
enum status noise_probe_finish(struct noise_probe *probe, struct stream *stream, double *sum) MUST_CHECK;

#endif
