// Checks the reference's optimizers and sums: against moments in closed form over the whole history of
// gradients, and against known sums. Lengths 1 to 257, several steps, zeros and subnormal numbers.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "kernels/ops.h"
#include "tests/support/device.h"
#include "tests/support/expect.h"

enum { MAX_N = 257, N_STEPS = 5 };

// Element i of the gradient of step k (from 1).
static double gradient(int k, int i) {
    switch (i % 7) {
    case 3:
        return 0;
    case 5:
        return k % 2 ? 0x1p-1074 : -0x1p-1040; // squares underflow to 0
    case 6:
        return 1e-150 * k;
    default:
        return rng_normal(3, (uint32_t)k, (uint64_t)i);
    }
}

static double first_weight(int i) {
    return i % 5 == 2 ? 0 : rng_normal(4, 0, (uint64_t)i);
}

// magnitude: the sum of |terms| of the value, because the terms may cancel.
static void expect_close(const char *name, int step, int i, double got, double wanted, double magnitude) {
    if (!(fabs(got - wanted) <= 1e-14 * magnitude + 0x1p-1070))
        fail_msg("%s[%d] after step %d is %.17g, expected %.17g", name, i, step, got, wanted);
}

struct optimizer_settings {
    double lr, beta1, beta2, epsilon, weight_decay, momentum;
    float grad_scale;
};
static const struct optimizer_settings settings = {1e-2, 0.9, 0.97, 1e-6, 0.1, 0.8, 0.5f};

static struct optimizer_step_args step_args(enum optimizer_rule rule, int step, int n) {
    return (struct optimizer_step_args){.rule = rule,
                                        .n = (size_t)n,
                                        .step = step,
                                        .lr = settings.lr,
                                        .beta1 = rule == OPTIMIZER_SGD ? settings.momentum : settings.beta1,
                                        .beta2 = settings.beta2,
                                        .epsilon = settings.epsilon,
                                        .weight_decay = settings.weight_decay,
                                        .grad_scale = settings.grad_scale,
                                        .type = DTYPE_F64};
}

struct history {
    double first, second; // the sums over all steps k of beta1^(step - k) g_k and of beta2^(step - k) g_k^2
    double magnitude;     // of the first
    double series1, series2; // the same with 1 for g_k
};

static struct history history_of(int step, int i) {
    struct history sums = {0};
    for (int k = 1; k <= step; k++) {
        double g = gradient(k, i) * (double)settings.grad_scale;
        double decay1 = pow(settings.beta1, step - k), decay2 = pow(settings.beta2, step - k);
        sums.first += decay1 * g;
        sums.second += decay2 * g * g;
        sums.magnitude += decay1 * fabs(g);
        sums.series1 += decay1;
        sums.series2 += decay2;
    }
    return sums;
}

static void adamw_of_length(int n) {
    double master[MAX_N], m[MAX_N] = {0}, v[MAX_N] = {0}, grad[MAX_N], param[MAX_N], wanted[MAX_N];
    for (int i = 0; i < n; i++)
        master[i] = wanted[i] = first_weight(i);
    for (int step = 1; step <= N_STEPS; step++) {
        for (int i = 0; i < n; i++)
            grad[i] = gradient(step, i);
        struct optimizer_step_args args = step_args(OPTIMIZER_ADAMW, step, n);
        args.state = (struct optimizer_state){.master = master, .m = m, .v = v};
        args.param = param;
        args.grad = grad;
        EXPECT_OK(device->ops->optimizer_step(&stream, &args));
        for (int i = 0; i < n; i++) {
            struct history sums = history_of(step, i);
            expect_close("m", step, i, m[i], (1 - settings.beta1) * sums.first, sums.magnitude);
            expect_close("v", step, i, v[i], (1 - settings.beta2) * sums.second, sums.second);
            // Without the common weights 1 - beta, the corrections are geometric series.
            wanted[i] -= settings.lr *
                         (sums.first / sums.series1 / (sqrt(sums.second / sums.series2) + settings.epsilon) +
                          settings.weight_decay * wanted[i]);
            expect_close("master", step, i, master[i], wanted[i], 1 + fabs(wanted[i]));
            assert_true(param[i] == master[i]);
        }
    }
}

static void test_adamw(void **state) {
    (void)state;
    for (int n = 1; n <= MAX_N; n++)
        adamw_of_length(n);
}

static void sgd_of_length(int n, bool with_momentum) {
    double master[MAX_N], m[MAX_N], grad[MAX_N], wanted[MAX_N], velocity[MAX_N] = {0};
    for (int i = 0; i < n; i++) {
        master[i] = wanted[i] = first_weight(i);
        m[i] = (double)NAN; // the first step must not read it
    }
    for (int step = 1; step <= N_STEPS; step++) {
        for (int i = 0; i < n; i++)
            grad[i] = gradient(step, i);
        struct optimizer_step_args args = step_args(OPTIMIZER_SGD, step, n);
        args.state = (struct optimizer_state){.master = master, .m = with_momentum ? m : NULL};
        args.grad = grad;
        EXPECT_OK(device->ops->optimizer_step(&stream, &args));
        for (int i = 0; i < n; i++) {
            // Heavy-ball momentum from rest, in the textbook's order.
            velocity[i] = (with_momentum ? settings.momentum : 0) * velocity[i] +
                          gradient(step, i) * (double)settings.grad_scale + settings.weight_decay * wanted[i];
            wanted[i] -= settings.lr * velocity[i];
            expect_close("master", step, i, master[i], wanted[i], 1 + fabs(wanted[i]));
            if (with_momentum)
                expect_close("m", step, i, m[i], velocity[i], 1 + fabs(velocity[i]));
        }
    }
}

static void test_sgd(void **state) {
    (void)state;
    for (int n = 1; n <= MAX_N; n++) {
        sgd_of_length(n, true);
        sgd_of_length(n, false);
    }
}

// Adam adds the weight decay to the gradient. Moments are sums over the whole history.
static void test_adam(void **state) {
    (void)state;
    enum { N = 257 };
    double master[N], m[N] = {0}, v[N] = {0}, grad[N], wanted[N], decayed[N_STEPS][N];
    for (int i = 0; i < N; i++)
        master[i] = wanted[i] = first_weight(i);
    struct optimizer_state kept = {.master = master, .m = m, .v = v};
    for (int step = 1; step <= N_STEPS; step++) {
        for (int i = 0; i < N; i++) {
            grad[i] = gradient(step, i);
            decayed[step - 1][i] = grad[i] * (double)settings.grad_scale + settings.weight_decay * wanted[i];
        }
        struct optimizer_step_args args = step_args(OPTIMIZER_ADAM, step, N);
        args.state = kept;
        args.grad = grad;
        EXPECT_OK(device->ops->optimizer_step(&stream, &args));
        for (int i = 0; i < N; i++) {
            double first = 0, second = 0, magnitude = 0;
            for (int k = 1; k <= step; k++) {
                double g = decayed[k - 1][i], weight1 = pow(settings.beta1, step - k);
                first += (1 - settings.beta1) * weight1 * g;
                second += (1 - settings.beta2) * pow(settings.beta2, step - k) * g * g;
                magnitude += weight1 * fabs(g);
            }
            // Division by epsilon amplifies the last bit of a subnormal gradient into many bits of the
            // weight, and so of its decay.
            expect_close("m", step, i, m[i], first, magnitude + 1e-300);
            expect_close("v", step, i, v[i], second, second);
            double mhat = first / (1 - pow(settings.beta1, step)),
                   vhat = second / (1 - pow(settings.beta2, step));
            wanted[i] -= settings.lr * mhat / (sqrt(vhat) + settings.epsilon);
            expect_close("master", step, i, master[i], wanted[i], 1 + fabs(wanted[i]));
        }
    }
}

// The two lines of Lion's paper: c = beta1 m + (1 - beta1) g; weight -= lr (sign(c) + decay weight).
static void test_lion(void **state) {
    (void)state;
    enum { N = 257 };
    double master[N], m[N] = {0}, grad[N], wanted[N];
    for (int i = 0; i < N; i++)
        master[i] = wanted[i] = first_weight(i);
    struct optimizer_state kept = {.master = master, .m = m};
    for (int step = 1; step <= N_STEPS; step++) {
        for (int i = 0; i < N; i++)
            grad[i] = gradient(step, i);
        struct optimizer_step_args args = step_args(OPTIMIZER_LION, step, N);
        args.state = kept;
        args.grad = grad;
        EXPECT_OK(device->ops->optimizer_step(&stream, &args));
        for (int i = 0; i < N; i++) {
            double before = 0, momentum = 0, magnitude = 0;
            for (int k = 1; k <= step; k++) {
                double g = (1 - settings.beta2) * gradient(k, i) * (double)settings.grad_scale;
                before += k < step ? pow(settings.beta2, step - 1 - k) * g : 0;
                momentum += pow(settings.beta2, step - k) * g;
                magnitude += fabs(g);
            }
            expect_close("m", step, i, m[i], momentum, magnitude);
            double mixed = settings.beta1 * before +
                           (1 - settings.beta1) * gradient(step, i) * (double)settings.grad_scale;
            double sign = i % 7 == 3 ? 0 : mixed > 0 ? 1 : mixed < 0 ? -1 : 0;
            wanted[i] -= settings.lr * (sign + settings.weight_decay * wanted[i]);
            expect_close("master", step, i, master[i], wanted[i], 1 + fabs(wanted[i]));
        }
    }
}

// x[i] = the index of its block, plus one: each block's sum is known, exactly.
static void test_sum_squares(void **state) {
    (void)state;
    enum { N = 2 * SUM_SQUARES_BLOCK + 3 };
    double *x = malloc(N * sizeof *x), partial[4] = {-1, -1, -1, -1};
    assert_non_null(x);
    for (int i = 0; i < N; i++)
        x[i] = i / SUM_SQUARES_BLOCK + 1;
    struct sum_squares_args args = {.partial = partial, .x = x, .n = N, .type = DTYPE_F64};
    EXPECT_OK(device->ops->sum_squares(&stream, &args));
    free(x);
    assert_true(partial[0] == SUM_SQUARES_BLOCK && partial[1] == 4.0 * SUM_SQUARES_BLOCK && partial[2] == 27);
    assert_true(partial[3] == -1);
}

// bf16 and fp16 parameters are the stored fp32 master weights, rounded to nearest even.
static void check_16_bit_parameters(enum dtype type, const float *weights, const uint16_t *wanted) {
    float master[5], m[5] = {0}, v[5] = {0}, grad[5] = {0};
    uint16_t param[5];
    memcpy(master, weights, sizeof master);
    struct optimizer_state state = {.master = master, .m = m, .v = v};
    struct optimizer_step_args args = {.rule = OPTIMIZER_ADAMW,
                                       .state = state,
                                       .param = param,
                                       .grad = grad,
                                       .n = 5,
                                       .step = 1,
                                       .lr = 1,
                                       .beta1 = 0.9,
                                       .beta2 = 0.99,
                                       .epsilon = 1,
                                       .grad_scale = 1,
                                       .type = type};
    EXPECT_OK(
        device->ops->optimizer_step(&stream, &args)); // without gradient and decay the weights do not change
    assert_memory_equal(param, wanted, sizeof param);
}

static void test_16_bit_parameters(void **state) {
    (void)state;
    static const float for_bf16[] = {0x1.01p0f, 0x1.03p0f, 0x1.010002p0f, -0x1.01p0f, 0},
                       for_fp16[] = {0x1.002p0f, 0x1.006p0f, 0x1.002002p0f, -0x1.8p-24f, 65520};
    static const uint16_t bf16[] = {0x3f80, 0x3f82, 0x3f81, 0xbf80, 0}, // ties to even
        fp16[] = {0x3c00, 0x3c02, 0x3c01, 0x8002, 0x7c00};
    check_16_bit_parameters(DTYPE_BF16, for_bf16, bf16);
    check_16_bit_parameters(DTYPE_F16, for_fp16, fp16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adamw),       cmocka_unit_test(test_adam),
        cmocka_unit_test(test_sgd),         cmocka_unit_test(test_lion),
        cmocka_unit_test(test_sum_squares), cmocka_unit_test(test_16_bit_parameters),
    };
    return cmocka_run_group_tests_name("ref optimizers", tests, open_reference, close_device);
}
