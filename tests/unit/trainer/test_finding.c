// The first tensor of a pass that is not finite, by name; and gradients that nothing uses.
#include "base/json.h"
#include "tests/support/whole_model.h"
#include "trainer/spikes.h"

static const struct gpt_config sizes = {
    .n_layer = 1, .n_head = 1, .n_embd = 8, .vocab_size = 11, .n_positions = 4};

static void fill(struct whole_model *model, const char *name, float value) {
    const struct param *param = &model->params.params[params_find(&model->params, name)];
    float *values = (float *)whole_data(model, model->param_region) +
                    model->params.units[param->unit].offset + param->offset;
    for (size_t i = 0; i < param->elements; i++)
        values[i] = value;
}

// With a loss scaled by 1e28: in a model whose MLP has activations of 1e12 and an output projection of zero,
// all is finite but that projection's gradient.
static struct finding find(const char *groups_json) {
    static const int32_t tokens[] = {1, 2, 3, 4}, targets[] = {2, 3, 4, 5};
    const struct gpt_options options = {.type = DTYPE_F32, .B = 1, .T = 4, .training = true};
    struct device *device;
    struct whole_model model;
    struct config config;
    struct finding found = {0};
    double sum;
    assert_ok(config_parse(&config, groups_json, strlen(groups_json), "test"));
    assert_ok(device_open("cpu", 1, 0, &device));
    whole_model_init(&model, &sizes, device, &options, 0);
    whole_model_randomize(&model, 7);
    fill(&model, "h.0.mlp.c_fc.bias", 1e12F);
    fill(&model, "h.0.mlp.c_proj.weight", 0);
    assert_ok(optimizer_groups_freeze(&config, &model.params));
    assert_ok(gpt_load(model.gpt, &model.stream, whole_model_batch(&model, tokens, targets), 0));
    const struct gpt_loss loss = {.scale = 1e28F, .sum = &sum};
    assert_ok(finding_train(model.gpt, &model.params, device, &model.stream, &model.hooks, &loss, &found));
    assert_true(isfinite(sum));
    whole_model_free(&model);
    device_close(device);
    config_free(&config);
    return found;
}

static void test_gradients_of_frozen_tensors_are_not_looked_at(void **state) {
    (void)state;
    const struct finding found = find("{}");
    assert_true(found.is_found);
    assert_string_equal(found.what, "the gradient of h.0.mlp.c_proj.weight, in the backward pass");
    const struct finding frozen =
        find("{\"optimizer\": {\"groups\": [{\"match\": \"h.0.mlp.c_proj.weight\", \"freeze\": true}]}}");
    assert_string_equal(frozen.what, "");
    assert_false(frozen.is_found);
    assert_true(frozen.n_operations > found.n_operations);
}

// A cap makes the losses of infinite logits finite again, but the product overflowed.
static void test_a_cap_does_not_hide_infinite_logits(void **state) {
    (void)state;
    static const int32_t tokens[] = {1, 2, 3, 4}, targets[] = {2, 3, 4, 5};
    struct gpt_config config = sizes;
    const struct gpt_options options = {.type = DTYPE_F32, .B = 1, .T = 4, .training = true};
    struct device *device;
    struct whole_model model;
    config.family = FAMILY_MODERN;
    config.untied = true;
    config.soft_cap = 15;
    assert_ok(device_open("cpu", 1, 0, &device));
    whole_model_init(&model, &config, device, &options, 0);
    for (int k = 0; k < 2; k++) {
        double sum;
        whole_model_randomize(&model, 7);
        if (k > 0)
            fill(&model, params_lm_head(&model.params)->name, 3e38F);
        assert_ok(gpt_forward_backward(model.gpt, &model.stream, &model.hooks,
                                       whole_model_batch(&model, tokens, targets), 1, &sum));
        assert_int_equal(isfinite(sum) != 0, k == 0);
    }
    whole_model_free(&model);
    device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_of_frozen_tensors_are_not_looked_at),
        cmocka_unit_test(test_a_cap_does_not_hide_infinite_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
