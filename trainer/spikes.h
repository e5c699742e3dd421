// Steps that diverge: spikes of the loss and of the gradient norm, by which they are noticed, the first
// tensor that is not finite, and what train.on_spike does about them.
#ifndef ZERO_TRAINER_SPIKES_H
#define ZERO_TRAINER_SPIKES_H

#include <stdbool.h>

#include "model/gpt.h"
#include "options/config.h"
#include "trainer/run.h"
#include "trainer/training_data.h"
#include "zero/checkpoint/run_state.h"
#include "zero/optimizer/rules/optimizer_groups.h"

// ---- spikes

// A figure is a spike if it is above median + k * max(1.4826 MAD, f median), where median and MAD (the median
// of the absolute deviations) are over the figures of the last train.spike_window steps, k is
// train.spike_threshold, and f is SPIKE_FLOOR_LOSS or SPIKE_FLOOR_NORM: a run whose figures hardly vary has
// no spikes of a few percent. 1.4826 MAD estimates a standard deviation that outliers do not change.
//
// The step before the one that is judged is not in the window. So where the device decides (kernels/ops.h:
// update_decide), the host can issue a step before it knows how the one before ended, and the limits are the
// same wherever the decision is made. All ranks know the same figures to the bit, and decide alike.

#define SPIKE_FEWEST     20 // steps in the window, before which nothing is a spike
#define SPIKE_FLOOR_LOSS 0.01
#define SPIKE_FLOOR_NORM 0.1

struct spike_limits {
    double median_loss, median_norm;
    double loss, norm; // above them is a spike; 0: no limit
    int n_steps;       // that the medians are over: train.spike_window, or fewer at first
};

// The limits of the next step. No limits with train.on_spike=off, train.spike_threshold=0, and while the
// window has fewer than SPIKE_FEWEST steps.
//   is_ahead   the step before it is not finished; else it is the newest one of the record
struct spike_limits spikes_limits(const struct config *config, const struct spike_record *record,
                                  bool is_ahead);
// Takes up how a step ended. NULL: it does not count, as it was skipped; NaN has no place in a window.
void spikes_add(const struct config *config, struct spike_record *record,
                const struct spike_figures *figures);

// ---- the first tensor that is not finite

// Finds the first tensor of a training pass that is not finite. The pass is run again; after each operation
// its parameters, its result and its gradients are copied to the host and read. For a run whose loss or
// gradient norm is not finite: slow, and done once.

// What was found. Has no pointers, so that ranks can exchange it.
struct finding {
    bool is_found;
    int64_t n_operations; // before the one that was found
    char what[160];       // "the output of h.3.mlp.c_fc, in the forward pass"
};

// gpt_train of the micro-batch that gpt_load brought, on a device that nothing else uses meanwhile. Gradients
// of frozen tensors, which nothing uses, are not looked at.
//   found   [in, out] kept if it is found already
enum status finding_train(struct gpt *gpt, const struct params *params, struct device *device,
                          struct stream *stream, const struct unit_hooks *hooks, const struct gpt_loss *loss,
                          struct finding *found) MUST_CHECK;

// ---- a step that diverged

// Its loss or its norm spiked, or is not finite. Its update was skipped, but for a spike with
// train.on_spike=warn.
struct diverged_step {
    int64_t step, batch_size; // from 1; sequences, over all ranks
    int64_t tokens_before;    // that the run was trained on before it
    double loss, grad_norm;
    float loss_factor;          // that its gradients were scaled by
    struct spike_limits limits; // that it was judged by
};
// Names the step and its data, and does what train.on_spike says. All ranks know the same losses and norms to
// the bit, and come to the same end. Collective.
enum status spikes_handle(struct run *run, const struct training_data *data,
                          const struct diverged_step *step) MUST_CHECK;
// At the end of a run: logs how often it diverged, if it did.
void spikes_log(const struct spike_record *spikes);

#endif
