// Finds the first tensor of a training pass that is not finite. The pass is run again; after each operation
// its parameters, its result and its gradients are copied to the host and read. For a run whose loss or
// gradient norm is not finite: slow, and done once.
#ifndef ZERO_TRAINER_SPIKES_FINDING_H
#define ZERO_TRAINER_SPIKES_FINDING_H

#include <stdbool.h>

#include "model/gpt.h"
#include "zero/partition/optimizer_groups.h"

// What was found. Has no pointers, so that ranks can exchange it.
struct finding {
    bool is_found;
    int64_t n_operations; // before the one that was found
    char what[160];       // "the output of h.3.mlp.c_fc, in the forward pass"
};

// gpt_train of the micro-batch that gpt_load brought, on a device that nothing else uses meanwhile. Gradients
// of frozen tensors, which nothing uses, are not looked at.
//   found   [in, out] kept if it is found already
enum status finding_train(struct gpt *gpt, const struct params *params, const struct optimizer_groups *groups,
                          struct device *device, struct stream *stream, const struct unit_hooks *hooks,
                          const struct gpt_loss *loss, struct finding *found) MUST_CHECK;

#endif
