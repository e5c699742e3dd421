// Backward is the gradient of forward: finite differences of whole models in double, for each family and what
// it can switch on.
#include "tests/support/small_models.h"
#include "tests/support/whole_model.h"

#include <stdio.h>

// Tied, without anything that is optional.
static const struct gpt_config plain_llama = {.n_layer = 2,
                                              .n_head = 3,
                                              .n_embd = 12,
                                              .vocab_size = 29,
                                              .n_positions = 10,
                                              .family = FAMILY_LLAMA,
                                              .intermediate_size = 20};

// The steps of differences, and the error that they leave.
struct precision {
    double step, tolerance;
};
static const struct precision smooth = {1e-4, 1e-9};
// ReLU squared has a second derivative that jumps: where a step crosses zero, the error is of the order of
// the step. So the step is short, and rounding is 1e-9.
static const struct precision with_jumps = {1e-6, 1e-7};

// The mean loss with one element changed.
static double moved_loss(struct whole_model *model, size_t element, double by, const int32_t *tokens,
                         const int32_t *targets) {
    double *params = whole_data(model, model->param_region), before = params[element], sum;
    params[element] = before + by;
    assert_ok(gpt_evaluate(model->gpt, &model->stream, &model->hooks,
                           whole_model_batch(model, tokens, targets), &sum, NULL));
    params[element] = before;
    return sum / (model->options.B * model->options.T);
}

// Fourth order: (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h, with an error of h^4 f5 / 30, and about 1e-15 /
// h from rounding f. Together they are below 1e-10 for a loss of a few units whose derivatives are at most of
// order 100. The fp32 arguments (epsilon, scale) are the same on both sides.
static double difference(struct whole_model *model, size_t element, double h, const int32_t *tokens,
                         const int32_t *targets) {
    double near = moved_loss(model, element, h, tokens, targets) -
                  moved_loss(model, element, -h, tokens, targets),
           far = moved_loss(model, element, 2 * h, tokens, targets) -
                 moved_loss(model, element, -2 * h, tokens, targets);
    return (8 * near - far) / (12 * h);
}

static void check_gradients(const char *name, const struct gpt_config *config, struct precision precision) {
    struct device *device = device_for_test("ref");
    struct whole_model model;
    int32_t tokens[8], targets[8]; // 8, so that 1 / 8 is exact in fp32
    random_tokens(tokens, 8, config->vocab_size, 1);
    random_tokens(targets, 8, config->vocab_size, 2);
    whole_model_init(&model, config, device,
                     &(struct gpt_options){.type = DTYPE_F64, .B = 2, .T = 4, .training = true}, 0);
    whole_model_perturb(&model);
    whole_model_zero_grads(&model);
    double sum, worst = 0;
    assert_ok(gpt_forward_backward(model.gpt, &model.stream, &model.hooks,
                                   whole_model_batch(&model, tokens, targets), 0.125f, &sum));
    const double *grads = whole_data(&model, model.grad_region);
    int n_checked = 0;
    for (int i = 0; i < model.params.n_params; i++) {
        const struct param *param = &model.params.params[i];
        size_t stride = param->elements / 24 + 1; // so that rows and columns vary
        for (size_t e = 0; e < param->elements; e += stride, n_checked++) {
            size_t element = param_position(&model.params, i) + e;
            double expected = difference(&model, element, precision.step, tokens, targets);
            double error = fabs(grads[element] - expected) / (1 + fabs(expected));
            worst = worse(worst, error);
            if (!(error < precision.tolerance))
                fail_msg("%s: %s[%zu]: gradient %.12g, finite differences give %.12g", name, param->name, e,
                         grads[element], expected);
        }
    }
    print_message("%s: %d gradients of the whole model in double: within %.2g of finite differences\n", name,
                  n_checked, worst);
    whole_model_free(&model);
    device_close(device);
}

static void test_gpt2(void **state) {
    (void)state;
    check_gradients("gpt2", &small_gpt2, smooth);
}

static void test_llama(void **state) {
    (void)state;
    check_gradients("llama", &plain_llama, smooth);
    struct gpt_config config = small_llama;
    config.rope = (struct rope_config){.theta = 100,
                                       .type = ROPE_YARN,
                                       .factor = 2,
                                       .beta_fast = 32,
                                       .beta_slow = 1,
                                       .original_positions = 5};
    check_gradients("llama with all options", &config, smooth);
}

// With every piece, and without each in turn. Projections that begin at zero are moved like all weights.
static void test_modern(void **state) {
    (void)state;
    struct gpt_config config;
    check_gradients("modern", &small_modern, with_jumps);
#define WITHOUT(piece, ...)                                                                                  \
    config = small_modern;                                                                                   \
    __VA_ARGS__;                                                                                             \
    check_gradients("modern without " piece, &config, with_jumps)
    WITHOUT("qk_norm", config.qk_norm = false);
    WITHOUT("an lm_head of its own", config.untied = false);
    WITHOUT("windows", config.n_windows = 0);
    WITHOUT("parts of heads that are not rotated", config.partial_rotary_factor = 1);
    WITHOUT("soft_cap", config.soft_cap = 0);
    WITHOUT("embedding_skip", config.embedding_skip = false);
    WITHOUT("value_embeddings", config.n_value_embeddings = 0);
#undef WITHOUT
    config = small_modern;
    config.activation = MLP_GELU;
    check_gradients("modern with GELU", &config, smooth);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gpt2), cmocka_unit_test(test_llama),
                                       cmocka_unit_test(test_modern)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
