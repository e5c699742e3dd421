// The parameter table: known counts, a layout without overlap, initial values that are a pure function of
// (seed, tensor, element) with GPT-2's deviations, and impossible sizes refused.
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
// cmocka needs the headers above.
#include <cmocka.h>

#include "model/params.h"
#include "tests/support/flops_formula.h"

#define SIZES(layers, heads, width, vocabulary, positions)                                                   \
    {                                                                                                        \
        .n_layer = layers, .n_head = heads, .n_embd = width, .vocab_size = vocabulary,                       \
        .n_positions = positions                                                                             \
    }
static const struct gpt_config gpt2_small = {
    .n_layer = 12, .n_head = 12, .n_embd = 768, .vocab_size = 50257, .n_positions = 1024};
static const struct gpt_config tiny = {
    .n_layer = 3, .n_head = 2, .n_embd = 50, .vocab_size = 77, .n_positions = 13};

// The known parameter counts of the GPT-2 models (Hugging Face's num_parameters).
static void test_known_counts(void **state) {
    (void)state;
    static const struct {
        struct gpt_config config;
        size_t n_weights;
    } cases[] = {{SIZES(12, 12, 768, 50257, 1024), 124439808},
                 {SIZES(24, 16, 1024, 50257, 1024), 354823168},
                 {SIZES(36, 20, 1280, 50257, 1024), 774030080},
                 {SIZES(48, 25, 1600, 50257, 1024), 1557611200}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct params params;
        assert_int_equal(params_init(&params, &cases[i].config), STATUS_OK);
        assert_int_equal(params.n_weights, cases[i].n_weights);
        params_free(&params);
    }
}

static void test_layout(void **state) {
    (void)state;
    const struct gpt_config configs[] = {gpt2_small, tiny};
    for (size_t c = 0; c < sizeof configs / sizeof *configs; c++) {
        struct params params;
        assert_int_equal(params_init(&params, &configs[c]), STATUS_OK);
        assert_int_equal(params.n_units, configs[c].n_layer + 2);
        size_t elements = 0, weights = 0;
        int n_params = 0;
        for (int unit = 0; unit < params.n_units; unit++) {
            const struct param_unit *u = &params.units[unit];
            size_t used = 0;
            assert_int_equal(u->first_param, n_params);
            assert_int_equal(u->offset, elements);
            assert_int_equal(u->elements % PARAM_ALIGNMENT, 0);
            for (int i = u->first_param; i < u->first_param + u->n_params; i++, n_params++) {
                const struct param *param = &params.params[i];
                assert_int_equal(param->unit, unit);
                assert_int_equal(param->offset % PARAM_ALIGNMENT, 0);
                assert_true(param->offset >= used && param->offset - used < PARAM_ALIGNMENT);
                used = param->offset + param->elements;
                size_t product = (size_t)param->shape[0] * (size_t)(param->n_dims == 2 ? param->shape[1] : 1);
                assert_int_equal(param->elements, product);
                assert_true(param->decay == (param->n_dims >= 2));
                assert_true(param->hf_transposed == (strstr(param->name, ".c_") && param->n_dims == 2));
                assert_int_equal(params_find(&params, param->name), i);
                weights += param->elements;
            }
            assert_true(used <= u->elements && u->elements - used < PARAM_ALIGNMENT);
            elements += u->elements;
        }
        assert_int_equal(n_params, params.n_params);
        assert_int_equal(elements, params.n_elements);
        assert_int_equal(weights, params.n_weights);
        params_free(&params);
    }
}

static void test_names(void **state) {
    (void)state;
    struct params params;
    assert_int_equal(params_init(&params, &tiny), STATUS_OK);
    int index = params_find(&params, "transformer.h.2.mlp.c_fc.weight");
    assert_true(index >= 0);
    assert_int_equal(index, params_find(&params, "h.2.mlp.c_fc.weight"));
    assert_int_equal(params.params[index].shape[0], 200); // (out, in)
    assert_int_equal(params.params[index].shape[1], 50);
    assert_int_equal(params.params[index].unit, 3);
    static const char *const absent[] = {
        "h.3.ln_1.bias", "lm_head.weight", "transformer.transformer.wte.weight", "wte", "", "transformer."};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        assert_int_equal(params_find(&params, absent[i]), -1);
    params_free(&params);
}

// Any division of a unit into spans gives the same values: any rank can initialize any shard.
static void test_initial_values_do_not_depend_on_the_partition(void **state) {
    (void)state;
    struct params params;
    assert_int_equal(params_init(&params, &tiny), STATUS_OK);
    for (int unit = 0; unit < params.n_units; unit++) {
        size_t n = params.units[unit].elements;
        float *whole = malloc(n * sizeof *whole), *by_span = malloc(n * sizeof *by_span);
        assert_true(whole && by_span);
        params_init_span(&params, 5, unit, 0, n, whole);
        memset(by_span, 0xff, n * sizeof *by_span);
        for (size_t begin = 0, end; begin < n; begin = end) {
            end = begin + 1 + begin % 977 < n ? begin + 1 + begin % 977 : n;
            params_init_span(&params, 5, unit, begin, end, by_span + begin);
        }
        assert_memory_equal(whole, by_span, n * sizeof *whole);
        params_init_span(&params, 6, unit, 0, n, by_span);
        assert_true((memcmp(whole, by_span, n * sizeof *whole) == 0) == (unit == params.n_units - 1));
        free(whole);
        free(by_span);
    }
    params_free(&params);
}

// Normal tensors: mean and deviation within five standard errors. The others: zeros and ones, exactly.
static void test_initial_distribution(void **state) {
    (void)state;
    struct params params;
    assert_int_equal(params_init(&params, &tiny), STATUS_OK);
    float *values = malloc(params.n_elements * sizeof *values);
    assert_non_null(values);
    for (int unit = 0; unit < params.n_units; unit++)
        params_init_span(&params, 1, unit, 0, params.units[unit].elements,
                         values + params.units[unit].offset);
    for (int i = 0; i < params.n_params; i++) {
        const struct param *param = &params.params[i];
        const float *of_param = values + params.units[param->unit].offset + param->offset;
        double n = (double)param->elements, sum = 0, squares = 0;
        for (size_t e = 0; e < param->elements; e++) {
            sum += (double)of_param[e];
            squares += (double)of_param[e] * (double)of_param[e];
            if (param->n_dims == 1)
                assert_true(of_param[e] == (strstr(param->name, "ln_") && strstr(param->name, "weight")));
        }
        if (param->n_dims == 1)
            continue;
        double expected = strstr(param->name, "c_proj") ? 0.02 / sqrt(6.0) : 0.02;
        assert_true(fabs(sum / n) < 5 * expected / sqrt(n));
        assert_true(fabs(sqrt(squares / n) / expected - 1) < 5 / sqrt(2 * n));
    }
    free(values);
    params_free(&params);
}

static void test_sizes_that_overflow_are_refused(void **state) {
    (void)state;
    static const struct {
        struct gpt_config config;
        const char *expected;
    } cases[] = {{SIZES(0, 1, 8, 10, 10), "n_layer"},
                 {SIZES(1, 0, 8, 10, 10), "n_head"},
                 {SIZES(1, 1, -8, 10, 10), "n_embd"},
                 {SIZES(1, 1, 8, 0, 10), "vocab_size"},
                 {SIZES(1, 1, 8, 10, INT_MIN), "n_positions"},
                 {SIZES(1, 3, 8, 10, 10), "not a multiple"},
                 {SIZES(INT_MAX, 1, 8, 10, 10), "too large"},
                 {SIZES(1, 1, INT_MAX, 10, 10), "too large"},
                 {SIZES(1 << 16, 1, 1 << 24, 10, 10), "too large"}, // its elements overflow 64 bits
                 {SIZES(1, 1, 1 << 24, INT_MAX, INT_MAX), "too large"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct params params;
        assert_int_equal(params_init(&params, &cases[i].config), STATUS_INVALID);
        if (!strstr(status_message(), cases[i].expected))
            fail_msg("\"%s\" lacks \"%s\"", status_message(), cases[i].expected);
        assert_null(params.params);
        status_clear();
    }
}

static const struct gpt_config qwen3 = {.n_layer = 28,
                                        .n_head = 16,
                                        .n_embd = 1024,
                                        .vocab_size = 151936,
                                        .n_positions = 40960,
                                        .family = FAMILY_LLAMA,
                                        .n_kv_head = 8,
                                        .head_dim = 128,
                                        .intermediate_size = 3072,
                                        .qk_norm = true};
static const struct gpt_config tinyllama = {.n_layer = 22,
                                            .n_head = 32,
                                            .n_embd = 2048,
                                            .vocab_size = 32000,
                                            .n_positions = 2048,
                                            .family = FAMILY_LLAMA,
                                            .n_kv_head = 4,
                                            .intermediate_size = 5632,
                                            .untied = true};

// The parameter counts of Qwen3 0.6B and TinyLlama 1.1B (Hugging Face's num_parameters).
static void test_known_llamas(void **state) {
    (void)state;
    struct params params;
    assert_int_equal(params_init(&params, &qwen3), STATUS_OK);
    assert_int_equal(params.n_weights, 596049920);
    params_free(&params);
    assert_int_equal(params_init(&params, &tinyllama), STATUS_OK);
    assert_int_equal(params.n_weights, 1100048384);
    // The embedding is looked up, not multiplied; a window shows fewer keys.
    const double multiplied = 6.0 * (1100048384 - 32000.0 * 2048);
    assert_true(flops_by_formula(&params, 2048) == multiplied + 12.0 * 22 * 2048 * 1024);
    params.config.n_windows = 1;
    params.config.windows[0] = 512;
    assert_true(flops_by_formula(&params, 2048) == multiplied + 12.0 * 22 * 2048 * 448);
    params_free(&params);
}

// Parts cover the rows of a fused tensor.
static void test_parts(void **state) {
    (void)state;
    struct params params;
    assert_int_equal(params_init(&params, &qwen3), STATUS_OK);
    const struct param *qkv = params_tensor(&params, 1, PARAM_QKV_WEIGHT);
    char name[64];
    params_part_name(qkv, 1, name, sizeof name);
    assert_string_equal(name, "layers.0.self_attn.k_proj.weight");
    assert_int_equal(qkv->parts[2].first_row + qkv->parts[2].n_rows, qkv->shape[0]);
    assert_null(params_tensor(&params, 1, PARAM_QKV_BIAS));
    assert_ptr_equal(params_lm_head(&params), params_tensor(&params, 0, PARAM_WTE));
    params_free(&params);
}

// 6 P + 6 L C T, with the tied lm_head counted in P.
static void test_flops(void **state) {
    (void)state;
    struct params params;
    assert_int_equal(params_init(&params, &gpt2_small), STATUS_OK);
    assert_true(flops_by_formula(&params, 1024) == 6.0 * 124439808 + 6.0 * 12 * 768 * 1024);
    params_free(&params);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_counts),
        cmocka_unit_test(test_known_llamas),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_initial_values_do_not_depend_on_the_partition),
        cmocka_unit_test(test_initial_distribution),
        cmocka_unit_test(test_sizes_that_overflow_are_refused),
        cmocka_unit_test(test_flops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
