// The host's side of Adafactor (kernels/ops.h): what becomes of a tensor's sums between the operations. All
// in double and in a fixed order, so that ranks that have the same sums have the same factors.
//
// The formulas are torch.optim.Adafactor's, with its defaults eps = (epsilon of fp32, 1e-3); at step t, with
// the new information's share s = t^beta2_decay:
//   R += s (mean of squares of the row - R), C likewise by columns; V = R C / max(mean of R, eps1)
//   (a tensor of one dimension has C alone, and V = C); U = g / max(sqrt(V), eps1);
//   weight -= lr weight_decay weight + max(eps2, RMS(weights)) min(lr, 1 / sqrt(t)) U / max(1, RMS(U) / d)
#ifndef ZERO_KERNELS_ADAFACTOR_H
#define ZERO_KERNELS_ADAFACTOR_H

#include <stddef.h>
#include <stdint.h>

#define ADAFACTOR_EPSILON1 0x1p-23 // of fp32
#define ADAFACTOR_EPSILON2 1e-3
// What adafactor_norms and adafactor_step are to be given as largest_scale: 1 / eps1.
#define ADAFACTOR_LARGEST_SCALE 0x1p23f

// A tensor's factors, and what its update needs of them.
struct adafactor_moments {
    int rows, columns;
    float *row_moments;        // [rw] (rows), or NULL where the tensor has one dimension (rows is 1)
    float *column_moments;     // [rw] (columns)
    const double *row_sums;    // [r] (2, rows) of adafactor_sums, or NULL likewise
    const double *column_sums; // [r] (2, columns)
    float *row_scales;         // [w] (rows), or NULL likewise: sqrt(max(mean of R, eps1) / R)
    float *column_scales;      // [w] (columns): 1 / sqrt(C)
};
// Moves the factors towards the sums' means and makes the scales. Gives a bound of the sum of squares of the
// update to come, for adafactor_norms.
double adafactor_moments_update(const struct adafactor_moments *factors, int64_t step, double beta2_decay);

// What adafactor_step is to be given as step_size, from the tensor's sums of adafactor_norms.
double adafactor_step_size(const double sums[4], size_t elements, int64_t step, double lr,
                           double clip_threshold);

#endif
