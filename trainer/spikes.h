// Steps that diverge: how spikes of the loss and of the gradient norm are detected, how the first tensor that
// is not finite is found, and the actions of train.on_spike.
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

// A figure (loss or norm) is a spike if it is above median + k * max(1.4826 MAD, f median). Median and MAD
// (the median of the absolute deviations) are over the last train.spike_window steps, k is
// train.spike_threshold, and f is SPIKE_FLOOR_LOSS or SPIKE_FLOOR_NORM: in a run whose figures hardly vary, a
// few percent are not a spike. 1.4826 MAD is an estimate of the standard deviation that outliers hardly
// affect.
//
// The window leaves out the step just before the judged step. So where the device decides whether an update
// happens (kernels/ops.h: update_decide), the host can issue a step before it knows the result of the
// previous one. The limits are the same where the host decides. The figures are bitwise equal on all ranks,
// so all ranks come to the same decision.

#define SPIKE_FEWEST     20 // with fewer steps in the window, nothing is a spike
#define SPIKE_FLOOR_LOSS 0.01
#define SPIKE_FLOOR_NORM 0.1

struct spike_limits {
    double median_loss, median_norm;
    double loss, norm; // figures above these are spikes; 0: no limit
    int n_steps;       // number of steps in the medians: train.spike_window, or fewer at first
};

// The limits of the next step. There are none with train.on_spike=off, with train.spike_threshold=0, and
// while the window has fewer than SPIKE_FEWEST steps.
//   is_ahead   true: the previous step is not finished yet, so record->newest is an earlier step and counts.
//              false: record->newest is the previous step, and is left out
struct spike_limits spikes_limits(const struct config *config, const struct spike_record *record,
                                  bool is_ahead);
// Adds the figures of a finished step to the record. Pass NULL for a skipped step: its figures are left out,
// because the window must not contain NaN.
void spikes_add(const struct config *config, struct spike_record *record,
                const struct spike_figures *figures);

// ---- the first tensor that is not finite

// Finds the first tensor of a training pass that is not finite. The pass is run again. After each operation
// its parameters, inputs, outputs and gradients are copied to the host and checked. This is slow, and only
// done for a step whose loss or gradient norm is not finite.

// The result of the search. Has no pointers, so that ranks can exchange it.
struct finding {
    bool is_found;
    int64_t n_operations; // number of operations that were checked before the one with the first such tensor
    char what[160];       // "the output of h.3.mlp.c_fc, in the forward pass"
};

// Runs gpt_train on the micro-batch that gpt_load loaded, and checks its tensors, except gradients of frozen
// ones. Nothing else may use the device meanwhile.
//   found   [in, out] unchanged if it holds the result of an earlier micro-batch
enum status finding_train(struct gpt *gpt, const struct params *params, struct device *device,
                          struct stream *stream, const struct unit_hooks *hooks, const struct gpt_loss *loss,
                          struct finding *found) MUST_CHECK;

// ---- a step that diverged

// A step whose loss or norm spiked or is not finite. Its update was skipped, except for a spike with
// train.on_spike=warn.
struct diverged_step {
    int64_t step;          // from 1
    int64_t batch_size;    // sequences, over all ranks
    int64_t tokens_before; // tokens that the run was trained on before the step
    double loss, grad_norm;
    float loss_factor;          // factor of the step's losses and gradients (struct update_plan)
    struct spike_limits limits; // above these, its loss or gradient norm is a spike
};
// Logs the step and its data, and does what train.on_spike asks for. Losses and norms are bitwise equal on
// all ranks, so the ranks decide alike. Collective.
enum status spikes_handle(struct run *run, const struct training_data *data,
                          const struct diverged_step *step) MUST_CHECK;
// Logs at the end of a run how many steps diverged, if any did.
void spikes_log(const struct spike_record *spikes);

#endif
