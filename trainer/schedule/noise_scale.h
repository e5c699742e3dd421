// The gradient noise scale B_simple = tr(Sigma) / |G|^2 (McCandlish et al., arXiv 1812.06162, appendix A):
// about the batch size, in sequences, up to which twice the batch gains nearly twice the progress of a step.
//
// It is estimated from the norms of a step's gradients with two batch sizes: with b, the mean of |g|^2 over
// the ranks' first micro-batches; with B, the whole step's:
//   |G|^2 ~ (B |G_B|^2 - b |G_b|^2) / (B - b)      tr(Sigma) ~ (|G_b|^2 - |G_B|^2) / (1 / b - 1 / B)
// Both are noisy: their moving averages are divided, not each pair.
// |g|^2 comes from zero/stages/noise_probe.h.
#ifndef ZERO_TRAINER_SCHEDULE_NOISE_SCALE_H
#define ZERO_TRAINER_SCHEDULE_NOISE_SCALE_H

#include "zero/checkpoint/noise_record.h"

#define NOISE_DECAY    0.9 // of the moving averages, per measurement
#define NOISE_PATIENCE 5   // measurements before the batch grows, and before it grows again

// Takes up a measurement.
//   small, large     |G_b|^2 and |G_B|^2 of mean gradients
//   n_small, n_large b and B in sequences, n_small < n_large
void noise_record_add(struct noise_record *record, double small, double n_small, double large,
                      double n_large);
// The noise scale in sequences; NAN before the first measurement, and while the estimate of |G|^2 is not
// positive.
double noise_scale(const struct noise_record *record);
// Whether the batch is to grow to twice its size: after NOISE_PATIENCE measurements, if that is at most
// `most` and at most the noise scale.
bool noise_wants_more(const struct noise_record *record, int64_t batch_size, int64_t most);

#endif
