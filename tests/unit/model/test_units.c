// The contract of model/hooks.h: units are used only while they are held, gradients are complete when
// grads_ready is called, recomputation changes no bit.
#include "tests/support/small_models.h"
#include "tests/support/whole_model.h"

#include <stdio.h>

#define MAX_HELD 2

static const struct gpt_config *const configs[] = {&small_gpt2, &small_modern};
enum { N_CONFIGS = sizeof configs / sizeof *configs };

// ---- hooks that lend units

// Hooks that lend each unit's parameters as a copy, fill it with NaN on release, and check the order of
// calls against the recorded trace.
struct lender {
    struct whole_model *model;
    int n_units;
    struct loan {
        bool held;
        enum gpt_pass pass;
        void *params;
        void *tensors[UNIT_PARAMS_MOST];
    } * loans;
    int n_held, n_backward;
    struct trace trace;
    struct trace_cursor cursor;
    void **ready; // (n_units) the gradients at grads_ready, or NULL
};

static size_t unit_bytes(const struct lender *lender, int unit, enum dtype type) {
    return lender->model->params.units[unit].elements * dtype_size(type);
}

// The addresses of a unit's tensors in a copy of it.
static void place_tensors(const struct params *params, int unit, void *copy, enum dtype type,
                          void **tensors) {
    const struct param_unit *u = &params->units[unit];
    for (int i = 0; i < u->n_params; i++)
        tensors[i] = tensor_at(&params->params[u->first_param + i], copy, type);
}

static enum status lend(void *context, struct stream *stream, int unit, enum gpt_pass pass,
                        struct unit_view *view) {
    struct lender *lender = context;
    assert_ptr_equal(stream, &lender->model->stream);
    assert_in_range(unit, 0, lender->n_units - 1);
    struct loan *loan = &lender->loans[unit];
    assert_false(loan->held);
    assert_true(lender->n_held++ < MAX_HELD);
    assert_true(pass == GPT_FORWARD || !lender->ready[unit]);
    TRY(trace_follow(&lender->cursor, &(struct trace_event){true, unit, pass, 0}));
    TRY(whole_acquire(lender->model, stream, unit, pass, view));
    size_t bytes = unit_bytes(lender, unit, lender->model->options.type);
    *loan = (struct loan){true, pass, loan->params ? loan->params : malloc(bytes), {NULL}};
    assert_non_null(loan->params);
    if (view->params) {
        memcpy(loan->params, param_of(view, 0), bytes);
        place_tensors(&lender->model->params, unit, loan->params, lender->model->options.type, loan->tensors);
        view->params = loan->tensors;
    }
    return STATUS_OK;
}

static enum status take_back(void *context, struct stream *stream, int unit, enum gpt_pass pass) {
    struct lender *lender = context;
    (void)stream;
    TRY(trace_follow(&lender->cursor, &(struct trace_event){false, unit, pass, 0}));
    struct loan *loan = &lender->loans[unit];
    assert_true(loan->held);
    assert_int_equal(loan->pass, pass);
    memset(loan->params, 0xff, unit_bytes(lender, unit, lender->model->options.type));
    loan->held = false;
    lender->n_held--;
    return STATUS_OK;
}

static enum status take_grads(void *context, struct stream *stream, int unit) {
    struct lender *lender = context;
    struct unit_view view;
    assert_true(lender->loans[unit].held);
    assert_int_equal(lender->loans[unit].pass, unit == 0 ? GPT_BACKWARD_GRADS : GPT_BACKWARD);
    assert_null(lender->ready[unit]);
    TRY(whole_acquire(lender->model, stream, unit, GPT_BACKWARD, &view));
    size_t bytes = unit_bytes(lender, unit, lender->model->state);
    lender->ready[unit] = malloc(bytes);
    assert_non_null(lender->ready[unit]);
    memcpy(lender->ready[unit], grad_of(&view, 0), bytes);
    lender->n_backward++;
    return STATUS_OK;
}

static enum status lender_begin(void *context, enum trace_kind kind) {
    struct lender *lender = context;
    assert_int_equal(kind, lender->trace.kind);
    return trace_begin(&lender->cursor, &lender->trace);
}

static void lender_init(struct lender *lender, struct whole_model *model) {
    *lender = (struct lender){.model = model, .n_units = model->params.n_units};
    assert_ok(gpt_trace(&model->params, model->options.recompute, model->options.T, TRACE_TRAINING,
                        &lender->trace));
    lender->loans = calloc((size_t)lender->n_units, sizeof *lender->loans);
    lender->ready = calloc((size_t)lender->n_units, sizeof *lender->ready);
    assert_true(lender->loans && lender->ready);
}

static void lender_free(struct lender *lender) {
    for (int unit = 0; unit < lender->n_units; unit++) {
        free(lender->loans[unit].params);
        free(lender->ready[unit]);
    }
    trace_free(&lender->trace);
    free(lender->loans);
    free(lender->ready);
}

static void check_lending(const struct gpt_config *config, struct device *device, enum dtype type,
                          enum gpt_recompute recompute) {
    struct whole_model model;
    struct lender lender;
    whole_model_init(
        &model, config, device,
        &(struct gpt_options){.type = type, .B = 2, .T = 7, .recompute = recompute, .training = true}, 0);
    whole_model_perturb(&model);
    lender_init(&lender, &model);
    struct unit_hooks hooks = {.context = &lender,
                               .begin = lender_begin,
                               .params_acquire = lend,
                               .params_release = take_back,
                               .grads_ready = take_grads};
    struct step_result plain = whole_model_step(&model, &model.hooks),
                       lent = whole_model_step(&model, &hooks);
    assert_same_step(&plain, &lent);
    assert_int_equal(lender.n_held, 0);
    assert_int_equal(lender.cursor.next, lender.trace.n_events);
    assert_int_equal(lender.n_backward, model.params.n_units);
    for (int unit = 0; unit < model.params.n_units; unit++) // nothing was added after they were ready
        assert_memory_equal(lender.ready[unit],
                            (char *)lent.grads + model.params.units[unit].offset * dtype_size(model.state),
                            unit_bytes(&lender, unit, model.state));
    lender_free(&lender);
    free(plain.grads);
    free(lent.grads);
    whole_model_free(&model);
}

static void test_units_are_used_only_while_held(void **state) {
    struct device *device = device_for_test(*state);
    for (int i = 0; i < N_CONFIGS * N_COMPUTE_DTYPES; i++)
        for (int recompute = 0; recompute < N_RECOMPUTE; recompute++)
            check_lending(configs[i / N_COMPUTE_DTYPES], device, (enum dtype)(i % N_COMPUTE_DTYPES),
                          (enum gpt_recompute)recompute);
    device_close(device);
}

// With beta_zero gradients need not be cleared: they hold NaN here.
static enum status lend_beta_zero(void *context, struct stream *stream, int unit, enum gpt_pass pass,
                                  struct unit_view *view) {
    struct whole_model *model = context;
    const struct param_unit *u = &model->params.units[unit];
    size_t size = dtype_size(model->state);
    TRY(whole_acquire(model, stream, unit, pass, view));
    view->beta_zero = pass != GPT_FORWARD;
    for (int i = u->first_param; i < u->first_param + u->n_params && pass == GPT_BACKWARD; i++) {
        const struct param *param = &model->params.params[i];
        whole_fill(model, grad_of(view, i - u->first_param), 0xff, param->elements * size);
    }
    return STATUS_OK;
}

static void test_gradients_with_beta_zero(void **state) {
    struct device *device = device_for_test(*state);
    for (int config = 0; config < N_CONFIGS * N_COMPUTE_DTYPES; config++) {
        const enum dtype type = (enum dtype)(config % N_COMPUTE_DTYPES);
        struct whole_model model;
        whole_model_init(&model, configs[config / N_COMPUTE_DTYPES], device,
                         &(struct gpt_options){.type = type, .B = 2, .T = 7, .training = true}, 0);
        whole_model_perturb(&model);
        struct unit_hooks hooks = {.context = &model,
                                   .params_acquire = lend_beta_zero,
                                   .params_release = model.hooks.params_release,
                                   .grads_ready = model.hooks.grads_ready};
        struct step_result cleared = whole_model_step(&model, &model.hooks),
                           overwritten = whole_model_step(&model, &hooks);
        // Zeros may differ in sign.
        for (size_t i = 0; i < model.params.n_elements; i++)
            assert_true(state_get(cleared.grads, model.state, i) ==
                        state_get(overwritten.grads, model.state, i));
        free(cleared.grads);
        free(overwritten.grads);
        whole_model_free(&model);
    }
    device_close(device);
}

// ---- results that must agree

static struct step_result step_with(const struct gpt_config *config, struct device *device,
                                    const struct gpt_options *options) {
    struct whole_model model;
    whole_model_init(&model, config, device, options, 0);
    whole_model_perturb(&model);
    struct step_result result = whole_model_step(&model, &model.hooks);
    whole_model_free(&model);
    return result;
}

static void test_recompute_changes_no_bit(void **state) {
    struct device *device = device_for_test(*state);
    for (int i = 0; i < N_CONFIGS * N_COMPUTE_DTYPES; i++) {
        const struct gpt_config *config = configs[i / N_COMPUTE_DTYPES];
        struct gpt_options options = {
            .type = (enum dtype)(i % N_COMPUTE_DTYPES), .B = 3, .T = 9, .training = true};
        struct step_result kept = step_with(config, device, &options);
        for (int recompute = 0; recompute < N_RECOMPUTE; recompute++) {
            options.recompute = (enum gpt_recompute)recompute;
            struct step_result again = step_with(config, device, &options);
            assert_same_step(&kept, &again);
            free(again.grads);
        }
        free(kept.grads);
    }
    device_close(device);
}

static size_t planned_activations(const struct gpt_config *config, struct device *device,
                                  const struct gpt_options *options) {
    struct params params;
    struct region_table table;
    struct gpt *gpt;
    assert_ok(params_init(&params, config));
    region_table_init(&table);
    assert_ok(gpt_new(&params, options, device, &table, &gpt));
    size_t bytes = region_kind_bytes(&table, REGION_ACTIVATIONS);
    gpt_delete(gpt);
    region_table_free(&table);
    params_free(&params);
    return bytes;
}

// The activations kept for N = B T positions: C elements of the residual stream before each block and after
// the last, and of the final norm; in each block 4 C of attention, 5 C of the MLP, 2 C of norms and 4 C of
// GELU; and, in fp32, mean, rstd and lse.
static void test_activation_memory_of_recompute_levels(void **state) {
    struct device *device = device_for_test(*state);
    size_t N = 3 * 9, C = (size_t)small_gpt2.n_embd, H = (size_t)small_gpt2.n_head,
           L = (size_t)small_gpt2.n_layer;
    for (int type = 0; type < N_COMPUTE_DTYPES; type++) {
        size_t size = dtype_size((enum dtype)type);
        size_t always = N * ((L + 2) * C * size + 2 * sizeof(float));
        size_t attention = N * (4 * C * size + (2 + H) * sizeof(float));
        size_t mlp = N * (5 * C * size + 2 * sizeof(float)), elementwise = N * 6 * C * size;
        const size_t expected[N_RECOMPUTE] = {
            [RECOMPUTE_NONE] = always + L * (attention + mlp + elementwise),
            [RECOMPUTE_ELEMENTWISE] = always + L * (attention + mlp) + elementwise,
            [RECOMPUTE_ATTENTION] = always + L * mlp + attention + elementwise,
            [RECOMPUTE_BLOCK] = always + attention + mlp + elementwise};
        for (int recompute = 0; recompute < N_RECOMPUTE; recompute++)
            assert_int_equal(
                planned_activations(&small_gpt2, device,
                                    &(struct gpt_options){.type = (enum dtype)type,
                                                          .B = 3,
                                                          .T = 9,
                                                          .recompute = (enum gpt_recompute)recompute,
                                                          .training = true}),
                expected[recompute]);
    }
    device_close(device);
}

// Of the modern family, what mixing the embedding in adds: with every activation kept, C elements in each
// block that mixes; with the norms recomputed, C that all blocks share.
static void test_activation_memory_of_mixing(void **state) {
    struct device *device = device_for_test(*state);
    const size_t N = 3 * 9, C = (size_t)small_modern.n_embd, size = dtype_size(DTYPE_BF16);
    struct gpt_config plain = small_modern;
    plain.embedding_skip = false;
    struct gpt_options options = {.type = DTYPE_BF16, .B = 3, .T = 9, .training = true};
    for (int recompute = 0; recompute < N_RECOMPUTE; recompute++) {
        options.recompute = (enum gpt_recompute)recompute;
        const size_t blocks = recompute == RECOMPUTE_NONE ? (size_t)small_modern.n_layer - 1 : 1;
        assert_int_equal(planned_activations(&small_modern, device, &options),
                         planned_activations(&plain, device, &options) + blocks * N * C * size);
    }
    // Forward only: the mixed input, and the embedding, which the checkpoints' two buffers do not keep.
    options = (struct gpt_options){.type = DTYPE_BF16, .B = 3, .T = 9};
    assert_int_equal(planned_activations(&small_modern, device, &options),
                     planned_activations(&plain, device, &options) + 2 * N * C * size);
    device_close(device);
}

// The same loss from a training pass, from gpt_evaluate, and from a model that can only evaluate.
static void check_evaluation(const struct gpt_config *config, struct device *device) {
    double sums[3];
    for (int training = 0; training < 2; training++) {
        struct whole_model model;
        int32_t tokens[14], targets[14];
        float losses[14];
        random_tokens(tokens, 14, config->vocab_size, 1);
        random_tokens(targets, 14, config->vocab_size, 2);
        whole_model_init(&model, config, device,
                         &(struct gpt_options){.type = DTYPE_F32, .B = 2, .T = 7, .training = training}, 0);
        whole_model_perturb(&model);
        assert_ok(gpt_evaluate(model.gpt, &model.stream, &model.hooks,
                               whole_model_batch(&model, tokens, targets), &sums[training], losses));
        double sum = 0;
        for (int i = 0; i < 14; i++)
            sum += (double)losses[i];
        assert_true(sum == sums[training]);
        if (training)
            assert_ok(gpt_forward_backward(model.gpt, &model.stream, &model.hooks,
                                           whole_model_batch(&model, tokens, targets), 1.0f, &sums[2]));
        whole_model_free(&model);
    }
    assert_true(sums[1] == sums[2]);
    // Without a backward pass, a library may fuse GELU with a different rounding.
    assert_true(fabs(sums[0] / sums[1] - 1) < 8 * dtype_epsilon(DTYPE_F32));
}

static void test_evaluation_agrees_with_training(void **state) {
    struct device *device = device_for_test(*state);
    for (int i = 0; i < N_CONFIGS; i++)
        check_evaluation(configs[i], device);
    device_close(device);
}

// If the device works in host memory, there is nothing to offload.
static void test_offload_does_nothing_on_the_cpu(void **state) {
    struct device *device = device_for_test(*state);
    struct gpt_options options = {
        .type = DTYPE_F32, .B = 3, .T = 9, .recompute = RECOMPUTE_BLOCK, .training = true};
    size_t bytes = planned_activations(&small_gpt2, device, &options);
    struct step_result kept = step_with(&small_gpt2, device, &options);
    options.offload_activations = true;
    assert_int_equal(planned_activations(&small_gpt2, device, &options), bytes);
    struct step_result again = step_with(&small_gpt2, device, &options);
    assert_same_step(&kept, &again);
    free(kept.grads);
    free(again.grads);
    device_close(device);
}

static void check_refusal(struct device *device, const struct gpt_options *options, const char *says) {
    struct params params;
    struct region_table table;
    struct gpt *gpt;
    assert_ok(params_init(&params, &small_gpt2));
    region_table_init(&table);
    assert_int_equal(gpt_new(&params, options, device, &table, &gpt), STATUS_INVALID);
    assert_null(gpt);
    assert_non_null(strstr(status_message(), says));
    status_clear();
    region_table_free(&table);
    params_free(&params);
}

static void test_bad_options_are_refused(void **state) {
    struct device *device = device_for_test(*state);
    static const int sizes[][2] = {{1, 0}, {1, 11}, {0, 4}, {-1, 4}, {INT32_MAX, 10}};
    struct gpt_options options = {.type = DTYPE_F32, .training = true};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        options.B = sizes[i][0];
        options.T = sizes[i][1];
        check_refusal(device, &options, i < 2 ? "sequence length" : "micro-batch");
    }
    options = (struct gpt_options){
        .type = DTYPE_F32, .B = 1, .T = 4, .offload_activations = true, .training = true};
    check_refusal(device, &options, "recompute=block");
    options.recompute = RECOMPUTE_ATTENTION;
    check_refusal(device, &options, "recompute=block");
    device_close(device);
}

#define ON(device, test)                                                                                     \
    { #test " on " device, test, NULL, NULL, (void *)(uintptr_t)device }
#define ON_ALL(test)                                                                                         \
    ON("amx", test), ON("avx512_bf16", test), ON("avx512", test), ON("avx2", test), ON("portable", test),    \
        ON("ref", test)

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_ALL(test_units_are_used_only_while_held),
        ON_ALL(test_gradients_with_beta_zero),
        ON_ALL(test_recompute_changes_no_bit),
        ON("portable", test_activation_memory_of_recompute_levels),
        ON_ALL(test_evaluation_agrees_with_training),
        ON("portable", test_bad_options_are_refused),
        ON("portable", test_offload_does_nothing_on_the_cpu),
        ON("portable", test_activation_memory_of_mixing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
