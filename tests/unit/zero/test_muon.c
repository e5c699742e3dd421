// Muon: Newton-Schulz iterations and whole steps against PyTorch in float64 (scripts/golden/optimizers.py),
// and the optimizer over a model, whose other tensors are AdamW's.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/json.h"
#include "tests/support/golden_numbers.h"
#include "tests/support/optimizer_fixture.h"

#define GOLDEN "tests/golden/optimizers/muon.json"

// ---- against PyTorch

struct golden {
    cJSON *tree;
    double lr, momentum, weight_decay;
};

static int golden_open(void **state) {
    static struct golden golden;
    const cJSON *settings;
    EXPECT_OK(json_read_file(GOLDEN, &golden.tree));
    EXPECT_OK(json_get_object(golden.tree, "settings", GOLDEN, &settings));
    EXPECT_OK(json_get_number(settings, "lr", GOLDEN, &golden.lr));
    EXPECT_OK(json_get_number(settings, "momentum", GOLDEN, &golden.momentum));
    EXPECT_OK(json_get_number(settings, "weight_decay", GOLDEN, &golden.weight_decay));
    *state = &golden;
    return 0;
}

static int golden_close(void **state) {
    cJSON_Delete(((struct golden *)*state)->tree);
    return 0;
}

static struct matrix_shape shape_of(const cJSON *of) {
    struct matrix_shape shape;
    EXPECT_OK(json_get_integer(of, "rows", 1, 1000, GOLDEN, &shape.rows));
    EXPECT_OK(json_get_integer(of, "columns", 1, 1000, GOLDEN, &shape.columns));
    return shape;
}

static size_t elements_of(struct matrix_shape shape) {
    return (size_t)(shape.rows * shape.columns);
}

// fp32: a step multiplies an error by at most 3.4445, as it does a small singular value, and its three
// products add errors of at most (k + 2) roundings each, of matrices of norm about 1 (to first order).
// Singular values fall below 3.5 throughout, and the polynomial's coefficients add to less than 11.
static double tolerance(enum dtype type, struct matrix_shape shape) {
    const double k = (double)(shape.rows > shape.columns ? shape.rows : shape.columns);
    double grown = 0;
    for (int i = 0; i < NEWTON_SCHULZ_STEPS; i++)
        grown = 3.4445 * grown + (k + 2);
    return type == DTYPE_F64 ? 1e-10 : 0x1p-24 * grown;
}

// A device with the memory of newton_schulz, in place of a model. in_strips: as on a device without
// symmetric_products.
struct bench {
    struct device *device;
    struct stream stream;
    struct region_memory memory;
    struct newton_schulz products;
};

static void bench_open(struct bench *bench, enum dtype type, struct matrix_shape shape, bool in_strips) {
    *bench = (struct bench){0};
    EXPECT_OK(type == DTYPE_F64 ? ref_device_open(&bench->device) : device_open("cpu", 2, 0, &bench->device));
    if (in_strips)
        bench->device->symmetric_products = false;
    bench->stream.device = bench->device;
    region_memory_init(&bench->memory, bench->device);
    EXPECT_OK(newton_schulz_plan(&bench->products, bench->device, type, &shape, 1, &bench->memory.table));
    EXPECT_OK(region_memory_allocate(&bench->memory));
    newton_schulz_bind(&bench->products, &bench->memory.table);
}

static void bench_close(struct bench *bench) {
    region_memory_free(&bench->memory);
    device_close(bench->device);
}

static void check_orthogonal(const cJSON *of, enum dtype type) {
    const struct matrix_shape shape = shape_of(of);
    const size_t n = elements_of(shape);
    const cJSON *given = cJSON_GetArrayItem(cJSON_GetObjectItem(of, "gradients"), 0),
                *wanted = cJSON_GetObjectItem(of, "orthogonal");
    struct bench bench;
    bench_open(&bench, type, shape, false);
    void *x = calloc(n, sizeof(double));
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        store(x, type, i, number(given, i));
    EXPECT_OK(newton_schulz_run(&bench.products, &bench.stream, x, shape));
    for (size_t i = 0; i < n; i++)
        if (!(fabs(load(x, type, i) - number(wanted, i)) <= tolerance(type, shape)))
            fail_msg("%s, %d x %d, element %zu: %.12g, expected %.12g", dtype_name(type), (int)shape.rows,
                     (int)shape.columns, i, load(x, type, i), number(wanted, i));
    free(x);
    bench_close(&bench);
}

static void test_newton_schulz(void **state) {
    const cJSON *cases, *of;
    EXPECT_OK(json_get_array(((struct golden *)*state)->tree, "cases", GOLDEN, &cases));
    assert_true(cJSON_GetArraySize(cases) > 2);
    cJSON_ArrayForEach(of, cases) {
        check_orthogonal(of, DTYPE_F64);
        check_orthogonal(of, DTYPE_F32);
    }
}

// X <- a X + (b A + c A^2) X of a matrix (rows <= columns) in double, by the formula.
static void plain_step(double *x, size_t rows, size_t columns) {
    double *gram = calloc(3 * rows * rows + rows * columns, sizeof *gram), *power = gram + rows * rows,
           *next = power + rows * rows;
    assert_non_null(gram);
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
    for (size_t i = 0; i < rows * columns; i++)
        x[i] = next[i];
    free(gram);
}

// A matrix whose symmetric products are computed by half, or in several strips, the last one smaller than the
// others.
static void check_symmetric_products(struct matrix_shape shape, bool in_strips) {
    const bool tall = shape.rows > shape.columns;
    const size_t n = elements_of(shape), rows = (size_t)(tall ? shape.columns : shape.rows),
                 columns = n / rows;
    struct bench bench;
    bench_open(&bench, DTYPE_F32, shape, in_strips);
    assert_true(bench.products.strip_rows < (int64_t)rows);
    assert_true(newton_schulz_flops(shape, bench.products.strip_rows) < 0.9 * newton_schulz_flops(shape, 0));
    double *wanted = calloc(n, sizeof *wanted), sum = 0;
    float *x = calloc(n, sizeof *x);
    assert_true(wanted && x);
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)sin((double)(i * i % 1009) + 0.1 * (double)i);
        sum += (double)x[i] * (double)x[i];
    }
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++)
            wanted[i * columns + j] = (double)x[tall ? j * rows + i : i * columns + j] / sqrt(sum);
    for (int i = 0; i < NEWTON_SCHULZ_STEPS; i++)
        plain_step(wanted, rows, columns);
    EXPECT_OK(newton_schulz_run(&bench.products, &bench.stream, x, shape));
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++)
            if (!(fabs((double)x[tall ? j * rows + i : i * columns + j] - wanted[i * columns + j]) <=
                  tolerance(DTYPE_F32, shape)))
                fail_msg("%d x %d, row %zu, column %zu: %.9g, expected %.9g", (int)shape.rows,
                         (int)shape.columns, i, j, (double)x[tall ? j * rows + i : i * columns + j],
                         wanted[i * columns + j]);
    free(x);
    free(wanted);
    bench_close(&bench);
}

static void test_symmetric_products(void **state) {
    (void)state;
    for (int in_strips = 0; in_strips < 2; in_strips++) {
        check_symmetric_products((struct matrix_shape){200, 230}, in_strips);
        check_symmetric_products((struct matrix_shape){230, 200}, in_strips);
        check_symmetric_products((struct matrix_shape){400, 400}, in_strips);
    }
}

// All steps of a matrix by the device's operations, in the order of zero/stages/muon.c.
static void run_steps(const struct golden *golden, const cJSON *of, enum dtype type, double scale,
                      void *weight) {
    const struct matrix_shape shape = shape_of(of);
    const size_t n = elements_of(shape);
    const cJSON *gradients = cJSON_GetObjectItem(of, "gradients"), *gradient;
    void *grad = calloc(n, sizeof(double)), *m = calloc(n, sizeof(double)),
         *direction = calloc(n, sizeof(double));
    assert_true(grad && m && direction);
    struct bench bench;
    bench_open(&bench, type, shape, false);
    const struct update_result result = {.grad_scale = 1};
    int64_t step_number = 0;
    cJSON_ArrayForEach(gradient, gradients) {
        for (size_t i = 0; i < n; i++)
            store(grad, type, i, number(gradient, i));
        const struct optimizer_step_args momentum = {.rule = OPTIMIZER_MUON,
                                                     .from.m = m,
                                                     .to.m = m,
                                                     .param = direction,
                                                     .grad = grad,
                                                     .n = n,
                                                     .step = ++step_number,
                                                     .beta1 = golden->momentum,
                                                     .grad_scale = 1,
                                                     .type = type,
                                                     .grad_type = type,
                                                     .state_type = type};
        EXPECT_OK(bench.device->ops->optimizer_step(&bench.stream, &momentum));
        EXPECT_OK(newton_schulz_run(&bench.products, &bench.stream, direction, shape));
        struct update_plan plan = {0};
        plan.constants[0].lr = (float)golden->lr;
        plan.constants[0].decay = (float)(golden->lr * golden->weight_decay);
        const struct muon_step_args step = {.master = weight,
                                            .update = direction,
                                            .n = n,
                                            .scale = (float)scale,
                                            .plan = &plan,
                                            .result = &result,
                                            .type = type,
                                            .update_type = type};
        EXPECT_OK(bench.device->ops->muon_step(&bench.stream, &step));
    }
    bench_close(&bench);
    free(grad), free(m), free(direction);
}

static void check_steps(const struct golden *golden, const cJSON *of, enum dtype type, const char *name,
                        double scale) {
    const struct matrix_shape shape = shape_of(of);
    const size_t n = elements_of(shape);
    const cJSON *start = cJSON_GetObjectItem(of, "weight"), *wanted = cJSON_GetObjectItem(of, name);
    void *weight = calloc(n, sizeof(double));
    assert_non_null(weight);
    for (size_t i = 0; i < n; i++)
        store(weight, type, i, number(start, i));
    run_steps(golden, of, type, scale, weight);
    // The rate and the scale are fp32 in both types: three roundings of each of three updates and decays.
    const double rounded = 3 * 3 * 0x1p-24,
                 allowed = 3 * golden->lr * scale * (tolerance(type, shape) + rounded) + rounded * 2;
    for (size_t i = 0; i < n; i++)
        if (!(fabs(load(weight, type, i) - number(wanted, i)) <= allowed))
            fail_msg("%s, %s, %d x %d, element %zu: %.12g, expected %.12g within %g", name, dtype_name(type),
                     (int)shape.rows, (int)shape.columns, i, load(weight, type, i), number(wanted, i),
                     allowed);
    free(weight);
}

static void test_steps(void **state) {
    const struct golden *golden = *state;
    const cJSON *of;
    cJSON_ArrayForEach(of, cJSON_GetObjectItem(golden->tree, "cases")) {
        const struct matrix_shape shape = shape_of(of);
        const double rows = (double)shape.rows, columns = (double)shape.columns;
        for (int k = 0; k < 2; k++) {
            const enum dtype type = k ? DTYPE_F32 : DTYPE_F64;
            check_steps(golden, of, type, "moonlight", 0.2 * sqrt(fmax(rows, columns)));
            check_steps(golden, of, type, "jordan", sqrt(fmax(1, rows / columns)));
        }
    }
}

// ---- over a model

static const struct gpt_config sizes = {
    .n_layer = 2, .n_head = 1, .n_embd = 24, .vocab_size = 50, .n_positions = 7};

// With fp32 parameters these are the master weights.
static float *floats_of(struct fixture *fixture, float *base, int i) {
    const struct param *param = &fixture->params.params[i];
    return base + fixture->params.units[param->unit].offset + param->offset;
}

// One step from zero momentum: the update of each matrix must be the orthogonalized gradient, q, k and v each
// by itself; that of any other tensor AdamW's first step, which is the gradient's sign.
static void check_update(struct fixture *fixture, const float *weight, const float *before, const float *grad,
                         const struct param *param, struct matrix_shape shape, int64_t first_row) {
    const double lr = 0.01, decay = 0.1, scale = 0.2 * sqrt(fmax((double)shape.rows, (double)shape.columns));
    const size_t begin = (size_t)(first_row * param->shape[1]), n = elements_of(shape);
    struct bench bench;
    bench_open(&bench, DTYPE_F32, shape, false);
    float *x = calloc(n, sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = grad[begin + i];
    EXPECT_OK(newton_schulz_run(&bench.products, &bench.stream, x, shape));
    for (size_t i = 0; i < n; i++) {
        const double w = (double)before[begin + i], wanted = w * (1 - lr * decay) - lr * scale * (double)x[i];
        if (!(fabs((double)weight[begin + i] - wanted) <=
              lr * scale * tolerance(DTYPE_F32, shape) + 8 * 0x1p-24 * (fabs(w) + 1)))
            fail_msg("%s, element %zu: %.9g, expected %.9g", param->name, begin + i,
                     (double)weight[begin + i], wanted);
    }
    free(x);
    bench_close(&bench);
    (void)fixture;
}

static void test_over_a_model(void **unused) {
    (void)unused;
    struct fixture fixture;
    struct optimizer *optimizer = &fixture.optimizer;
    fixture_open(&fixture, &sizes,
                 "{\"optimizer\": {\"type\": \"muon\", \"lr\": 0.01, \"adamw_lr\": 0.03}, \"train\": "
                 "{\"gradient_clipping\": 0}}");
    assert_int_equal(fixture.state.placement.n_kinds, 3);
    float *weights = fixture.state.parameters.stored, *grads = fixture.state.gradients.whole;
    EXPECT_OK(gradients_begin(&fixture.state.gradients, &fixture.stream, 0, 1));
    for (int unit = 0; unit < fixture.params.n_units; unit++)
        params_init_span(&fixture.params, 3, unit, 0, fixture.params.units[unit].elements,
                         weights + fixture.params.units[unit].offset);
    for (int i = 0; i < fixture.params.n_params; i++) {
        float *grad = floats_of(&fixture, grads, i);
        for (size_t k = 0; k < fixture.params.params[i].elements; k++)
            grad[k] = (float)sin(1.7 * (double)k * (double)(k + 3) + i) * 0.1f;
    }
    float *before = malloc(fixture.params.n_elements * sizeof *before);
    assert_non_null(before);
    memcpy(before, weights, fixture.params.n_elements * sizeof *before);
    EXPECT_OK(optimizer_update(optimizer, &fixture.stream, 1, 0.01, 1, 1));
    int n_matrices = 0;
    for (int i = 0; i < fixture.params.n_params; i++) {
        const struct param *param = &fixture.params.params[i];
        const float *weight = floats_of(&fixture, weights, i), *old = floats_of(&fixture, before, i),
                    *grad = floats_of(&fixture, grads, i);
        struct matrix_shape shapes[PARAM_PARTS_MOST];
        int64_t first_row[PARAM_PARTS_MOST];
        const bool in_block = param->unit > 0 && param->unit < fixture.params.n_units - 1;
        for (int part = in_block && param->n_dims == 2 ? muon_matrices(param, shapes, first_row) - 1 : -1;
             part >= 0; part--, n_matrices++)
            check_update(&fixture, weight, old, grad, param, shapes[part], first_row[part]);
        for (size_t k = 0; k < param->elements && !(in_block && param->n_dims == 2); k++) {
            const double decay = param->decay ? 0.1 : 0, w = (double)old[k], g = (double)grad[k],
                         wanted = w - 0.03 * (g / (fabs(g) + 1e-8) + decay * w);
            assert_true(fabs((double)weight[k] - wanted) <= 0x1p-20 * (fabs(w) + 0.03));
        }
    }
    assert_int_equal(n_matrices, 2 * 6);
    free(before);
    fixture_close(&fixture);
}

// Memory: the matrices have no second moment.
static void test_matrices_have_one_moment(void **unused) {
    (void)unused;
    struct fixture fixture;
    fixture_open(&fixture, &sizes, "{\"optimizer\": {\"type\": \"muon\"}}");
    size_t in_matrices = 0;
    for (int i = 0; i < fixture.params.n_params; i++) {
        const struct param *param = &fixture.params.params[i];
        if (param->unit > 0 && param->unit < fixture.params.n_units - 1 && param->n_dims == 2)
            in_matrices += (param->elements + PARAM_ALIGNMENT - 1) / PARAM_ALIGNMENT * PARAM_ALIGNMENT;
    }
    const struct placement_side *side = &fixture.state.placement.device;
    assert_int_equal(side->elements, fixture.params.n_elements);
    assert_int_equal(side->with_moment[0], fixture.params.n_elements);
    assert_int_equal(side->with_moment[1], fixture.params.n_elements - in_matrices);
    fixture_close(&fixture);
}

// ---- who works on what

// The work is spread: with partition even or in stage 0, no rank has more than its share and the dearest
// tensor; and with partition tensor nothing is sent.
static void test_rounds(void **unused) {
    (void)unused;
    struct fixture fixture;
    struct gpt_config large = {.n_layer = 12, .n_head = 12, .n_embd = 768, .vocab_size = 50257};
    large.n_positions = 1024;
    fixture_open(&fixture, &sizes, "{\"optimizer\": {\"type\": \"muon\"}}");
    struct params params;
    struct optimizer_groups groups;
    EXPECT_OK(params_init(&params, &large));
    EXPECT_OK(optimizer_groups_init(&groups, &fixture.config, &params));
    for (int world = 1; world <= 5; world++)
        for (int kind = 0; kind < N_PARTITIONS; kind++)
            for (int whole = 0; whole < 2; whole++) {
                struct partition partition;
                struct muon_rounds rounds;
                uint64_t elements, calls, sent = 0;
                double load[5] = {0}, total = 0, dearest = 0;
                EXPECT_OK(partition_init(&partition, &params, (enum partition_kind)kind, world));
                EXPECT_OK(muon_rounds_init(&rounds, &params, &groups, &partition, whole));
                EXPECT_OK(muon_rounds_link(&rounds));
                assert_int_equal(rounds.n_tensors, 12 * 4);
                for (int i = 0; i < rounds.n_tensors; i++) {
                    load[rounds.tensors[i].worker] += rounds.tensors[i].flops;
                    total += rounds.tensors[i].flops;
                    dearest = fmax(dearest, rounds.tensors[i].flops);
                }
                for (int rank = 0; rank < world; rank++) {
                    muon_rounds_traffic(&rounds, rank, &elements, &calls);
                    sent += elements;
                    if (whole)
                        assert_true(load[rank] <= total / world + dearest);
                }
                if (world == 1 || (!whole && kind != PARTITION_EVEN))
                    assert_true(sent == 0 && calls == 0);
                else
                    assert_true(sent > 0 && calls > 0);
                muon_rounds_free(&rounds);
                partition_free(&partition);
            }
    optimizer_groups_free(&groups);
    params_free(&params);
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_newton_schulz),
        cmocka_unit_test(test_symmetric_products),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_over_a_model),
        cmocka_unit_test(test_matrices_have_one_moment),
        cmocka_unit_test(test_rounds),
    };
    return cmocka_run_group_tests(tests, golden_open, golden_close);
}
