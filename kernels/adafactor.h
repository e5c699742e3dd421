// The host's part of Adafactor (kernels/ops.h): what happens to a tensor's sums between its three operations.
// Determinism: all in double and in a fixed order, so ranks with the same sums get the same moments.
//
// The formulas are those of torch.optim.Adafactor with its defaults eps = (eps1, eps2) = (fp32's epsilon,
// 1e-3). At step t, with the weight of the new gradient s = t^beta2_decay:
//   R += s (row means of g^2 - R), C += s (column means of g^2 - C); V = R C / max(mean of R, eps1)
//   (a one-dimensional tensor has C alone, and V = C); U = g / max(sqrt(V), eps1);
//   weight -= lr weight_decay weight + max(eps2, RMS(weights)) min(lr, 1 / sqrt(t)) U / max(1, RMS(U) / d)
#ifndef ZERO_KERNELS_ADAFACTOR_H
#define ZERO_KERNELS_ADAFACTOR_H

#include <stddef.h>
#include <stdint.h>

#define ADAFACTOR_EPSILON1 0x1p-23 // of fp32
#define ADAFACTOR_EPSILON2 1e-3
// largest_scale of adafactor_norms and adafactor_step: 1 / eps1.
#define ADAFACTOR_LARGEST_SCALE 0x1p23f

// A tensor's row and column second moments, and the scales of its update.
struct adafactor_moments {
    int rows, columns;
    float *row_moments;        // [rw] (rows), R, or NULL for a one-dimensional tensor (rows is 1)
    float *column_moments;     // [rw] (columns) C
    const double *row_sums;    // [r] (2, rows) of adafactor_sums, or NULL as above
    const double *column_sums; // [r] (2, columns)
    float *row_scales;         // [w] (rows), or NULL as above: sqrt(max(mean of R, eps1) / R)
    float *column_scales;      // [w] (columns): 1 / sqrt(C)
};
// Updates R and C from the sums and computes the scales. Returns an upper bound of the sum of squares of the
// update (adafactor_norms' update_bound).
double adafactor_moments_update(const struct adafactor_moments *moments, int64_t step, double beta2_decay);

// step_size of adafactor_step.
//   sums            (4) of adafactor_norms, over the whole tensor
//   elements        of the tensor
//   clip_threshold  d above
double adafactor_step_size(const double sums[4], size_t elements, int64_t step, double lr,
                           double clip_threshold);

#endif
