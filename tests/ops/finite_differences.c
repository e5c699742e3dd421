// See finite_differences.h.
#include "tests/ops/finite_differences.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"

double *tensor(uint32_t name, size_t n) {
    double *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = rng_normal(7, name, i);
    return x;
}

double *zeros(size_t n) {
    double *x = calloc(n, sizeof *x);
    assert_non_null(x);
    return x;
}

double weighted_sum(const double *out, const double *weights, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += out[i] * weights[i];
    return sum;
}

// Central differences of fourth order, error h^4 f''''' / 30 = 3e-14 f''''', and rounding of about
// 2^-52 |loss| / h = 2e-13 |loss|: 1e-8 of the gradient's largest element leaves room for steep functions.
#define STEP      1e-3
#define TOLERANCE 1e-8

void expect_gradient(const char *name, double *x, const double *dx, size_t n, double (*loss)(void *),
                     void *context) {
    double largest = 0;
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(dx[i]));
    assert_true(largest > 0);
    for (size_t i = 0; i < n; i++) {
        double at = x[i], values[4];
        static const double steps[4] = {-2 * STEP, -STEP, STEP, 2 * STEP};
        for (int k = 0; k < 4; k++) {
            x[i] = at + steps[k];
            values[k] = loss(context);
        }
        x[i] = at;
        double slope = (8 * (values[2] - values[1]) - (values[3] - values[0])) / (12 * STEP);
        if (!(fabs(slope - dx[i]) <= TOLERANCE * largest))
            fail_msg("%s[%zu] is %.12g, finite differences give %.12g", name, i, dx[i], slope);
    }
}
