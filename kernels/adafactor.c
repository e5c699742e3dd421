// See kernels/adafactor.h.
#include "kernels/adafactor.h"

#include <math.h>

#include "kernels/ops.h"

// Both are multiples of their units, and of very different size.
static double whole_sum(const double *sums, int n, int i) {
    return sums[i] + sums[n + i];
}

// Moves n factors, each towards the mean of `count` squares. `smallest` is that of those whose squares have a
// sum above 0; gives the sum of all squares.
static double update_moments(float *factors, const double *sums, int n, int count, double share,
                             double *smallest) {
    double total = 0;
    *smallest = INFINITY;
    for (int i = 0; i < n; i++) {
        double sum = whole_sum(sums, n, i), before = (double)factors[i];
        factors[i] = (float)(before + (sum / count - before) * share);
        total += sum;
        if (sum > 0 && (double)factors[i] < *smallest)
            *smallest = (double)factors[i];
    }
    return total;
}

static double mean_of(const float *factors, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)factors[i];
    return sum / n;
}

// A factor is at least the share of the mean that has just joined it, so with n = rows columns
//     sum of U^2 = sum g^2 M / (R C) <= max(M / R) sum over columns of (sum of g^2) / C <= max(M / R) n /
//     share
// with M = max(mean of R, eps1), and likewise with rows and columns exchanged; and U <= g / eps1. Factors
// were rounded, which four times as much covers; where that loses them (below the normal numbers) U is g /
// eps1, of squares whose sum is far below 1.
static double bound_of_update(double total, double elements, double share, double mean, double smallest_row,
                              double smallest_column) {
    double smallest = smallest_row > smallest_column ? smallest_row : smallest_column;
    double by_epsilon = total / (ADAFACTOR_EPSILON1 * ADAFACTOR_EPSILON1);
    double by_moments = elements / share * (mean / smallest);
    return 4 * (by_moments < by_epsilon ? by_moments : by_epsilon) + 1;
}

double adafactor_moments_update(const struct adafactor_moments *f, int64_t step, double beta2_decay) {
    double share = pow((double)step, beta2_decay), mean = 1, smallest_row = 1, smallest_column;
    double total =
        update_moments(f->column_moments, f->column_sums, f->columns, f->rows, share, &smallest_column);
    if (f->row_moments) {
        update_moments(f->row_moments, f->row_sums, f->rows, f->columns, share, &smallest_row);
        mean = mean_of(f->row_moments, f->rows);
        mean = mean < ADAFACTOR_EPSILON1 ? ADAFACTOR_EPSILON1 : mean; // NaN stays
        for (int i = 0; i < f->rows; i++)
            f->row_scales[i] = (float)sqrt(mean / (double)f->row_moments[i]);
    }
    for (int i = 0; i < f->columns; i++)
        f->column_scales[i] = (float)(1 / sqrt((double)f->column_moments[i]));
    // U^2 <= g^2 / C alone in one dimension.
    return bound_of_update(total, (double)f->rows * (double)f->columns, share, mean, smallest_row,
                           f->row_moments ? smallest_column : 1);
}

double adafactor_step_size(const double sums[4], size_t elements, int64_t step, double lr,
                           double clip_threshold) {
    double n = (double)elements, of_weights = whole_sum(sums + 2, 1, 0);
    of_weights = of_weights > ADAFACTOR_WEIGHTS_BOUND ? ADAFACTOR_WEIGHTS_BOUND : of_weights;
    double update = sqrt(whole_sum(sums, 1, 0) / n) / clip_threshold, weights = sqrt(of_weights / n);
    double root = 1 / sqrt((double)step), relative = lr < root ? lr : root;
    return (weights < ADAFACTOR_EPSILON2 ? ADAFACTOR_EPSILON2 : weights) * relative /
           (update < 1 ? 1 : update);
}
