// The figures that change over the steps of a run: the learning rate, the batch size, the noise scale by
// which the batch may grow, and the weight of each update in the average of the weights. They depend only on
// the step, the config and the records in checkpoints, so a resumed run repeats them. Steps count from 0.
#ifndef ZERO_TRAINER_SCHEDULE_H
#define ZERO_TRAINER_SCHEDULE_H

#include <stdint.h>

#include "options/config.h"
#include "zero/checkpoint/run_state.h"

// ---- the learning rate

// Returns the number of warm-up steps of a schedule of `steps` steps: `warmup` or, if that is longer than the
// schedule, a tenth of the schedule but at least one step. With steps == 0 (a run without steps): `warmup`.
//
// As `warmup`, a run first passes scheduler.warmup_steps. When its length changes, it passes the result of
// the previous call. So the warm-up can only become shorter, and a run that becomes longer does not warm up
// again.
int64_t schedule_warmup_of(int64_t warmup, int64_t steps);

// Returns the learning rate of step `step` (from 0). With peak = optimizer.lr, the warm-up over W = `warmup`
// steps is linear: peak (step + 1) / W. Afterwards, with p going from 0 at the end of the warm-up to 1 at the
// last step of the schedule, and r = min_lr_ratio:
//   constant              peak
//   cosine                peak (r + (1 - r) (1 + cos(pi p)) / 2)
//   linear                peak (1 - (1 - r) p)
//   warmup-stable-decay   peak until the last part (decay_ratio times the schedule's length), then linear
//   down
//                         to r peak
// After the schedule, the learning rate stays at its last value.
double schedule_lr(const struct config *config, int64_t warmup, int64_t step);

// With train.max_minutes (trainer/pacing.h): returns p of the formulas above at step `step` (from 0). p is
// decision->position at the last step before the decision, and grows linearly to 1 at the run's last step.
// During the warm-up it is 0; if the decision is made then, p grows from the end of the warm-up.
double schedule_position(int64_t warmup, const struct pacing_decision *decision, int64_t step);
// With train.max_minutes: returns the learning rate of step `step`, by the formulas above with p of
// schedule_position. warmup-stable-decay decays for p > 1 - decay_ratio.
double schedule_lr_paced(const struct config *config, int64_t warmup, const struct pacing_decision *decision,
                         int64_t step);

// ---- batch sizes

// Batch sizes in sequences over all ranks (train.batch_size_schedule).
struct batch_sizes {
    int64_t first; // batch size before the first stage
    struct config_stages stages;
};

struct batch_sizes batch_sizes_of(const struct config *config); // the config must be resolved

int64_t batch_sizes_at(const struct batch_sizes *sizes, int64_t step);
// The number of sequences in the steps before `step`.
uint64_t batch_sizes_before(const struct batch_sizes *sizes, int64_t step);
// The number of sequences in the steps [from, to), as a multiple of the batch size of step `unit`.
double batch_sizes_work(const struct batch_sizes *sizes, int64_t from, int64_t to, int64_t unit);
// The largest `to` such that batch_sizes_work(sizes, from, to, unit) is at most `work`; at most `most`.
int64_t batch_sizes_reach(const struct batch_sizes *sizes, int64_t from, double work, int64_t unit,
                          int64_t most);

// ---- the gradient noise scale

// The gradient noise scale B_simple = tr(Sigma) / |G|^2 (McCandlish et al., arXiv 1812.06162, appendix A):
// about the batch size, in sequences, up to which doubling the batch nearly doubles the progress of a step.
//
// It is estimated from the squared norms of a step's gradients at two batch sizes, b and B:
//   b   a micro-batch: |G_b|^2 is the mean over the ranks' first micro-batches (zero/optimizer/noise_probe.h)
//   B   the whole step: |G_B|^2 is the square of its gradient norm
//
//   |G|^2 ~ (B |G_B|^2 - b |G_b|^2) / (B - b)      tr(Sigma) ~ (|G_b|^2 - |G_B|^2) / (1 / b - 1 / B)
//
// Both estimates are noisy, so the noise scale is the ratio of their moving averages.

#define NOISE_DECAY    0.9 // factor of the old moving averages at each measurement
#define NOISE_PATIENCE 5   // number of measurements before the batch first grows, and before it grows again

// Adds a measurement to the moving averages.
//   small, large     |G_b|^2 and |G_B|^2 of mean gradients
//   n_small, n_large b and B in sequences, n_small < n_large
void noise_record_add(struct noise_record *record, double small, double n_small, double large,
                      double n_large);
// The noise scale in sequences. NAN before the first measurement, and while the estimate of |G|^2 is not
// positive.
double noise_scale(const struct noise_record *record);
// Whether the batch should double: there are NOISE_PATIENCE measurements since the batch last grew, and twice
// its size is at most `most` and at most the noise scale.
bool noise_wants_more(const struct noise_record *record, int64_t batch_size, int64_t most);

// ---- the average of the weights

// Two options average the weights: train.ema, and schedule-free AdamW (arXiv 2405.15682). The latter weights
// each update by the square of the largest learning rate so far.

// The weight with which an update enters the average (zero/optimizer/averaging.h); 0: there is no average.
//   lr       learning rate of the update
//   record   [in, out] the average's record, to which the update is added
float averaging_next(const struct config *config, double lr, struct average_record *record);
// Returns the record for a run that resumes from a checkpoint: the checkpoint's record, or an empty one if
// the run has no average or begins a new one.
//   has_average   true if the checkpoint contains the averaged weights
struct average_record averaging_resumed(const struct config *config, const struct average_record *record,
                                        bool has_average);

#endif
