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
    const struct unit_hooks *hooks; // of the stage
    double *sums;                   // (n_params) sums of squares, then their sum, then scratch; on the device
    void *const *unit_grads;        // gradients of the unit acquired last for backward
    void *const *embedding_grads;   // of unit 0
};

// Returns the hooks for a pass whose gradients are to be summed: those of the stage, with the probe. For a
// micro-batch whose gradients are not added to earlier ones.
struct unit_hooks noise_probe_hooks(struct noise_probe *probe);
// Copies the sum of all squares to host memory, after the pass. Waits.
enum status noise_probe_finish(struct noise_probe *probe, struct stream *stream, double *sum) MUST_CHECK;

#endif
