// The optimizer over the states of a whole model, compared with formulas in double for each element: weight
// decay by tensor, PyTorch's clipping, the global norm, padding, and the rounding of weights to bf16 and
// fp16.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "tests/support/optimizer_fixture.h"

#define N_STEPS 3
#define RATE    0.01

// Odd sizes: every unit has padding, and a block of the norm ends inside the embeddings.
static const struct gpt_config sizes = {
    .n_layer = 2, .n_head = 1, .n_embd = 33, .vocab_size = 2100, .n_positions = 7};

// One kind of state of the whole model, contiguous in stage 0. NULL: the optimizer has none.
static const float *states_of(const struct fixture *fixture, enum checkpoint_kind kind) {
    const struct optimizer_state first =
        model_states_optimizer_at(&fixture->state, &fixture->state.placement.spans[0], 0);
    return kind == CHECKPOINT_MASTER ? first.master : kind == CHECKPOINT_M ? first.m : first.v;
}

static enum status read_random(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                               float *out) {
    params_init_span(context, 11, unit, begin, end, out);
    (void)kind;
    return STATUS_OK;
}

static double gradient(int param, size_t element, int64_t step) {
    return (double)(float)(0.1 * rng_normal(5, (uint32_t)(100 * step + param + 1), element));
}

// Expected weight and moments of one element after the steps so far.
struct expectation {
    double w, m, v;
};

static void expect_adamw(struct expectation *e, double g, int64_t step, const struct config *config,
                         double decay) {
    double beta1 = config->optimizer.betas.value[0], beta2 = config->optimizer.betas.value[1];
    e->m = beta1 * e->m + (1 - beta1) * g;
    e->v = beta2 * e->v + (1 - beta2) * g * g;
    double mhat = e->m / (1 - pow(beta1, (double)step)), vhat = e->v / (1 - pow(beta2, (double)step));
    e->w -= RATE * (mhat / (sqrt(vhat) + config->optimizer.eps) + decay * e->w);
}

static void expect_adam(struct expectation *e, double g, int64_t step, const struct config *config,
                        double decay) {
    expect_adamw(e, g + decay * e->w, step, config, 0);
}

static void expect_lion(struct expectation *e, double g, int64_t step, const struct config *config,
                        double decay) {
    double beta1 = config->optimizer.betas.value[0], beta2 = config->optimizer.betas.value[1];
    double direction = beta1 * e->m + (1 - beta1) * g;
    (void)step;
    e->w -= RATE * ((direction > 0) - (direction < 0) + decay * e->w);
    e->m = beta2 * e->m + (1 - beta2) * g;
}

static void expect_sgd(struct expectation *e, double g, int64_t step, const struct config *config,
                       double decay) {
    g += decay * e->w;
    e->m = step == 1 ? g : config->optimizer.momentum * e->m + g;
    e->w -= RATE * e->m;
}

static const struct {
    enum config_optimizer type;
    void (*expect)(struct expectation *e, double g, int64_t step, const struct config *config, double decay);
} rules[] = {{CONFIG_OPTIMIZER_ADAMW, expect_adamw},
             {CONFIG_OPTIMIZER_ADAM, expect_adam},
             {CONFIG_OPTIMIZER_SGD, expect_sgd},
             {CONFIG_OPTIMIZER_LION, expect_lion}};

static void write_gradients(struct fixture *fixture, int64_t step, double *norm) {
    double sum = 0;
    float *grads = fixture->state.gradients.whole;
    EXPECT_OK(gradients_begin(&fixture->state.gradients, &fixture->stream, 0, 1));
    for (int i = 0; i < fixture->params.n_params; i++) {
        const struct param *param = &fixture->params.params[i];
        size_t offset = fixture->params.units[param->unit].offset + param->offset;
        for (size_t k = 0; k < param->elements; k++) {
            double g = gradient(i, k, step);
            grads[offset + k] = (float)g;
            sum += g * g;
        }
    }
    *norm = sqrt(sum);
}

static struct expectation expected_weight(const struct fixture *fixture, int i, size_t k, double start,
                                          const double *scales) {
    const struct config *config = &fixture->config;
    struct expectation e = {.w = start};
    double decay = fixture->params.params[i].n_dims >= 2 ? config->optimizer.weight_decay : 0;
    for (int64_t step = 1; step <= N_STEPS; step++) {
        double g = gradient(i, k, step) * scales[step - 1];
        for (size_t rule = 0; rule < sizeof rules / sizeof *rules; rule++)
            if (config->optimizer.type == rules[rule].type)
                rules[rule].expect(&e, g, step, config, decay);
    }
    return e;
}

static void assert_near(double got, double expected, double tolerance, const char *what, int param,
                        size_t k) {
    if (!(fabs(got - expected) <= tolerance))
        fail_msg("%s of tensor %d, element %zu: %.9g, expected %.9g", what, param, k, got, expected);
}

static void assert_tensor(const struct fixture *fixture, int i, const float *start, const double *scales) {
    const struct param *param = &fixture->params.params[i];
    size_t offset = fixture->params.units[param->unit].offset + param->offset;
    const float *master = states_of(fixture, CHECKPOINT_MASTER), *m = states_of(fixture, CHECKPOINT_M),
                *v = states_of(fixture, CHECKPOINT_V);
    for (size_t k = 0; k < param->elements; k++) {
        size_t at = offset + k;
        struct expectation e = expected_weight(fixture, i, k, start[at], scales);
        // A few fp32 roundings per step, of values and of updates of size RATE.
        double tolerance = N_STEPS * 4 * dtype_epsilon(DTYPE_F32) * (fabs(e.w) + RATE);
        assert_near(master[at], e.w, tolerance, "weight", i, k);
        if (m)
            assert_near(m[at], e.m, N_STEPS * 4 * dtype_epsilon(DTYPE_F32) * (fabs(e.m) + 0.1), "m", i, k);
        if (v)
            assert_near(v[at], e.v, N_STEPS * 4 * dtype_epsilon(DTYPE_F32) * (e.v + 1e-3), "v", i, k);
        if (fixture->state.stage.type == DTYPE_BF16)
            assert_int_equal(((const uint16_t *)fixture->state.parameters.stored)[at],
                             bf16_from_float(master[at]));
        if (fixture->state.stage.type == DTYPE_F16)
            assert_int_equal(((const uint16_t *)fixture->state.parameters.stored)[at],
                             f16_from_float(master[at]));
    }
}

// Padding is zero at the start and must be zero at the end.
static void assert_padding_is_zero(const struct fixture *fixture) {
    char *used = calloc(fixture->params.n_elements, 1);
    assert_non_null(used);
    size_t padding = 0;
    for (int i = 0; i < fixture->params.n_params; i++) {
        const struct param *param = &fixture->params.params[i];
        memset(used + fixture->params.units[param->unit].offset + param->offset, 1, param->elements);
    }
    for (size_t at = 0; at < fixture->params.n_elements; at++)
        for (int kind = 0; kind < fixture->state.placement.n_kinds && !used[at]; kind++, padding++)
            assert_true(states_of(fixture, (enum checkpoint_kind)kind)[at] == 0);
    assert_true(padding > 0);
    free(used);
}

static void check_steps(const char *json, enum dtype type, int n_kinds, bool clips) {
    struct fixture fixture;
    double scales[N_STEPS];
    fixture_open_as(&fixture, &sizes, json, type);
    assert_int_equal(fixture.state.placement.n_kinds, n_kinds);
    EXPECT_OK(model_states_load(&fixture.state, &fixture.stream,
                                &(struct checkpoint_source){.context = &fixture.params, .read = read_random},
                                false));
    size_t bytes = fixture.params.n_elements * sizeof(float);
    float *start = malloc(bytes);
    assert_non_null(start);
    memcpy(start, states_of(&fixture, CHECKPOINT_MASTER), bytes);
    for (int64_t step = 1; step <= N_STEPS; step++) {
        double norm, expected_norm, clip = fixture.config.train.gradient_clipping;
        write_gradients(&fixture, step, &expected_norm);
        EXPECT_OK(optimizer_norm(&fixture.optimizer, &fixture.stream, &norm));
        assert_near(norm, expected_norm, 1e-12 * expected_norm, "norm", -1, 0);
        double factor = clip > 0 ? clip / (norm + 1e-6) : 1;
        scales[step - 1] = factor < 1 ? factor : 1;
        assert_int_equal(scales[step - 1] < 1, clips);
        EXPECT_OK(fixture_update(&fixture, step, RATE, norm));
    }
    for (int i = 0; i < fixture.params.n_params; i++)
        assert_tensor(&fixture, i, start, scales);
    assert_padding_is_zero(&fixture);
    free(start);
    fixture_close(&fixture);
}

static void test_adamw(void **unused) {
    (void)unused;
    check_steps("{\"optimizer\": {\"weight_decay\": 0.3}, \"train\": {\"gradient_clipping\": 0}}", DTYPE_F32,
                3, false);
}

static void test_adamw_clipped(void **unused) {
    (void)unused;
    check_steps("{\"optimizer\": {\"betas\": [0.8, 0.99], \"eps\": 1e-3}, "
                "\"train\": {\"gradient_clipping\": 0.5}}",
                DTYPE_F32, 3, true);
}

static void test_adamw_with_16_bit_parameters(void **unused) {
    (void)unused;
    check_steps("{\"train\": {\"gradient_clipping\": 1e9}}", DTYPE_BF16, 3, false);
    check_steps("{\"train\": {\"gradient_clipping\": 1e9}}", DTYPE_F16, 3, false);
}

// epsilon is large, because gradient + decay may cancel almost to zero. Divided by its own magnitude, the
// result would be rounding noise.
static void test_adam(void **unused) {
    (void)unused;
    check_steps("{\"optimizer\": {\"type\": \"adam\", \"weight_decay\": 0.3, \"eps\": 0.01}, \"train\": "
                "{\"gradient_clipping\": 0.5}}",
                DTYPE_F32, 3, true);
}

static void test_lion(void **unused) {
    (void)unused;
    check_steps("{\"optimizer\": {\"type\": \"lion\", \"betas\": [0.9, 0.99]}}", DTYPE_BF16, 2, true);
}

static void test_sgd_with_momentum(void **unused) {
    (void)unused;
    check_steps("{\"optimizer\": {\"type\": \"sgd\", \"momentum\": 0.7, \"weight_decay\": 0.2}, "
                "\"train\": {\"gradient_clipping\": 0.5}}",
                DTYPE_BF16, 2, true);
}

static void test_sgd_without_momentum(void **unused) {
    (void)unused;
    check_steps(
        "{\"optimizer\": {\"type\": \"sgd\", \"momentum\": 0}, \"train\": {\"gradient_clipping\": 0}}",
        DTYPE_F32, 1, false);
}

// A NaN or infinite gradient makes the norm not finite.
static void test_norm_of_nonfinite_gradients(void **unused) {
    (void)unused;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    struct fixture fixture;
    fixture_open(&fixture, &sizes, "{}");
    for (int i = 0; i < 3; i++) {
        double norm;
        write_gradients(&fixture, 1, &norm);
        (fixture.state.gradients.whole)[fixture.params.units[1].offset + 3] = bad[i];
        EXPECT_OK(optimizer_norm(&fixture.optimizer, &fixture.stream, &norm));
        assert_false(isfinite(norm));
    }
    fixture_close(&fixture);
}

// Squares beyond the range of fp32 must not overflow the norm.
static void test_a_norm_of_huge_gradients(void **unused) {
    (void)unused;
    struct fixture fixture;
    double norm;
    fixture_open(&fixture, &sizes, "{}");
    EXPECT_OK(gradients_begin(&fixture.state.gradients, &fixture.stream, 0, 1));
    (fixture.state.gradients.whole)[5] = 3e30f;
    (fixture.state.gradients.whole)[fixture.params.units[1].offset] = 4e30f;
    EXPECT_OK(optimizer_norm(&fixture.optimizer, &fixture.stream, &norm));
    assert_near(norm, 5e30, 5e30 * 1e-6, "norm", -1, 0);
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_adamw_clipped),
        cmocka_unit_test(test_adamw_with_16_bit_parameters),
        cmocka_unit_test(test_adam),
        cmocka_unit_test(test_lion),
        cmocka_unit_test(test_sgd_with_momentum),
        cmocka_unit_test(test_sgd_without_momentum),
        cmocka_unit_test(test_norm_of_nonfinite_gradients),
        cmocka_unit_test(test_a_norm_of_huge_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
