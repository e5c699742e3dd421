// SOAP of single matrices: whole steps against PyTorch in float64 (scripts/golden/soap.py), orthonormal rows
// and eigenvectors of matrices of any rank.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/eigen.h"
#include "base/json.h"
#include "base/rng.h"
#include "kernels/ops.h"
#include "kernels/region_memory.h"
#include "tests/ref/ref.h"
#include "tests/support/expect.h"
#include "tests/support/golden_numbers.h"
#include "zero/stages/soap_matrix.h"

#define GOLDEN "tests/golden/optimizers/soap.json"

static void open_device(enum dtype type, struct device **device) {
    EXPECT_OK(type == DTYPE_F64 ? ref_device_open(device) : device_open("cpu", 2, 0, device));
}

// ---- eigenvectors

// A = X X^T with random X (n, rank), in units that a double holds exactly.
static void fill_gram(double *a, int n, int rank, double unit) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int k = 0; k < rank; k++) {
                const uint64_t x = (uint64_t)(i * rank + k), y = (uint64_t)(j * rank + k);
                sum += ((double)rng_below(5, 1, x, 2001) - 1000) * ((double)rng_below(5, 1, y, 2001) - 1000);
            }
            a[i * n + j] = sum * unit;
        }
}

static void count(void *n) {
    ++*(int *)n;
}

static void check_eigen(int n, int rank, double unit) {
    const size_t square = (size_t)n * (size_t)n;
    double *a = calloc(square, sizeof *a), *given = calloc(square, sizeof *a),
           *vectors = calloc(square, sizeof *a), *again = calloc(square, sizeof *a),
           *values = calloc(5 * (size_t)n, sizeof *a), largest = 0;
    assert_true(a && given && vectors && again && values);
    fill_gram(given, n, rank, unit);
    memcpy(a, given, square * sizeof *a);
    int n_shown = 0;
    EXPECT_OK(eigen_symmetric(1, n, a, vectors, values, values + n, count, &n_shown));
    assert_true(n_shown >= n);
    for (int i = 0; i < n; i++)
        largest = fmax(largest, fabs(values[i]));
    // Rounding errors of n reflections and 2 n rotations, each of a few roundings of the norm.
    const double allowed = 20 * n * 0x1p-53;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            double same = 0, product = 0;
            for (int k = 0; k < n; k++) {
                same += vectors[i * n + k] * vectors[j * n + k];
                product += vectors[k * n + i] * values[k] * vectors[k * n + j];
            }
            if (!(fabs(same - (i == j)) <= allowed))
                fail_msg("n %d, rank %d: rows %d and %d have the product %g", n, rank, i, j, same);
            if (!(fabs(product - given[i * n + j]) <= allowed * largest))
                fail_msg("n %d, rank %d, element (%d, %d): %g, expected %g", n, rank, i, j, product,
                         given[i * n + j]);
        }
    memcpy(a, given, square * sizeof *a);
    EXPECT_OK(eigen_symmetric(3, n, a, again, values, values + n, NULL, NULL));
    assert_memory_equal(again, vectors, square * sizeof *a);
    free(a), free(given), free(vectors), free(again), free(values);
}

static void test_eigenvectors(void **state) {
    (void)state;
    static const int sizes[] = {1, 2, 3, 8, 33, 70};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int part = 0; part <= 3; part++)
            check_eigen(sizes[i], sizes[i] * part / 3, 0x1p-20);
    check_eigen(20, 20, 0x1p-1000); // squares of which vanish
    check_eigen(20, 20, 0x1p+980);  // or overflow
}

static void test_eigenvectors_of_nothing(void **state) {
    (void)state;
    double a[4] = {1, NAN, NAN, 1}, vectors[4], values[10];
    EXPECT_FAILURE(STATUS_FAILED, eigen_symmetric(1, 2, a, vectors, values, values + 2, NULL, NULL),
                   "not finite");
}

// ---- orthonormal rows

static void check_orthonormal(enum dtype type, int rows, int n, int rank) {
    struct device *device;
    struct region_memory memory;
    struct orthonormal o;
    struct stream stream = {0};
    open_device(type, &device);
    stream.device = device;
    region_memory_init(&memory, device);
    EXPECT_OK(orthonormal_plan(&o, device, type, n, &memory.table));
    EXPECT_OK(region_memory_allocate(&memory));
    orthonormal_bind(&o, &memory.table);
    EXPECT_OK(orthonormal_workspace(&o, rows, n, &stream.workspace_bytes));
    EXPECT_OK(device->memory_new(device, stream.workspace_bytes, "test", &stream.workspace));
    const size_t elements = (size_t)rows * (size_t)n, square = (size_t)n * (size_t)n;
    void *a = calloc(elements, sizeof(double)), *out = calloc(square, sizeof(double));
    double *given = calloc(elements, sizeof *given);
    assert_true(a && out && given);
    for (int i = 0; i < rows; i++) // rows from `rank` on depend on those before; lengths fall
        for (int k = 0; k < n; k++) {
            const uint64_t at = (uint64_t)(i % rank * n + k);
            given[i * n + k] = ((double)rng_below(9, 1, at, 2001) - 1000) * exp2(-(i % rank) % 12);
            store(a, type, (size_t)(i * n + k), given[i * n + k]);
        }
    EXPECT_OK(orthonormal_run(&o, &stream, a, rows, n, out));
    // Each of the up to n reflections rounds a unit vector's sums of n terms.
    const double epsilon = type == DTYPE_F64 ? 0x1p-53 : 0x1p-24, allowed = epsilon * n * sqrt(n) * 4;
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++) {
            double product = 0;
            for (int k = 0; k < n; k++)
                product += load(out, type, (size_t)(i * n + k)) * load(out, type, (size_t)(j * n + k));
            if (!(fabs(product - (i == j)) <= allowed))
                fail_msg("%s, %d of %d rows, rank %d: rows %d and %d have the product %g", dtype_name(type),
                         rows, n, rank, i, j, product);
        }
    // Row i is a combination of the first i + 1: it has no part along those after.
    for (int i = 0; i < rows; i++)
        for (int j = i + 1; j < n; j++) {
            double product = 0, length = 0;
            for (int k = 0; k < n; k++) {
                product += given[i * n + k] * load(out, type, (size_t)(j * n + k));
                length += given[i * n + k] * given[i * n + k];
            }
            if (!(fabs(product) <= allowed * sqrt(length)))
                fail_msg("%s, %d of %d rows, rank %d: row %d has %g along row %d", dtype_name(type), rows, n,
                         rank, i, product / sqrt(length), j);
        }
    free(a), free(out), free(given);
    device->memory_delete(device, stream.workspace, stream.workspace_bytes);
    region_memory_free(&memory);
    device_close(device);
}

static void test_orthonormal(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        const enum dtype type = k ? DTYPE_F32 : DTYPE_F64;
        check_orthonormal(type, 1, 1, 1);
        check_orthonormal(type, 7, 7, 7);
        check_orthonormal(type, 7, 7, 2);
        check_orthonormal(type, 3, 40, 3);
        check_orthonormal(type, 32, 33, 32);
        check_orthonormal(type, 75, 75, 75);
        check_orthonormal(type, 75, 90, 20);
        check_orthonormal(type, 128, 128, 128);
        check_orthonormal(type, 150, 170, 40);
        check_orthonormal(type, 270, 270, 270);
    }
}

// ---- steps

struct settings {
    double lr, beta1, beta2, epsilon, weight_decay;
    int64_t frequency;
};

static struct settings settings_of(const cJSON *tree) {
    struct settings settings;
    const cJSON *of, *betas;
    EXPECT_OK(json_get_object(tree, "settings", GOLDEN, &of));
    EXPECT_OK(json_get_number(of, "lr", GOLDEN, &settings.lr));
    EXPECT_OK(json_get_array(of, "betas", GOLDEN, &betas));
    settings.beta1 = number(betas, 0);
    settings.beta2 = number(betas, 1);
    EXPECT_OK(json_get_number(of, "eps", GOLDEN, &settings.epsilon));
    EXPECT_OK(json_get_number(of, "weight_decay", GOLDEN, &settings.weight_decay));
    EXPECT_OK(json_get_integer(of, "precondition_frequency", 1, 100, GOLDEN, &settings.frequency));
    return settings;
}

static struct soap_shape shape_of(const cJSON *of) {
    int64_t rows, columns, longest;
    EXPECT_OK(json_get_integer(of, "rows", 1, 1000, GOLDEN, &rows));
    EXPECT_OK(json_get_integer(of, "columns", 1, 1000, GOLDEN, &columns));
    EXPECT_OK(json_get_integer(of, "max_precond_dim", 1, 100000, GOLDEN, &longest));
    return soap_shape_of(rows, columns, longest);
}

// The largest difference from the golden weights, in units of a step's lr.
static double run_steps(const struct settings *settings, const cJSON *of, enum dtype type, float scale,
                        double *weight) {
    const struct soap_shape shape = shape_of(of);
    const size_t n = (size_t)shape.rows * (size_t)shape.columns;
    const cJSON *gradients = cJSON_GetObjectItem(of, "gradients"), *start = cJSON_GetObjectItem(of, "weight"),
                *wanted = cJSON_GetObjectItem(of, "after")->child;
    struct soap_matrix soap;
    struct region_memory memory;
    struct stream stream = {0};
    double worst = 0;
    open_device(type, &stream.device);
    region_memory_init(&memory, stream.device);
    EXPECT_OK(soap_matrix_plan(&soap, stream.device, type, &shape, 1, &memory.table));
    EXPECT_OK(region_memory_allocate(&memory));
    soap_matrix_bind(&soap, &memory.table);
    void *states = malloc(soap_state_elements(shape) * sizeof(double)), *x = calloc(n, sizeof(double));
    assert_true(states && x);
    memset(states, 0x77, soap_state_elements(shape) * sizeof(double)); // the first step must not read them
    for (size_t i = 0; i < n; i++)
        weight[i] = number(start, i);
    for (int k = 0; k < cJSON_GetArraySize(gradients); k++) {
        const struct soap_step step = {.step = k + 1,
                                       .refresh = k > 0 && k % settings->frequency == 0,
                                       .beta1 = settings->beta1,
                                       .beta2 = settings->beta2,
                                       .epsilon = settings->epsilon,
                                       .grad_scale = 1 / scale};
        for (size_t i = 0; i < n; i++)
            store(x, type, i, (double)scale * number(cJSON_GetArrayItem(gradients, k), i));
        EXPECT_OK(soap_matrix_update(&soap, &stream, shape, states, x, &step));
        for (size_t i = 0; i < n && k > 0; i++)
            weight[i] =
                (weight[i] - settings->lr * load(x, type, i)) * (1 - settings->lr * settings->weight_decay);
        int64_t kept;
        if (!wanted || json_get_integer(wanted, "step", 1, 1000, GOLDEN, &kept) != STATUS_OK || kept != k + 1)
            continue;
        for (size_t i = 0; i < n; i++)
            worst = fmax(worst, fabs(weight[i] - number(cJSON_GetObjectItem(wanted, "weight"), i)));
        wanted = wanted->next;
    }
    assert_null(wanted);
    free(states), free(x);
    region_memory_free(&memory);
    device_close(stream.device);
    return worst / settings->lr;
}

// In units of lr: a direction's elements are about 1. Rounding errors of a preconditioner turn an eigenvector
// by epsilon times the largest eigenvalue over the gap to its neighbor. Gradients fall off by 0.6 per row or
// column, and so eigenvalues by 0.36; random gradients leave a gap of at least a sixteenth of the least.
static double tolerance(enum dtype type, struct soap_shape shape) {
    const int left = shape.left ? shape.rows : 1, right = shape.right ? shape.columns : 1,
              side = left > right ? left : right;
    return (type == DTYPE_F64 ? 0x1p-53 : 0x1p-24) * 23 * 16 * sqrt(side) * pow(0.36, 1 - side);
}

static void test_steps(void **state) {
    const cJSON *of, *tree = *state;
    const struct settings settings = settings_of(tree);
    assert_true(cJSON_GetArraySize(cJSON_GetObjectItem(tree, "cases")) > 4);
    cJSON_ArrayForEach(of, cJSON_GetObjectItem(tree, "cases")) {
        const struct soap_shape shape = shape_of(of);
        const size_t n = (size_t)shape.rows * (size_t)shape.columns;
        double *weight = calloc(n, sizeof *weight), *scaled = calloc(n, sizeof *weight);
        assert_true(weight && scaled);
        for (int k = 0; k < 2; k++) {
            const enum dtype type = k ? DTYPE_F32 : DTYPE_F64;
            const double worst = run_steps(&settings, of, type, 1, weight), allowed = tolerance(type, shape);
            if (!(worst <= allowed))
                fail_msg("%s, %d x %d: %g lr from PyTorch's weights, expected %g", dtype_name(type),
                         shape.rows, shape.columns, worst, allowed);
        }
        // A power of two as the scale of the loss changes no bit.
        run_steps(&settings, of, DTYPE_F32, 64, scaled);
        assert_memory_equal(scaled, weight, n * sizeof *weight);
        free(weight), free(scaled);
    }
}

static int golden_open(void **state) {
    cJSON *tree;
    EXPECT_OK(json_read_file(GOLDEN, &tree));
    *state = tree;
    return 0;
}

static int golden_close(void **state) {
    cJSON_Delete(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eigenvectors),
        cmocka_unit_test(test_eigenvectors_of_nothing),
        cmocka_unit_test(test_orthonormal),
        cmocka_unit_test(test_steps),
    };
    return cmocka_run_group_tests(tests, golden_open, golden_close);
}
