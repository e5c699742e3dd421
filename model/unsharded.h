// Hooks for weights that are not sharded: all units are in the device's memory, one after another. For
// inference, benchmarks and tests.
#ifndef ZERO_MODEL_UNSHARDED_H
#define ZERO_MODEL_UNSHARDED_H

#include "model/hooks.h"

struct unsharded {
    const struct params *params;
    void **weights, **grads; // (n_params) the tensors' addresses; grads NULL: no backward passes
};

// Lists the addresses of all tensors.
//   weights  (params_memory) elements of `type`, on the device
//   grads    (params_grad_memory) elements of `grad_type`, on the device; NULL: no backward passes
void unsharded_init(struct unsharded *unsharded, const struct params *params, enum dtype type,
                    const void *weights, enum dtype grad_type, void *grads);
void unsharded_free(struct unsharded *unsharded);
// Returns hooks that only give addresses: nothing is copied, and gradients are always added to (beta_zero
// is false). `unsharded` must outlive the hooks. It may be initialized after this call, but before the
// first pass.
struct unit_hooks unsharded_hooks(struct unsharded *unsharded);

#endif
