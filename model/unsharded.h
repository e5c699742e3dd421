// Hooks for weights that are not sharded: all units are contiguous on the device. For inference, benchmarks
// and tests.
#ifndef ZERO_MODEL_UNSHARDED_H
#define ZERO_MODEL_UNSHARDED_H

#include "model/hooks.h"

struct unsharded {
    const struct params *params;
    void **weights, **grads; // (n_params) the tensors' addresses; grads NULL: no backward passes
};

//   weights  (params_memory) of `type`, on the device
//   grads    (params_grad_memory) of `grad_type`, or NULL
void unsharded_init(struct unsharded *unsharded, const struct params *params, enum dtype type,
                    const void *weights, enum dtype grad_type, void *grads);
void unsharded_free(struct unsharded *unsharded);
// Hooks that only return addresses: nothing is copied, and gradients are always accumulated. `unsharded` must
// outlive them; it may be initialized later, before the first pass.
struct unit_hooks unsharded_hooks(struct unsharded *unsharded);

#endif
