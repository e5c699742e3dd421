// The hooks of weights that are not sharded: all units are contiguous on the device. For inference,
// benchmarks and tests.
#ifndef ZERO_MODEL_UNSHARDED_H
#define ZERO_MODEL_UNSHARDED_H

#include "model/hooks.h"

struct unsharded {
    const struct params *params;
    enum dtype type, grad_type; // of `weights` and `grads`
    const void *weights;        // (params->n_elements), on the device
    void *grads;                // (params->n_elements), or NULL: no backward passes
};

// Hooks that only give out addresses: nothing is copied, and gradients are always added to. `unsharded` must
// outlive them; its pointers may be set later, before the first pass.
struct unit_hooks unsharded_hooks(struct unsharded *unsharded);

#endif
