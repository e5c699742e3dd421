// The figures that change over the steps of a run: the learning rate, the batch size, the noise scale by
// which it may grow, and the weights of updates in an average. Pure functions of the step, the config and the
// records in checkpoints, so that a resumed run repeats them. Steps count from 0.
#ifndef ZERO_TRAINER_SCHEDULE_H
#define ZERO_TRAINER_SCHEDULE_H

#include <stdint.h>

#include "options/config.h"
#include "zero/checkpoint/run_state.h"

// ---- the learning rate

// The warm-up steps of a schedule of `steps` (0: a run without steps): `warmup`, or if that is longer than
// the schedule, a tenth of the schedule and at least one step. It is decided when a run begins, from
// scheduler.warmup_steps, and kept when the run becomes longer: a finished warm-up does not return. Each
// decision on the length starts from the warm-up of the previous decision, so the warm-up can only become
// shorter.
int64_t schedule_warmup_of(int64_t warmup, int64_t steps);

// Learning rate of step `step` (from 0). Warm-up over W = `warmup` steps is linear: peak (step + 1) / W.
// Afterwards, with p going from 0 at the end of the warm-up to 1 at the last step of the schedule, and r =
// min_lr_ratio:
//   constant              peak
//   cosine                peak (r + (1 - r) (1 + cos(pi p)) / 2)
//   linear                peak (1 - (1 - r) p)
//   warmup-stable-decay   peak; over the last decay_ratio of the schedule, linear down to r times the peak
// After the schedule the rate is constant.
double schedule_lr(const struct config *config, int64_t warmup, int64_t step);

// With train.max_minutes (trainer/pacing.h): p (as above) of step `step`, counted from 0, by the last
// decision. From its position at the last step before the decision, p moves to 1 in equal steps.
double schedule_position(int64_t warmup, const struct pacing_decision *decision, int64_t step);
// The rate at that position, for the same shapes; warmup-stable-decay decays from p = 1 - decay_ratio on.
double schedule_lr_paced(const struct config *config, int64_t warmup, const struct pacing_decision *decision,
                         int64_t step);

// ---- batch sizes

// Batch sizes in sequences over all ranks (train.batch_size_schedule).
struct batch_sizes {
    int64_t first; // before the first stage
    struct config_stages stages;
};

struct batch_sizes batch_sizes_of(const struct config *config); // the config must be resolved

int64_t batch_sizes_at(const struct batch_sizes *sizes, int64_t step);
// The number of sequences in the steps before `step`.
uint64_t batch_sizes_before(const struct batch_sizes *sizes, int64_t step);
// The work of the steps [from, to), as a multiple of that of step `unit`.
double batch_sizes_work(const struct batch_sizes *sizes, int64_t from, int64_t to, int64_t unit);
// The largest `to` such that the steps [from, to) take at most `work` steps like `unit`; at most `most`.
int64_t batch_sizes_reach(const struct batch_sizes *sizes, int64_t from, double work, int64_t unit,
                          int64_t most);

// ---- the gradient noise scale

// The gradient noise scale B_simple = tr(Sigma) / |G|^2 (McCandlish et al., arXiv 1812.06162, appendix A):
// about the batch size, in sequences, up to which doubling the batch nearly doubles the progress of a step.
//
// It is estimated from the gradient norms of a step at two batch sizes: with b, the mean of |g|^2 over the
// ranks' first micro-batches; with B, that of the whole step:
//   |G|^2 ~ (B |G_B|^2 - b |G_b|^2) / (B - b)      tr(Sigma) ~ (|G_b|^2 - |G_B|^2) / (1 / b - 1 / B)
// Both estimates are noisy, so the ratio is taken of their moving averages, not of each pair.
// |g|^2 comes from zero/optimizer/noise_probe.h.

#define NOISE_DECAY    0.9 // of the moving averages, per measurement
#define NOISE_PATIENCE 5   // measurements before the batch grows, and before it grows again

// Adds a measurement.
//   small, large     |G_b|^2 and |G_B|^2 of mean gradients
//   n_small, n_large b and B in sequences, n_small < n_large
void noise_record_add(struct noise_record *record, double small, double n_small, double large,
                      double n_large);
// The noise scale in sequences. NAN before the first measurement, and while the estimate of |G|^2 is not
// positive.
double noise_scale(const struct noise_record *record);
// Whether the batch should double: after NOISE_PATIENCE measurements, if twice its size is at most `most` and
// at most the noise scale.
bool noise_wants_more(const struct noise_record *record, int64_t batch_size, int64_t most);

// ---- the average of the weights

// train.ema, and schedule-free AdamW, whose weights are the squares of the largest learning rate so far
// (arXiv 2405.15682).

// The weight with which an update enters the average (zero/optimizer/averaging.h); 0: there is no average.
//   lr       learning rate of the update
//   record   [in, out] before and after the update
float averaging_next(const struct config *config, double lr, struct average_record *record);
// The record for a run that resumes from a checkpoint, whose run may not have averaged.
//   has_average   the checkpoint has the average itself
struct average_record averaging_resumed(const struct config *config, const struct average_record *record,
                                        bool has_average);

#endif
