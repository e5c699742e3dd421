// Newton-Schulz iterations, and whole steps of Muon, against PyTorch in float64
// (scripts/golden/optimizers.py) and against plain loops in double, on the CPU and, if there is one, on a
// GPU.
#include "base/json.h"
#include "base/rng.h"
#include "tests/support/newton_schulz_bench.h"

// After cmocka.h, which the header above includes.
#include "tests/support/golden_numbers.h"

#define GOLDEN "tests/golden/optimizers/muon.json"

static struct golden {
    cJSON *tree;
    double lr, momentum, weight_decay;
} golden;

static int golden_open(void **state) {
    const cJSON *settings;
    (void)state;
    EXPECT_OK(json_read_file(GOLDEN, &golden.tree));
    EXPECT_OK(json_get_object(golden.tree, "settings", GOLDEN, &settings));
    EXPECT_OK(json_get_number(settings, "lr", GOLDEN, &golden.lr));
    EXPECT_OK(json_get_number(settings, "momentum", GOLDEN, &golden.momentum));
    EXPECT_OK(json_get_number(settings, "weight_decay", GOLDEN, &golden.weight_decay));
    return 0;
}

static int golden_close(void **state) {
    (void)state;
    cJSON_Delete(golden.tree);
    return 0;
}

static struct matrix_shape shape_of(const cJSON *of) {
    struct matrix_shape shape;
    EXPECT_OK(json_get_integer(of, "rows", 1, 1000, GOLDEN, &shape.rows));
    EXPECT_OK(json_get_integer(of, "columns", 1, 1000, GOLDEN, &shape.columns));
    return shape;
}

static double *numbers_new(size_t n) {
    double *numbers = calloc(n, sizeof *numbers);
    assert_non_null(numbers);
    return numbers;
}

static double *numbers_of(const cJSON *array) {
    const size_t n = (size_t)cJSON_GetArraySize(array);
    double *numbers = numbers_new(n);
    for (size_t i = 0; i < n; i++)
        numbers[i] = number(array, i);
    return numbers;
}

// The device of a test is its initial state. The reference computes in double.
static enum dtype exact_type(const char *device) {
    return strcmp(device, "ref") == 0 ? DTYPE_F64 : DTYPE_F32;
}

static void check_near(const struct bench *bench, const char *what, const double *got, const double *wanted,
                       double allowed) {
    for (size_t i = 0; i < bench->n; i++)
        if (!(fabs(got[i] - wanted[i]) <= allowed))
            fail_msg("%s, %s, %d x %d, element %zu: %.12g, expected %.12g within %g", what,
                     dtype_name(bench->type), (int)bench->shape.rows, (int)bench->shape.columns, i, got[i],
                     wanted[i], allowed);
}

// ---- against PyTorch

static void test_orthogonal_matrices(void **state) {
    const cJSON *cases, *of;
    EXPECT_OK(json_get_array(golden.tree, "cases", GOLDEN, &cases));
    assert_true(cJSON_GetArraySize(cases) > 2);
    cJSON_ArrayForEach(of, cases) {
        double *x = numbers_of(cJSON_GetArrayItem(cJSON_GetObjectItem(of, "gradients"), 0)),
               *wanted = numbers_of(cJSON_GetObjectItem(of, "orthogonal"));
        struct bench bench;
        bench_open(&bench, *state, exact_type(*state), shape_of(of), false);
        bench_orthogonalize(&bench, x);
        check_near(&bench, "orthogonal", x, wanted, newton_schulz_tolerance(bench.type, bench.shape));
        bench_close(&bench);
        free(wanted);
        free(x);
    }
}

// One step by the device's operations, in the order of zero/optimizer/muon.c.
static void run_step(struct bench *bench, const cJSON *gradient, int64_t step_number, double scale) {
    double *grad = numbers_of(gradient);
    bench_put(bench, BENCH_GRAD, grad);
    free(grad);
    const struct optimizer_step_args momentum = {.rule = OPTIMIZER_MUON,
                                                 .state.m = bench_at(bench, BENCH_MOMENTUM),
                                                 .param = bench_at(bench, BENCH_X),
                                                 .grad = bench_at(bench, BENCH_GRAD),
                                                 .n = bench->n,
                                                 .step = step_number,
                                                 .beta1 = golden.momentum,
                                                 .grad_scale = 1,
                                                 .type = bench->type,
                                                 .grad_type = bench->type,
                                                 .state_type = bench->type};
    EXPECT_OK(bench->device->ops->optimizer_step(&bench->stream, &momentum));
    bench_run(bench);
    const struct muon_step_args step = {.master = bench_at(bench, BENCH_WEIGHT),
                                        .update = bench_at(bench, BENCH_X),
                                        .n = bench->n,
                                        .scale = (float)scale,
                                        .plan = bench_at(bench, BENCH_PLAN),
                                        .result = bench_at(bench, BENCH_RESULT),
                                        .type = bench->type,
                                        .update_type = bench->type};
    EXPECT_OK(bench->device->ops->muon_step(&bench->stream, &step));
}

static void check_steps(const char *device, const cJSON *of, const char *name, double scale) {
    const cJSON *gradients = cJSON_GetObjectItem(of, "gradients"), *gradient;
    const struct update_result result = {.grad_scale = 1};
    struct update_plan plan = {0};
    struct bench bench;
    int64_t step_number = 0;
    double *weight = numbers_of(cJSON_GetObjectItem(of, "weight")),
           *wanted = numbers_of(cJSON_GetObjectItem(of, name));
    plan.constants[0].lr = (float)golden.lr;
    plan.constants[0].decay = (float)(golden.lr * golden.weight_decay);
    bench_open(&bench, device, exact_type(device), shape_of(of), false);
    bench_put(&bench, BENCH_WEIGHT, weight);
    bench_write(&bench, BENCH_PLAN, &plan, sizeof plan);
    bench_write(&bench, BENCH_RESULT, &result, sizeof result);
    cJSON_ArrayForEach(gradient, gradients) run_step(&bench, gradient, ++step_number, scale);
    bench_get(&bench, BENCH_WEIGHT, weight);
    // The rate and the scale are fp32 in both types: three roundings of each of three updates and decays.
    const double rounded = 3 * 3 * 0x1p-24,
                 allowed =
                     3 * golden.lr * scale * (newton_schulz_tolerance(bench.type, bench.shape) + rounded) +
                     rounded * 2;
    check_near(&bench, name, weight, wanted, allowed);
    bench_close(&bench);
    free(wanted);
    free(weight);
}

static void test_steps(void **state) {
    const cJSON *of;
    cJSON_ArrayForEach(of, cJSON_GetObjectItem(golden.tree, "cases")) {
        const struct matrix_shape shape = shape_of(of);
        const double rows = (double)shape.rows, columns = (double)shape.columns;
        check_steps(*state, of, "moonlight", 0.2 * sqrt(fmax(rows, columns)));
        check_steps(*state, of, "jordan", sqrt(fmax(1, rows / columns)));
    }
}

// ---- against plain loops

// X <- a X + (b A + c A^2) X of a matrix (rows <= columns) in double, by the formula.
static void plain_step(double *x, size_t rows, size_t columns) {
    double *gram = numbers_new(2 * rows * rows + rows * columns), *power = gram + rows * rows,
           *next = power + rows * rows;
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < rows; j++)
            for (size_t k = 0; k < columns; k++)
                gram[i * rows + j] += x[i * columns + k] * x[j * columns + k];
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < rows; j++) {
            double square = 0;
            for (size_t k = 0; k < rows; k++)
                square += gram[i * rows + k] * gram[k * rows + j];
            power[i * rows + j] = -4.7750 * gram[i * rows + j] + 2.0315 * square + (i == j ? 3.4445 : 0);
        }
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < rows; k++)
            for (size_t j = 0; j < columns; j++)
                next[i * columns + j] += power[i * rows + k] * x[k * columns + j];
    memcpy(x, next, rows * columns * sizeof *x);
    free(gram);
}

// The matrix, or its transpose, which has as many columns as rows or more.
static double *wide_copy(const double *x, struct matrix_shape shape, size_t *rows, size_t *columns) {
    const bool tall = shape.rows > shape.columns;
    *rows = (size_t)(tall ? shape.columns : shape.rows);
    *columns = (size_t)(tall ? shape.rows : shape.columns);
    double *wide = numbers_new(*rows * *columns);
    for (size_t i = 0; i < *rows; i++)
        for (size_t j = 0; j < *columns; j++)
            wide[i * *columns + j] = tall ? x[j * *rows + i] : x[i * *columns + j];
    return wide;
}

static double norm_of(const double *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

// A matrix whose numbers are exact in bf16, orthogonalized by a device: both as wide ones, to be freed.
struct pair {
    struct matrix_shape shape;
    size_t rows, columns, n;
    double *before, *wanted, *got; // divided by the norm; after all steps in double; on the device
};

static void pair_free(struct pair *pair) {
    free(pair->before);
    free(pair->wanted);
    free(pair->got);
}

static void pair_make(struct pair *pair, struct bench *bench, uint32_t seed) {
    double *x = numbers_new(bench->n);
    for (size_t i = 0; i < bench->n; i++)
        x[i] = (double)bf16_to_float(bf16_from_float((float)rng_normal(7, seed, i)));
    *pair = (struct pair){.shape = bench->shape, .n = bench->n};
    pair->before = wide_copy(x, bench->shape, &pair->rows, &pair->columns);
    pair->wanted = numbers_new(bench->n);
    const double norm = norm_of(x, bench->n);
    for (size_t i = 0; i < bench->n; i++)
        pair->wanted[i] = pair->before[i] /= norm;
    for (int i = 0; i < NEWTON_SCHULZ_STEPS; i++)
        plain_step(pair->wanted, pair->rows, pair->columns);
    bench_orthogonalize(bench, x);
    pair->got = wide_copy(x, bench->shape, &pair->rows, &pair->columns);
    free(x);
}

// A matrix whose symmetric products are computed as the device does it best, or in several strips, the last
// one smaller than the others.
static void check_symmetric_products(const char *device, struct matrix_shape shape, bool in_strips) {
    struct bench bench;
    struct pair pair;
    bench_open(&bench, device, DTYPE_F32, shape, in_strips);
    const int strip = bench.device->symmetric_strips[bench.type];
    assert_true(strip < (shape.rows < shape.columns ? shape.rows : shape.columns));
    assert_true(newton_schulz_flops(shape, strip) < 0.9 * newton_schulz_flops(shape, 0));
    pair_make(&pair, &bench, 1);
    check_near(&bench, "symmetric products", pair.got, pair.wanted,
               newton_schulz_tolerance(DTYPE_F32, shape));
    pair_free(&pair);
    bench_close(&bench);
}

static void test_symmetric_products(void **state) {
    for (int in_strips = 0; in_strips < 2; in_strips++) {
        check_symmetric_products(*state, (struct matrix_shape){200, 230}, in_strips);
        check_symmetric_products(*state, (struct matrix_shape){230, 200}, in_strips);
        check_symmetric_products(*state, (struct matrix_shape){400, 400}, in_strips);
    }
}

// A GPU's own strips are wider than these matrices.
static void test_strips(void **state) {
    check_symmetric_products(*state, (struct matrix_shape){130, 150}, true);
    check_symmetric_products(*state, (struct matrix_shape){150, 130}, true);
}

// ---- several matrices

static double *random_matrix(const struct bench *bench, uint32_t seed) {
    double *x = numbers_new(bench->n);
    for (size_t i = 0; i < bench->n; i++)
        x[i] = rng_normal(7, seed, i);
    return x;
}

#define MOST_MATRICES 16

// Matrices of three shapes in one buffer, as those of fused tensors with three parts lie in it, of which two
// have one shape; behind them some of one part.
static int place_matrices(struct newton_schulz_matrix *matrices, size_t *elements) {
    static const struct matrix_shape parts[] = {{40, 24}, {16, 24}, {16, 24}};
    const size_t distance = 40 * 24 + 2 * 16 * 24 + 8;
    int n = 0;
    for (size_t i = 0; i < 4; i++) {
        size_t at = i * distance;
        for (int part = 0; part < 3; part++) {
            matrices[n++] = (struct newton_schulz_matrix){at, parts[part]};
            at += (size_t)(parts[part].rows * parts[part].columns);
        }
    }
    for (size_t i = 0; i < 3; i++)
        matrices[n++] = (struct newton_schulz_matrix){4 * distance + i * 24 * 40, {24, 40}};
    *elements = 4 * distance + (size_t)3 * 24 * 40;
    return n;
}

// On a GPU, each part of all tensors is a batch; on the CPU each matrix is one. Each is in one batch.
static void check_batches(const struct newton_schulz_matrix *matrices, int n,
                          const struct newton_schulz_batch *batches, int n_batches, bool on_gpu) {
    int found[MOST_MATRICES] = {0};
    assert_int_equal(n_batches, on_gpu ? 4 : n);
    for (int i = 0; i < n_batches; i++)
        for (int k = 0; k < batches[i].n; k++)
            for (int j = 0; j < n; j++)
                found[j] += matrices[j].at == batches[i].at + (size_t)k * batches[i].distance &&
                            matrices[j].shape.rows == batches[i].shape.rows;
    for (int i = 0; i < n; i++)
        assert_int_equal(found[i], 1);
}

// The batches' numbers, as one matrix of the bench's area.
static double *run_batches(const struct newton_schulz_matrix *matrices, int n, size_t elements,
                           const char *device, bool one_by_one) {
    static const struct newton_schulz_batch kinds[] = {
        {.shape = {40, 24}, .n = 4}, {.shape = {16, 24}, .n = 8}, {.shape = {24, 40}, .n = 3}};
    struct newton_schulz_matrix scratch[MOST_MATRICES];
    struct newton_schulz_batch batches[MOST_MATRICES];
    struct newton_schulz products;
    struct bench bench;
    bench_open(&bench, device, exact_type(device), (struct matrix_shape){1, (int64_t)elements}, false);
    struct region_memory memory;
    region_memory_init(&memory, bench.device);
    products = (struct newton_schulz){.device = bench.device, .type = bench.type};
    EXPECT_OK(newton_schulz_plan(&products, kinds, 3, &memory.table));
    EXPECT_OK(region_memory_allocate(&memory));
    newton_schulz_bind(&products, &memory.table);
    memcpy(scratch, matrices, (size_t)n * sizeof *scratch);
    int n_batches = newton_schulz_divide(bench.device, scratch, n, batches);
    check_batches(matrices, n, batches, n_batches, bench.device->place == REGION_DEVICE);
    for (int i = 0; i < n && one_by_one; i++)
        batches[i] = (struct newton_schulz_batch){matrices[i].at, 0, matrices[i].shape, 1};
    n_batches = one_by_one ? n : n_batches;
    double *x = random_matrix(&bench, 1);
    bench_put(&bench, BENCH_X, x);
    for (int i = 0; i < n_batches; i++) {
        EXPECT_OK(newton_schulz_prepare(&products, &batches[i]));
        EXPECT_OK(newton_schulz_run(&products, &bench.stream, bench_at(&bench, BENCH_X), &batches[i]));
    }
    bench_get(&bench, BENCH_X, x);
    region_memory_free(&memory);
    bench_close(&bench);
    return x;
}

// Each becomes what it becomes alone, to the bit.
static void test_several_matrices(void **state) {
    struct newton_schulz_matrix matrices[MOST_MATRICES];
    size_t elements;
    const int n = place_matrices(matrices, &elements);
    double *together = run_batches(matrices, n, elements, *state, false),
           *alone = run_batches(matrices, n, elements, *state, true);
    assert_memory_equal(together, alone, elements * sizeof *alone);
    free(together);
    free(alone);
}

// ---- bf16 with fp32 sums

#define MOST_ROWS 64

// The singular values of x (rows <= columns), which is overwritten, by one-sided Jacobi rotations of rows.
static void singular_values(double *x, size_t rows, size_t columns, double *out) {
    for (int sweep = 0; sweep < 12; sweep++) // converges quadratically after a few
        for (size_t i = 0; i < rows; i++)
            for (size_t j = i + 1; j < rows; j++) {
                double *p = x + i * columns, *q = x + j * columns, pp = 0, qq = 0, pq = 0;
                for (size_t k = 0; k < columns; k++)
                    pp += p[k] * p[k], qq += q[k] * q[k], pq += p[k] * q[k];
                if (fabs(pq) <= 1e-15 * sqrt(pp * qq))
                    continue;
                const double zeta = (qq - pp) / (2 * pq),
                             tangent = copysign(1 / (fabs(zeta) + sqrt(1 + zeta * zeta)), zeta),
                             cosine = 1 / sqrt(1 + tangent * tangent), sine = cosine * tangent;
                for (size_t k = 0; k < columns; k++) {
                    const double old = p[k];
                    p[k] = cosine * old - sine * q[k];
                    q[k] = sine * old + cosine * q[k];
                }
            }
    for (size_t i = 0; i < rows; i++)
        out[i] = norm_of(x + i * columns, columns);
}

static double square(double x) {
    return x * x;
}

// Squares of a step's factors of an error's part in the left and right singular vectors i and j: the divided
// differences of p(s) = a s + b s^3 + c s^5, of which the symmetric part of the error is multiplied by one
// and the antisymmetric part by the other.
static double growth(double si, double sj, double pi, double pj) {
    const double slope = 3.4445 - 3 * 4.7750 * si * si + 5 * 2.0315 * square(si * si),
                 difference = fabs(si - sj) < 1e-9 ? slope : (pi - pj) / (si - sj),
                 sum = (pi + pj) / (si + sj);
    return si == sj ? square(slope) : (square(difference) + square(sum)) / 2;
}

// The expected error in the Frobenius norm, from the singular values s (rows) before the first step.
//
// Every matrix that is stored is rounded: an error of at most u = 2^-8 of the element, of variance u^2 / 3 of
// its square if errors are uniformly distributed. A sum of k products in fp32 errs by at most k 2^-24 of the
// sum of their magnitudes, so its variance is at most a third of that squared. Errors of different roundings
// are taken as independent, and those of a matrix as spread evenly over its entries in the basis of X's
// singular vectors, where to first order
//   an error of X grows by growth() above, and in columns beyond the rows by p(s) / s
//   an error of A becomes (D dA + c dA A) X with D = c A + b I, of D A and of B = D A + a I: dB X
// Variances add, and their sum over all entries is the expected square of the norm.
static double expected_error(double *s, size_t rows, size_t columns) {
    const double u = square(0x1p-8) / 3, sums = square((double)columns * 0x1p-24) / 3, r = (double)rows;
    static double error[MOST_ROWS][MOST_ROWS], beyond[MOST_ROWS]; // variances
    double total = 0;
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < rows; j++)
            error[i][j] = u / (r * (double)columns); // of X, of norm 1
        beyond[i] = u / (r * (double)columns) * (double)(columns - rows);
    }
    for (int step = 0; step < NEWTON_SCHULZ_STEPS; step++) {
        double next[MOST_ROWS], xx = 0, aa = 0, dd = 0, bb = 0, pp = 0, nn = 0; // squared norms
        for (size_t i = 0; i < rows; i++) {
            const double a = s[i] * s[i], d = 2.0315 * a - 4.7750, p = d * a + 3.4445;
            next[i] = p * s[i];
            xx += a, aa += a * a, dd += d * d, bb += square(d * a), pp += p * p, nn += square(next[i]);
        }
        const double of_a = (u * aa + sums * xx * xx) / (r * r),
                     of_b = (u * (bb + pp) + sums * dd * aa) / (r * r),
                     of_x = (u * nn + sums * pp * xx) / (r * (double)columns);
        for (size_t i = 0; i < rows; i++) {
            const double d = 2.0315 * s[i] * s[i] - 4.7750;
            for (size_t j = 0; j < rows; j++) {
                const double a = s[j] * s[j];
                error[i][j] = growth(s[i], s[j], next[i], next[j]) * error[i][j] +
                              a * (square(d + 2.0315 * a) * of_a + of_b) + of_x;
            }
            beyond[i] = square(next[i] / s[i]) * beyond[i] + of_x * (double)(columns - rows);
        }
        memcpy(s, next, rows * sizeof *s);
    }
    for (size_t i = 0; i < rows; i++) {
        total += beyond[i];
        for (size_t j = 0; j < rows; j++)
            total += error[i][j];
    }
    return sqrt(total);
}

static void range_of(const double *x, size_t n, double *least, double *most) {
    *least = *most = x[0];
    for (size_t i = 1; i < n; i++)
        *least = fmin(*least, x[i]), *most = fmax(*most, x[i]);
}

// Within four times the expected error, as of a normal distribution. No singular value moves by more than the
// error's norm (Weyl), so that they stay in the range of the float64 iteration, widened by it.
static void check_bf16(const char *device, struct matrix_shape shape, uint32_t seed, double *worst) {
    double values[MOST_ROWS], error = 0, least, most, got_least, got_most;
    struct bench bench;
    struct pair pair;
    bench_open(&bench, device, DTYPE_BF16, shape, false);
    pair_make(&pair, &bench, seed);
    singular_values(pair.before, pair.rows, pair.columns, values);
    const double expected = expected_error(values, pair.rows, pair.columns);
    for (size_t i = 0; i < pair.n; i++)
        error += square(pair.got[i] - pair.wanted[i]);
    error = sqrt(error);
    *worst = fmax(*worst, error / expected);
    if (!(error <= 4 * expected))
        fail_msg("%d x %d: an error of %.3g, expected %.3g", (int)shape.rows, (int)shape.columns, error,
                 expected);
    singular_values(pair.wanted, pair.rows, pair.columns, values);
    range_of(values, pair.rows, &least, &most);
    singular_values(pair.got, pair.rows, pair.columns, values);
    range_of(values, pair.rows, &got_least, &got_most);
    if (!(got_least >= least - 4 * expected && got_most <= most + 4 * expected))
        fail_msg("%d x %d: singular values in [%.3f, %.3f], expected in [%.3f, %.3f] within %.3f",
                 (int)shape.rows, (int)shape.columns, got_least, got_most, least, most, 4 * expected);
    pair_free(&pair);
    bench_close(&bench);
}

static void test_bf16(void **state) {
    static const struct matrix_shape shapes[] = {{1, 7},   {2, 64},  {8, 8},   {6, 20},  {20, 6},
                                                 {17, 12}, {4, 300}, {300, 8}, {48, 64}, {64, 64}};
    double worst = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (uint32_t seed = 1; seed <= 3; seed++)
            check_bf16(*state, shapes[i], seed, &worst);
    print_message("bf16: at most %.2f times the expected error, 4 allowed\n", worst);
}

// ----

#define ON(device, test)                                                                                     \
    { #test " on " device, test, NULL, NULL, device }

// The only test, skipped, when there is no GPU.
static void test_without_a_gpu(void **state) {
    (void)state;
    skip();
}

// There where the GPU is simulated: the release and asan builds test the same CPU kernels.
void cudasim_reorder(unsigned seed) __attribute__((weak));

int main(void) {
    static const struct CMUnitTest on_cpu[] = {ON("ref", test_orthogonal_matrices),
                                               ON("ref", test_steps),
                                               ON("cpu", test_orthogonal_matrices),
                                               ON("cpu", test_steps),
                                               ON("cpu", test_symmetric_products),
                                               ON("cpu", test_bf16),
                                               ON("ref", test_several_matrices),
                                               ON("cpu", test_several_matrices)},
                                   on_gpu[] = {ON("cuda", test_orthogonal_matrices), ON("cuda", test_steps),
                                               ON("cuda", test_strips), ON("cuda", test_bf16),
                                               ON("cuda", test_several_matrices)},
                                   none[] = {ON("cuda", test_without_a_gpu)};
    int failed = 0;
    if (!cudasim_reorder)
        failed += cmocka_run_group_tests_name("Newton-Schulz on the CPU", on_cpu, golden_open, golden_close);
    failed += cuda_device_present()
                  ? cmocka_run_group_tests_name("Newton-Schulz on a GPU", on_gpu, golden_open, golden_close)
                  : cmocka_run_group_tests_name("Newton-Schulz on a GPU", none, NULL, NULL);
    return failed;
}
