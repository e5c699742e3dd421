// Dropout, label smoothing and the z-loss in a whole model of each family: backward is the gradient of
// forward (finite differences, in double), recomputation repeats the masks, and evaluation has none of them.
#include "tests/support/whole_model.h"

static struct gpt_config small_config(int family) {
    struct gpt_config config = {.n_layer = 3,
                                .n_head = 3,
                                .n_embd = 12,
                                .vocab_size = 29,
                                .n_positions = 10,
                                .family = (enum model_family)family};
    if (family != FAMILY_GPT2)
        config.untied = true;
    return config;
}

static const struct gpt_options regularized = {.dropout = 0.25f,
                                               .dropout_seed = 1337,
                                               .label_smoothing = 0.1f,
                                               .z_loss = 0.01f,
                                               .recompute = RECOMPUTE_ELEMENTWISE,
                                               .training = true};

static void init(struct whole_model *model, struct device *device, int family,
                 const struct gpt_options *options, enum dtype type, int B, int T) {
    struct gpt_config config = small_config(family);
    struct gpt_options with = *options;
    with.type = type;
    with.B = B;
    with.T = T;
    whole_model_init(model, &config, device, &with, 0);
    whole_model_perturb(model);
}

// ---- finite differences

#define TOKENS          8 // 1 / 8 is exact in fp32
#define DIFFERENCE_STEP 1e-4

// The mean loss of a training pass with one element changed.
static double moved_loss(struct whole_model *model, size_t element, double by, const int32_t *tokens,
                         const int32_t *targets) {
    double *params = whole_data(model, model->param_region), before = params[element], sum;
    params[element] = before + by;
    assert_ok(gpt_forward_backward(model->gpt, &model->stream, &model->hooks,
                                   whole_model_batch(model, tokens, targets), 0, &sum));
    params[element] = before;
    return sum / TOKENS;
}

// Of fourth order, as in test_units.c: the error is below 1e-9.
static double difference(struct whole_model *model, size_t element, const int32_t *tokens,
                         const int32_t *targets) {
    const double h = DIFFERENCE_STEP;
    double near = moved_loss(model, element, h, tokens, targets) -
                  moved_loss(model, element, -h, tokens, targets),
           far = moved_loss(model, element, 2 * h, tokens, targets) -
                 moved_loss(model, element, -2 * h, tokens, targets);
    return (8 * near - far) / (12 * h);
}

static void check_differences(struct device *device, int family) {
    struct whole_model model;
    int32_t tokens[TOKENS], targets[TOKENS];
    double sum;
    init(&model, device, family, &regularized, DTYPE_F64, 2, TOKENS / 2);
    random_tokens(tokens, TOKENS, model.params.config.vocab_size, 1);
    random_tokens(targets, TOKENS, model.params.config.vocab_size, 2);
    whole_model_zero_grads(&model);
    assert_ok(gpt_forward_backward(model.gpt, &model.stream, &model.hooks,
                                   whole_model_batch(&model, tokens, targets), 1.0f / TOKENS, &sum));
    const size_t bytes = model.params.n_elements * sizeof(double);
    double *grads = malloc(bytes);
    assert_non_null(grads);
    whole_copy(&model, grads, whole_data(&model, model.grad_region), bytes);
    for (int i = 0; i < model.params.n_params; i++) {
        const struct param *param = &model.params.params[i];
        for (size_t e = 0; e < param->elements; e += param->elements / 6 + 1) {
            const size_t element = param_position(&model.params, i) + e;
            const double expected = difference(&model, element, tokens, targets);
            if (!(fabs(grads[element] - expected) < 1e-9 * (1 + fabs(expected))))
                fail_msg("%s[%zu]: gradient %.12g, finite differences give %.12g", param->name, e,
                         grads[element], expected);
        }
    }
    free(grads);
    whole_model_free(&model);
}

static void test_gradient_by_finite_differences(void **state) {
    (void)state;
    struct device *device = device_for_test("ref");
    for (int family = 0; family < N_FAMILIES; family++)
        check_differences(device, family);
    device_close(device);
}

// ---- masks

static struct step_result step_of(struct device *device, int family, const struct gpt_options *options,
                                  enum dtype type) {
    struct whole_model model;
    init(&model, device, family, options, type, 3, 9);
    struct step_result result = whole_model_step(&model, &model.hooks);
    whole_model_free(&model);
    return result;
}

static void test_recompute_changes_no_bit(void **state) {
    struct device *device = device_for_test(*state);
    for (int family = 0; family < N_FAMILIES; family++)
        for (int type = 0; type < N_COMPUTE_DTYPES; type++) {
            struct gpt_options options = regularized;
            options.recompute = RECOMPUTE_NONE;
            struct step_result kept = step_of(device, family, &options, (enum dtype)type);
            for (int recompute = 1; recompute < N_RECOMPUTE; recompute++) {
                options.recompute = (enum gpt_recompute)recompute;
                struct step_result again = step_of(device, family, &options, (enum dtype)type);
                assert_same_step(&kept, &again);
                free(again.grads);
            }
            free(kept.grads);
        }
    device_close(device);
}

// The sum of the losses of a training pass whose data begins at a token of the run.
static double loss_at(struct whole_model *model, int rows, const int32_t *tokens, uint64_t first_token) {
    struct gpt *gpt = model->gpt;
    double *sum;
    assert_ok(model->device->memory_new(model->device, sizeof *sum, "tests", (void **)&sum));
    assert_ok(gpt_load(gpt, &model->stream, whole_model_batch(model, tokens, tokens), first_token));
    assert_ok(gpt_train(gpt, &model->stream, &model->hooks, &(struct gpt_loss){.scale = 0, .sum = sum}));
    double value;
    whole_copy(model, &value, sum, sizeof value);
    model->device->memory_delete(model->device, sum, sizeof *sum);
    assert_true(isfinite(value) && value > 0);
    return value / rows;
}

// A mask depends on the place in the run, and not on how many sequences a pass has.
static void test_masks_follow_the_place_in_the_run(void **state) {
    struct device *device = device_for_test(*state);
    for (int family = 0; family < N_FAMILIES; family++) {
        struct whole_model two, one;
        int32_t tokens[16];
        random_tokens(tokens, 16, small_config(family).vocab_size, 1);
        init(&two, device, family, &regularized, DTYPE_F32, 2, 8);
        init(&one, device, family, &regularized, DTYPE_F32, 1, 8);
        const double both = loss_at(&two, 2, tokens, 80);
        const double apart = (loss_at(&one, 1, tokens, 80) + loss_at(&one, 1, tokens + 8, 88)) / 2;
        assert_true(fabs(both - apart) < 1e-5 * both);
        assert_true(fabs(both - loss_at(&two, 2, tokens, 96)) > 1e-4 * both);
        assert_true(both == loss_at(&two, 2, tokens, 80));
        whole_model_free(&one);
        whole_model_free(&two);
    }
    device_close(device);
}

static void test_evaluation_is_plain(void **state) {
    struct device *device = device_for_test(*state);
    static const struct gpt_options plain = {.recompute = RECOMPUTE_ELEMENTWISE, .training = true};
    for (int family = 0; family < N_FAMILIES; family++) {
        const struct gpt_options *options[] = {&plain, &regularized};
        double sums[2][2];
        size_t bytes[2];
        for (int k = 0; k < 2; k++) {
            struct whole_model model;
            int32_t tokens[8];
            init(&model, device, family, options[k], DTYPE_F32, 2, 4);
            random_tokens(tokens, 8, model.params.config.vocab_size, 1);
            // Also after a training pass.
            for (int pass = 0; pass < 2; pass++) {
                assert_ok(gpt_evaluate(model.gpt, &model.stream, &model.hooks,
                                       whole_model_batch(&model, tokens, tokens), &sums[k][pass], NULL));
                loss_at(&model, 2, tokens, 0);
            }
            bytes[k] = region_kind_bytes(&model.table, REGION_DATA);
            whole_model_free(&model);
        }
        assert_true(sums[0][0] == sums[1][0] && sums[1][0] == sums[1][1]);
        assert_int_equal(bytes[1] - bytes[0], 2 * sizeof(uint64_t));
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
        cmocka_unit_test(test_gradient_by_finite_differences),
        ON_ALL(test_recompute_changes_no_bit),
        ON_ALL(test_masks_follow_the_place_in_the_run),
        ON_ALL(test_evaluation_is_plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
