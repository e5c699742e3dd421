// Frozen tensors: the others' gradients keep their bits, none of theirs is written, and backward, its FLOPs
// and the activations kept for it end with the lowest trained unit.
#include "model/trace.h"
#include "tests/support/small_models.h"
#include "tests/support/whole_model.h"

#include <fnmatch.h>

static const struct gpt_config *const configs[] = {&small_gpt2, &small_llama, &small_modern};
enum { N_CONFIGS = sizeof configs / sizeof *configs };

// ---- what is frozen

// Up to four patterns of names.
struct patterns {
    const char *of[4];
};

static bool matches(const struct patterns *patterns, const char *name) {
    for (int k = 0; k < 4 && patterns->of[k]; k++)
        if (fnmatch(patterns->of[k], name, 0) == 0)
            return true;
    return false;
}

static void freeze(const struct params *params, const struct patterns *patterns, bool *is_frozen) {
    for (int i = 0; i < params->n_params; i++)
        is_frozen[i] = matches(patterns, params->params[i].name);
}

static void set_frozen(struct params *params, const struct patterns *patterns) {
    for (int i = 0; i < params->n_params; i++)
        params->params[i].is_frozen = matches(patterns, params->params[i].name);
    params_lay_out_gradients(params);
}

// ---- gradients

// Counts the calls of grads_ready for each unit.
struct counter {
    const struct unit_hooks *hooks;
    int n_ready[8];
};

static enum status acquire(void *context, struct stream *stream, int unit, enum gpt_pass pass,
                           struct unit_view *view) {
    const struct counter *counter = context;
    return counter->hooks->params_acquire(counter->hooks->context, stream, unit, pass, view);
}

static enum status release(void *context, struct stream *stream, int unit, enum gpt_pass pass) {
    const struct counter *counter = context;
    return counter->hooks->params_release(counter->hooks->context, stream, unit, pass);
}

static enum status ready(void *context, struct stream *stream, int unit) {
    struct counter *counter = context;
    counter->n_ready[unit]++;
    return counter->hooks->grads_ready(counter->hooks->context, stream, unit);
}

static struct step_result step_with(const struct gpt_config *config, struct device *device,
                                    const struct gpt_options *options, const bool *is_frozen) {
    struct whole_model model;
    whole_model_init_frozen(&model, config, device, options, 0, is_frozen);
    whole_model_perturb(&model);
    struct counter counter = {.hooks = &model.hooks};
    const struct unit_hooks hooks = {
        .context = &counter, .params_acquire = acquire, .params_release = release, .grads_ready = ready};
    struct step_result result = whole_model_step(&model, &hooks);
    for (int unit = 0; unit < model.params.n_units; unit++)
        assert_int_equal(counter.n_ready[unit], !params_unit_is_frozen(&model.params, unit));
    whole_model_free(&model);
    return result;
}

static bool is_zero(const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (bytes[i])
            return false;
    return true;
}

// A step whose gradients are `plain` if nothing is frozen.
static void check_step(const struct gpt_config *config, struct device *device,
                       const struct gpt_options *options, const struct step_result *plain,
                       const bool *is_frozen) {
    struct params params;
    assert_ok(params_init(&params, config));
    struct step_result frozen = step_with(config, device, options, is_frozen);
    const size_t size = plain->bytes / params.n_elements;
    assert_memory_equal(&frozen.loss, &plain->loss, sizeof plain->loss);
    for (int i = 0; i < params.n_params; i++) {
        const size_t at = param_position(&params, i) * size, n = params.params[i].elements * size;
        const char *is = (char *)frozen.grads + at, *was = (char *)plain->grads + at;
        assert_false(is_zero(was, n));
        if (is_frozen[i] ? !is_zero(is, n) : memcmp(is, was, n) != 0)
            fail_msg("%s, %s: %s", params.params[i].name, is_frozen[i] ? "frozen" : "trained",
                     is_frozen[i] ? "its gradient was written" : "its gradient differs");
    }
    free(frozen.grads);
    params_free(&params);
}

// Each tensor frozen alone, and each trained alone.
static void test_each_tensor(void **state) {
    struct device *device = device_for_test(*state);
    for (int c = 0; c < N_CONFIGS; c++) {
        const struct gpt_options options = {.type = DTYPE_F32, .B = 2, .T = 7, .training = true};
        struct params params;
        assert_ok(params_init(&params, configs[c]));
        bool is_frozen[params.n_params];
        struct step_result plain = step_with(configs[c], device, &options, NULL);
        for (int i = 0; i < 2 * params.n_params; i++) {
            for (int k = 0; k < params.n_params; k++)
                is_frozen[k] = (k == i / 2) == (i % 2 == 0);
            check_step(configs[c], device, &options, &plain, is_frozen);
        }
        free(plain.grads);
        params_free(&params);
    }
    device_close(device);
}

// Layers, kinds of tensors and all but the head, in every type and with all that is recomputed.
static void test_groups_of_tensors(void **state) {
    static const struct patterns lists[] = {
        {{"w?e.*", "embed_tokens.*", "*.0.*"}},           // the first layer and what is below
        {{"*.1.*"}},                                      // one in the middle
        {{"*.2.*", "ln_f.*", "norm.*", "lm_head.*"}},     // the last
        {{"w?e.*", "h.*", "embed_tokens.*", "layers.*"}}, // all but the head
        {{"*.bias", "*norm*"}},
        {{"*proj*", "*attn*"}},
        {{"*_weight", "*value*"}}, // of a modern model
    };
    struct device *device = device_for_test(*state);
    for (int c = 0; c < N_CONFIGS * N_COMPUTE_DTYPES; c++) {
        const struct gpt_config *config = configs[c / N_COMPUTE_DTYPES];
        struct gpt_options options = {
            .type = (enum dtype)(c % N_COMPUTE_DTYPES), .B = 3, .T = 9, .training = true};
        struct params params;
        assert_ok(params_init(&params, config));
        bool is_frozen[params.n_params];
        struct step_result plain = step_with(config, device, &options, NULL);
        for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
            options.recompute = (enum gpt_recompute)(((size_t)c + i) % N_RECOMPUTE);
            freeze(&params, &lists[i], is_frozen);
            check_step(config, device, &options, &plain, is_frozen);
        }
        free(plain.grads);
        params_free(&params);
    }
    device_close(device);
}

// ---- where backward ends

static const struct gpt_config deep = {
    .n_layer = 6, .n_head = 2, .n_embd = 16, .vocab_size = 60, .n_positions = 32};
static const struct patterns below[] = {
    {{NULL}},           {{"w?e.*"}}, {{"w?e.*", "h.0.*"}}, {{"w?e.*", "h.[0-2].*"}}, {{"w?e.*", "h.[0-4].*"}},
    {{"w?e.*", "h.*"}},
};
enum { N_BELOW = sizeof below / sizeof *below };
static const int lowest_unit[N_BELOW] = {0, 1, 2, 4, 6, 7};

// Each unit's FLOPs of forward, and of the rest.
struct unit_flops {
    double forward[8], rest[8];
};

static struct unit_flops flops_of(const struct params *params, enum gpt_recompute recompute, int T) {
    struct unit_flops flops = {{0}, {0}};
    struct trace trace;
    assert_ok(gpt_trace(params, recompute, T, TRACE_TRAINING, &trace));
    int held = 0;
    for (int i = 0; i < trace.n_events; i++) {
        const struct trace_event *event = &trace.events[i];
        held = event->acquires ? event->unit : held;
        const bool forward = event->pass == GPT_FORWARD;
        assert_true(forward || event->unit == 0 || event->unit >= params_lowest_trained(params));
        *(forward ? &flops.forward[held] : &flops.rest[held]) += event->flops;
    }
    trace_free(&trace);
    return flops;
}

// A block of deep: products of 12 C^2 weights, and attention of 4 C per pair of a query and a key. Backward
// takes twice that, and the scores again (2 C per pair).
static void test_no_backward_below(void **state) {
    (void)state;
    const int T = 24;
    const double C = deep.n_embd, pairs = T * (T + 1) / 2.0;
    const double block = 2 * T * 12 * C * C + 4 * C * pairs, head = 2 * T * C * deep.vocab_size;
    for (int i = 0; i < N_BELOW; i++) {
        struct params params;
        double per_token;
        assert_ok(params_init(&params, &deep));
        set_frozen(&params, &below[i]);
        assert_int_equal(params_lowest_trained(&params), lowest_unit[i]);
        const struct unit_flops flops = flops_of(&params, RECOMPUTE_NONE, T);
        int n_backward = 0;
        for (int unit = 1; unit <= deep.n_layer; unit++) {
            const bool passed = unit >= lowest_unit[i];
            assert_true(flops.forward[unit] == block);
            assert_true(flops.rest[unit] == (passed ? 2 * block + 2 * C * pairs : 0));
            n_backward += passed;
        }
        // lm_head is frozen with wte: forward, and the gradient of its input.
        assert_ok(gpt_flops_per_token(&params, T, &per_token));
        const double expected = (deep.n_layer + 2 * n_backward) * block + (i == 0 ? 3 : 2) * head;
        assert_true(fabs(per_token * T - expected) <= 1e-12 * expected);
        params_free(&params);
    }
}

// A frozen unit above the lowest trained one: its backward has the gradients of its input alone.
static void test_flops_of_a_frozen_unit_above(void **state) {
    (void)state;
    const int T = 24;
    const double C = deep.n_embd, pairs = T * (T + 1) / 2.0;
    const struct patterns middle = {{"h.3.*"}};
    struct params params;
    assert_ok(params_init(&params, &deep));
    set_frozen(&params, &middle);
    const struct unit_flops flops = flops_of(&params, RECOMPUTE_NONE, T);
    assert_true(flops.rest[4] == 2 * T * 12 * C * C + 10 * C * pairs);
    assert_true(flops.rest[3] == 2 * 2 * T * 12 * C * C + 10 * C * pairs);
    params_free(&params);
}

// lm_head alone is trained: nothing below it has a gradient, not even the norm before it.
static void test_lm_head_alone(void **state) {
    (void)state;
    const int T = 24;
    struct gpt_config config = deep;
    config.family = FAMILY_LLAMA;
    config.untied = true;
    config.vocab_size = 64; // no padding
    struct params params;
    assert_ok(params_init(&params, &config));
    for (int i = 0; i < params.n_params; i++)
        params.params[i].is_frozen = strcmp(params.params[i].name, "lm_head.weight") != 0;
    params_lay_out_gradients(&params);
    const struct unit_flops flops = flops_of(&params, RECOMPUTE_NONE, T);
    const double head = 2 * T * config.n_embd * config.vocab_size;
    for (int unit = 0; unit <= config.n_layer; unit++)
        assert_true(flops.rest[unit] == 0);
    assert_true(flops.forward[7] + flops.rest[7] == 2 * head);
    assert_true(params.n_trained == (size_t)config.vocab_size * (size_t)config.n_embd);
    params_free(&params);
}

static size_t planned(const struct params *params, struct device *device, enum gpt_recompute recompute) {
    const struct gpt_options options = {
        .type = DTYPE_F32, .B = 3, .T = 9, .recompute = recompute, .training = true};
    struct region_table table;
    struct gpt *gpt;
    region_table_init(&table);
    assert_ok(gpt_new(params, &options, device, &table, &gpt));
    size_t bytes = region_kind_bytes(&table, REGION_ACTIVATIONS);
    gpt_delete(gpt);
    region_table_free(&table);
    return bytes;
}

// test_units.c has the formula of a block. Of each whose backward is left out, what it keeps goes, and its
// input; but buffers of one block and of two checkpoints are in use in any case.
static void test_no_activations_below(void **state) {
    struct device *device = device_for_test(*state);
    const size_t N = 3 * 9, C = (size_t)deep.n_embd, H = (size_t)deep.n_head, size = sizeof(float);
    const size_t attention = N * (4 * C * size + (2 + H) * sizeof(float)),
                 mlp = N * (5 * C * size + 2 * sizeof(float)), elementwise = N * 6 * C * size;
    const size_t kept[N_RECOMPUTE] = {[RECOMPUTE_NONE] = attention + mlp + elementwise,
                                      [RECOMPUTE_ELEMENTWISE] = attention + mlp,
                                      [RECOMPUTE_ATTENTION] = mlp};
    for (int recompute = 0; recompute < N_RECOMPUTE; recompute++) {
        size_t all = 0;
        for (int i = 0; i < N_BELOW; i++) {
            struct params params;
            assert_ok(params_init(&params, &deep));
            set_frozen(&params, &below[i]);
            const size_t bytes = planned(&params, device, (enum gpt_recompute)recompute);
            const size_t lowest = lowest_unit[i] > 0 ? (size_t)lowest_unit[i] - 1 : 0; // block
            const size_t blocks = lowest < 5 ? lowest : 5, inputs = lowest < 5 ? lowest : 5;
            all = i == 0 ? bytes : all;
            assert_int_equal(bytes, all - blocks * kept[recompute] - inputs * N * C * size);
            params_free(&params);
        }
    }
    device_close(device);
}

#define ON(device, test)                                                                                     \
    { #test " on " device, test, NULL, NULL, (void *)(uintptr_t)device }
#define ON_ALL(test)                                                                                         \
    ON("amx", test), ON("avx512_bf16", test), ON("avx512", test), ON("avx2", test), ON("portable", test),    \
        ON("ref", test)

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_ALL(test_each_tensor),
        ON_ALL(test_groups_of_tensors),
        cmocka_unit_test(test_no_backward_below),
        cmocka_unit_test(test_flops_of_a_frozen_unit_above),
        cmocka_unit_test(test_lm_head_alone),
        ON("portable", test_no_activations_below),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
