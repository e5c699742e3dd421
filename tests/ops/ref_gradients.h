// Finite differences of the reference's operations, in double, for the test programs that divide the
// operations among them: test_kernels_ref_llama.c has those of Llama's layers, test_kernels_ref_gradients.c
// the others.
#ifndef ZERO_TESTS_OPS_REF_GRADIENTS_H
#define ZERO_TESTS_OPS_REF_GRADIENTS_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "kernels/ops.h"
#include "tests/support/expect.h"

static struct device *device;
static struct stream stream;
static bool is_checked[N_OPERATIONS];

#define RUN(name, ...)                                                                                       \
    do {                                                                                                     \
        is_checked[OP_##name] = true;                                                                        \
        EXPECT_OK(device->ops->name(&stream, &(struct name##_args){__VA_ARGS__}));                           \
    } while (0)

static int open_device(void **state) {
    (void)state;
    if (ref_device_open(&device) != STATUS_OK)
        return -1;
    stream = (struct stream){.device = device, .workspace_bytes = 1 << 16};
    return device->memory_new(device, stream.workspace_bytes, "tests", &stream.workspace) == STATUS_OK ? 0
                                                                                                       : -1;
}

static int close_device(void **state) {
    (void)state;
    device->memory_delete(device, stream.workspace, stream.workspace_bytes);
    device_close(device);
    return 0;
}

// ---- random tensors

static double *tensor(uint32_t name, size_t n) {
    double *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = rng_normal(7, name, i);
    return x;
}

static double *zeros(size_t n) {
    double *x = calloc(n, sizeof *x);
    assert_non_null(x);
    return x;
}

static double weighted_sum(const double *out, const double *weights, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += out[i] * weights[i];
    return sum;
}

// ---- finite differences

// Central differences of fourth order, error h^4 f''''' / 30 = 3e-14 f''''', and rounding of about
// 2^-52 |loss| / h = 2e-13 |loss|: 1e-8 of the gradient's largest element leaves room for steep functions.
#define STEP      1e-3
#define TOLERANCE 1e-8

// Checks dx (n) against finite differences of loss(context) in each element of x.
static void expect_gradient(const char *name, double *x, const double *dx, size_t n, double (*loss)(void *),
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

// ---- every gradient operation is checked

static bool is_of_llama(const char *name) {
    static const char *const names[] = {"rmsnorm", "rope", "relu_squared", "swiglu"};
    bool is = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        is = is || strncmp(name, names[i], strlen(names[i])) == 0;
    return is;
}

// Fails unless all operations of this program were called: Llama's, or the others.
static void expect_all_checked(bool of_llama) {
#define EXPECT_CHECKED(name)                                                                                 \
    if (!is_checked[OP_##name] && strstr(#name, "ward") && is_of_llama(#name) == of_llama)                   \
        fail_msg("no finite differences were computed for " #name);
    OPERATIONS(EXPECT_CHECKED)
#undef EXPECT_CHECKED
}

#endif
