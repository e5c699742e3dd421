// Adafactor as a whole, from the reference's operations and kernels/adafactor.h, against
// torch.optim.Adafactor. Its bounds must hold for any gradients, and its sums must not depend on their order.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "kernels/adafactor.h"
#include "kernels/exact_sum.h"
#include "kernels/ops.h"
#include "tests/support/device.h"
#include "tests/support/expect.h"

// ---- a tensor and its steps

enum { MAX_N = 1024 };

// In double except for the second moments, which are fp32 wherever Adafactor runs.
struct adafactor_tensor {
    int rows, columns;
    bool vector;
    double lr, clip_threshold, weight_decay;
    double weights[MAX_N], grad[MAX_N];
    float row_moments[MAX_N], column_moments[MAX_N], row_scales[MAX_N], column_scales[MAX_N];
    double row_sums[2 * MAX_N], column_sums[2 * MAX_N], sums[4], update_bound;
};

static size_t elements_of(const struct adafactor_tensor *t) {
    return (size_t)t->rows * (size_t)t->columns;
}

static void upcast(double *out, const float *x, int n) {
    for (int i = 0; i < n; i++)
        out[i] = (double)x[i];
}

static void sum_gradients(struct adafactor_tensor *t) {
    memset(t->row_sums, 0, sizeof t->row_sums);
    memset(t->column_sums, 0, sizeof t->column_sums);
    const struct adafactor_sums_args args = {.row_sums = t->vector ? NULL : t->row_sums,
                                             .column_sums = t->column_sums,
                                             .grad = t->grad,
                                             .span = {.n = elements_of(t), .columns = t->columns},
                                             .rows = t->rows,
                                             .bound = 1,
                                             .grad_scale = 1,
                                             .type = DTYPE_F64};
    EXPECT_OK(device->ops->adafactor_sums(&stream, &args));
}

static void step(struct adafactor_tensor *t, int64_t k) {
    double row_scales[MAX_N], column_scales[MAX_N];
    const struct adafactor_moments moments = {.rows = t->rows,
                                              .columns = t->columns,
                                              .row_moments = t->vector ? NULL : t->row_moments,
                                              .column_moments = t->column_moments,
                                              .row_sums = t->vector ? NULL : t->row_sums,
                                              .column_sums = t->column_sums,
                                              .row_scales = t->vector ? NULL : t->row_scales,
                                              .column_scales = t->column_scales};
    const struct adafactor_span whole = {.n = elements_of(t), .columns = t->columns};
    sum_gradients(t);
    t->update_bound = adafactor_moments_update(&moments, k, -0.8);
    upcast(row_scales, t->row_scales, t->rows);
    upcast(column_scales, t->column_scales, t->columns);
    const struct adafactor_direction direction = {.grad = t->grad,
                                                  .row_scales = t->vector ? NULL : row_scales,
                                                  .column_scales = column_scales,
                                                  .largest_scale = ADAFACTOR_LARGEST_SCALE,
                                                  .grad_scale = 1};
    memset(t->sums, 0, sizeof t->sums);
    EXPECT_OK(
        device->ops->adafactor_norms(&stream, &(struct adafactor_norms_args){.sums = t->sums,
                                                                             .master = t->weights,
                                                                             .direction = direction,
                                                                             .span = whole,
                                                                             .elements = whole.n,
                                                                             .update_bound = t->update_bound,
                                                                             .type = DTYPE_F64}));
    double size = adafactor_step_size(t->sums, whole.n, k, t->lr, t->clip_threshold);
    EXPECT_OK(
        device->ops->adafactor_step(&stream, &(struct adafactor_step_args){.master = t->weights,
                                                                           .direction = direction,
                                                                           .span = whole,
                                                                           .step_size = size,
                                                                           .decay = t->lr * t->weight_decay,
                                                                           .type = DTYPE_F64}));
}

// ---- results of PyTorch

// Weights after four steps of torch.optim.Adafactor (2.15) in float64 with beta2_decay -0.8, eps (2^-23,
// 1e-3) and the settings below. Initial weights are ((29 i) % 17 - 8) / 16, gradients ((37 i + 101 k) % 19 -
// 9) / 8 * factor at step k = 1, 2, ..., times `jump` in the third.
static const struct golden {
    int rows, columns;
    bool vector;
    double factor, weight_decay, clip_threshold, lr, jump;
    double wanted[12];
} goldens[] = {
    {3,
     4,
     false,
     1,
     0.1,
     1,
     0.05,
     8,
     {-0.5096297470334495, 0.23475185410683788, -0.0628525530072583, -0.35990545515580213,
      0.37270205077115637, 0.07393627711337566, -0.2444518973041708, 0.4624077320900625, 0.15536775456469304,
      -0.1370810580503889, -0.42684788003917207, 0.3280640294396435}},
    {5,
     2,
     false,
     0x1p-20,
     0,
     1.5,
     1,
     1, // where both epsilons matter
     {-1.340696654793347, -0.20125706435637758, -0.1243174739194082, -0.047377883482438946,
      1.0920617069545302, 1.1690012973914996, -0.13134527729665485, -0.27773754909020876, -0.2007979586532394,
      -0.12385836821627003}},
    {1,
     7,
     true,
     1,
     0,
     1,
     0.05,
     8,
     {-0.5137366959537528, 0.2420662306971656, -0.06403325670468449, -0.37085409593602325,
      0.38399063844993553, 0.07603971583844216, -0.2519984703334583}},
};

static void expect_golden(const struct golden *golden) {
    struct adafactor_tensor *t = calloc(1, sizeof *t);
    assert_non_null(t);
    *t = (struct adafactor_tensor){.rows = golden->rows,
                                   .columns = golden->columns,
                                   .vector = golden->vector,
                                   .lr = golden->lr,
                                   .clip_threshold = golden->clip_threshold,
                                   .weight_decay = golden->weight_decay};
    int n = (int)elements_of(t);
    for (int i = 0; i < n; i++)
        t->weights[i] = (i * 29 % 17 - 8) / 16.0;
    for (int k = 1; k <= 4; k++) {
        for (int i = 0; i < n; i++)
            t->grad[i] = ((i * 37 + k * 101) % 19 - 9) / 8.0 * golden->factor * (k == 3 ? golden->jump : 1);
        step(t, k);
    }
    // Moments and scales are rounded to fp32 six times over the four steps, each step at most lr 2.
    for (int i = 0; i < n; i++)
        if (!(fabs(t->weights[i] - golden->wanted[i]) <= 4 * 6 * 0x1p-24 * 2 * golden->lr))
            fail_msg("weight %d of (%d, %d) is %.17g, PyTorch's is %.17g", i, golden->rows, golden->columns,
                     t->weights[i], golden->wanted[i]);
    free(t);
}

static void test_pytorch(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++)
        expect_golden(&goldens[i]);
}

// ---- bounds

// Gradients of ordinary training, and pathological ones.
static double wild_gradient(int kind, int64_t k, const struct adafactor_tensor *t, int i) {
    int row = i / t->columns, column = i % t->columns;
    double x = rng_normal(50, (uint32_t)(kind * 100 + k), (uint64_t)i);
    switch (kind) {
    case 0:
        return x;
    case 1: // new rows, and rows without gradients
        return row % 7 == k % 7 ? x : row % 3 ? 0 : 1e-12 * x;
    case 2: // suddenly a thousand times larger
        return k % 4 == 3 ? 1e3 * x : x;
    case 3: // one large element
        return row == 2 && column == 3 ? 1e4 : 1e-9 * x;
    case 4: // below eps1
        return 1e-11 * x;
    case 5: // a diagonal, and squares beyond fp32
        return row == column ? (k % 2 ? 1e19 : 1e-30) * x : 1e-25 * x;
    default: // gradients of fp32's smallest numbers
        return 0x1p-149 * floor(4 * x);
    }
}

static void expect_bounds(int kind, int rows, int columns) {
    struct adafactor_tensor *t = calloc(1, sizeof *t);
    assert_non_null(t);
    *t = (struct adafactor_tensor){
        .rows = rows, .columns = columns, .vector = rows == 1, .lr = 1e-2, .clip_threshold = 1};
    int n = (int)elements_of(t);
    for (int i = 0; i < n; i++)
        t->weights[i] = 0.02 * rng_normal(51, 0, (uint64_t)i);
    for (int64_t k = 1; k <= 20; k++) {
        double before[MAX_N];
        memcpy(before, t->weights, sizeof before);
        for (int i = 0; i < n; i++)
            t->grad[i] = (double)(float)wild_gradient(kind, k, t, i);
        step(t, k);
        if (!(t->sums[0] <= t->update_bound))
            fail_msg("gradients %d of (%d, %d), step %d: the update's squares sum to %g, bound %g", kind,
                     rows, columns, (int)k, t->sums[0], t->update_bound);
        double change = 0, weights = 0;
        for (int i = 0; i < n; i++) {
            change += (t->weights[i] - before[i]) * (t->weights[i] - before[i]);
            weights += before[i] * before[i];
        }
        double most = t->lr * fmax(ADAFACTOR_EPSILON2, sqrt(weights / n)) * (1 + 1e-6);
        assert_true(sqrt(change / n) <= most); // the purpose of the algorithm: relative steps are bounded
    }
    free(t);
}

static void test_bounds_hold(void **state) {
    (void)state;
    for (int kind = 0; kind < 7; kind++) {
        expect_bounds(kind, 32, 32);
        expect_bounds(kind, 100, 7);
        expect_bounds(kind, 1, 200);
    }
}

// ---- exact sums

static void test_sums_do_not_depend_on_order(void **state) {
    enum { N = 4999 }; // a prime: every stride visits all
    (void)state;
    static double x[N];
    double bound = 0, first[2] = {0}, truth = 0;
    for (int i = 0; i < N; i++) {
        x[i] = pow(rng_normal(52, 0, (uint64_t)i), 2) * pow(2, -60.0 * (i % 3));
        bound += x[i];
    }
    struct exact_units units = exact_units_of(bound, N);
    assert_true(units.coarse * 0x1p-52 <= bound * 0x1p-50);
    assert_true(units.fine / 1.5 * 0x1p-52 <= N * 0x1p-52 * units.coarse * 0x1p-52);
    for (int stride = 1; stride < N; stride += 1234) {
        double coarse = 0, fine = 0;
        for (int k = 0, i = 0; k < N; k++, i = (i + stride) % N) {
            double part = (x[i] + units.coarse) - units.coarse;
            coarse += part;
            fine += (x[i] - part + units.fine) - units.fine;
        }
        if (stride == 1) {
            first[0] = coarse;
            first[1] = fine;
        }
        assert_true(coarse == first[0] && fine == first[1]);
    }
    for (int i = 0; i < N; i++)
        truth += x[i];
    assert_true(fabs(first[0] + first[1] - truth) <= N * 0x1p-53 * truth);
    assert_true(isnan(exact_units_of(HUGE_VAL, 2).coarse) && isnan(exact_units_of((double)NAN, 2).fine));
    assert_true(exact_units_of(0, 1).coarse > 0); // a sum of zeros has a nonzero unit
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pytorch),
        cmocka_unit_test(test_bounds_hold),
        cmocka_unit_test(test_sums_do_not_depend_on_order),
    };
    return cmocka_run_group_tests_name("ref adafactor", tests, open_reference, close_device);
}
