// See kernels/adafactor.h.
#include "kernels/adafactor.h"

#include <math.h>

#include "kernels/ops.h"

// The coarse and the fine sum: multiples of different units, of very different size.
static double whole_sum(const double *sums, int n, int i) {
    return sums[i] + sums[n + i];
}

// Updates n moments, each towards the mean of its `count` squares, with weight `rate`. *smallest: the minimum
// over those with a nonzero sum. Returns the sum of all squares.
static double update_moments(float *moments, const double *sums, int n, int count, double rate,
                             double *smallest) {
    double total = 0;
    *smallest = INFINITY;
    for (int i = 0; i < n; i++) {
        double sum = whole_sum(sums, n, i), before = (double)moments[i];
        moments[i] = (float)(before + (sum / count - before) * rate);
        total += sum;
        if (sum > 0 && (double)moments[i] < *smallest)
            *smallest = (double)moments[i];
    }
    return total;
}

static double mean_of(const float *moments, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)moments[i];
    return sum / n;
}

// A moment is at least `rate` times the mean that was just added to it. So with n = rows * columns and M =
// max(mean of R, eps1):
//     sum of U^2 = sum of g^2 M / (R C)
//                <= max(M / R) sum over columns of (sum of g^2) / C <= max(M / R) n / rate
// Likewise with rows and columns exchanged; and U <= g / eps1. The factor of 4 covers the rounding of the
// moments to fp32. Where they round to subnormals or zero, U is g / eps1, and the squares' sum is far below
// 1.
static double bound_of_update(double total, double elements, double rate, double mean, double smallest_row,
                              double smallest_column) {
    double smallest = smallest_row > smallest_column ? smallest_row : smallest_column;
    double by_epsilon = total / (ADAFACTOR_EPSILON1 * ADAFACTOR_EPSILON1);
    double by_moments = elements / rate * (mean / smallest);
    return 4 * (by_moments < by_epsilon ? by_moments : by_epsilon) + 1;
}

double adafactor_moments_update(const struct adafactor_moments *f, int64_t step, double beta2_decay) {
    double rate = pow((double)step, beta2_decay), mean = 1, smallest_row = 1, smallest_column;
    double total =
        update_moments(f->column_moments, f->column_sums, f->columns, f->rows, rate, &smallest_column);
    if (f->row_moments) {
        update_moments(f->row_moments, f->row_sums, f->rows, f->columns, rate, &smallest_row);
        mean = mean_of(f->row_moments, f->rows);
        mean = mean < ADAFACTOR_EPSILON1 ? ADAFACTOR_EPSILON1 : mean; // NaN stays
        for (int i = 0; i < f->rows; i++)
            f->row_scales[i] = (float)sqrt(mean / (double)f->row_moments[i]);
    }
    for (int i = 0; i < f->columns; i++)
        f->column_scales[i] = (float)(1 / sqrt((double)f->column_moments[i]));
    // In one dimension U^2 <= g^2 / C.
    return bound_of_update(total, (double)f->rows * (double)f->columns, rate, mean, smallest_row,
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
