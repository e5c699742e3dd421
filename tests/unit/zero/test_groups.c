// Groups of tensors (optimizer.groups): which tensors an entry is of, runs against PyTorch in float64
// (scripts/golden/optimizers.py), and what frozen tensors take no part in.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/json.h"
#include "tests/ref/ref.h"
#include "tests/support/optimizer_fixture.h"

#define GOLDEN "tests/golden/optimizers/groups.json"

static const struct gpt_config sizes = {
    .n_layer = 2, .n_head = 1, .n_embd = 4, .vocab_size = 5, .n_positions = 3};

// ---- which tensors

// The groups of a model for `groups` as JSON.
static enum status resolve(const struct params *params, const char *type, const char *groups,
                           struct config *config, struct optimizer_groups *out) {
    char json[1024];
    snprintf(json, sizeof json, "{\"optimizer\": {\"type\": \"%s\", \"lr\": 0.01, \"groups\": %s}}", type,
             groups);
    EXPECT_OK(config_parse(config, json, strlen(json), "c.json"));
    return optimizer_groups_init(out, config, params);
}

static void test_the_first_entry_applies(void **state) {
    (void)state;
    struct params params;
    struct config config;
    struct optimizer_groups groups;
    EXPECT_OK(params_init(&params, &sizes));
    EXPECT_OK(resolve(&params, "adamw",
                      "[{\"match\": \"transformer.h.0.*\", \"freeze\": true},"
                      " {\"match\": [\"*.bias\", \"model.ln_f.weight\"], \"lr\": 0.002},"
                      " {\"match\": \"h.?.attn.*\", \"weight_decay\": 0.5}]",
                      &config, &groups));
    static const struct {
        const char *name;
        int entry;
        double lr_scale, decay;
    } cases[] = {
        {"h.0.attn.c_attn.bias", 0, 0, 0},   {"h.1.attn.c_attn.bias", 1, 0.2, 0},
        {"ln_f.weight", 1, 0.2, 0},          {"h.1.attn.c_attn.weight", 2, 1, 0.5},
        {"h.1.mlp.c_fc.weight", -1, 1, 0.1}, {"h.1.ln_1.weight", -1, 1, 0},
        {"h.0.mlp.c_proj.weight", 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int tensor = params_find(&params, cases[i].name);
        const struct optimizer_group *group = optimizer_group_of(&groups, tensor);
        assert_int_equal(groups.entry_of[tensor], cases[i].entry);
        assert_int_equal(group->is_frozen, cases[i].entry == 0);
        if (cases[i].entry == 0)
            continue;
        assert_true(fabs(group->lr_scale - cases[i].lr_scale) < 1e-15);
        assert_true(group->weight_decay == cases[i].decay);
    }
    struct text lines = {0};
    optimizer_groups_print(&groups, &config, &params, &lines);
    assert_string_equal(
        lines.data, "optimizer.groups[0]: 12 tensors, 244 parameters, frozen\n"
                    "optimizer.groups[1]: 8 tensors, 52 parameters, adamw, lr 0.002, weight decay 0\n"
                    "optimizer.groups[2]: 2 tensors, 64 parameters, adamw, lr 0.01, weight decay 0.5\n"
                    "optimizer, other tensors: 4 tensors, 160 parameters, adamw, lr 0.01, weight decay 0.1\n"
                    "optimizer, other tensors: 2 tensors, 8 parameters, adamw, lr 0.01, weight decay 0");
    text_free(&lines);
    optimizer_groups_free(&groups);
    config_free(&config);
    params_free(&params);
}

static void test_muon_leaves_a_matrix_to_adamw(void **state) {
    (void)state;
    struct params params;
    struct config config;
    struct optimizer_groups groups;
    EXPECT_OK(params_init(&params, &sizes));
    EXPECT_OK(resolve(&params, "muon",
                      "[{\"match\": \"h.0.attn.*\", \"type\": \"adamw\", \"lr\": 0.003},"
                      " {\"match\": \"h.1.mlp.*.weight\", \"freeze\": true}]",
                      &config, &groups));
    int n_matrices = 0, n_frozen = 0;
    for (int i = 0; i < params.n_params; i++) {
        n_matrices += optimizer_groups_orthogonalize(&groups, i);
        n_frozen += optimizer_group_of(&groups, i)->is_frozen;
    }
    assert_int_equal(n_matrices, 8 - 2 - 2);
    assert_int_equal(n_frozen, 2);
    const struct optimizer_group *group =
        optimizer_group_of(&groups, params_find(&params, "h.0.attn.c_attn.weight"));
    assert_int_equal(group->n_moments, 2);
    assert_true(fabs(group->lr_scale - 0.3) < 1e-15 && group->weight_decay == 0.1);
    optimizer_groups_free(&groups);
    config_free(&config);
    params_free(&params);
}

static void test_what_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *groups, *says;
    } cases[] = {
        {"[{\"match\": \"h.0.*\"}, {\"match\": [\"h.*\", \"h.2.*\"]}]",
         "optimizer.groups[1].match: \"h.2.*\" matches no tensor"},
        {"[{\"match\": \"h.0.atn.c_attn.weight\"}]", "did you mean h.0.attn.c_attn.weight"},
        {"[{\"match\": \"lm_head.weight\"}]", "tied to wte.weight"},
        {"[{\"match\": \"*\", \"lr\": 1}, {\"match\": \"h.0.*\", \"freeze\": true}]",
         "optimizer.groups[1] has no effect"},
        {"[{\"match\": [\"h.*\", \"w*\", \"ln_f.*\"], \"freeze\": true}]", "freezes all tensors"},
    };
    struct params params;
    struct config config;
    struct optimizer_groups groups;
    EXPECT_OK(params_init(&params, &sizes));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        EXPECT_FAILURE(STATUS_INVALID, resolve(&params, "adamw", cases[i].groups, &config, &groups),
                       cases[i].says);
        optimizer_groups_free(&groups);
        config_free(&config);
    }
    params_free(&params);
}

// A part of a fused tensor, and more groups than constants have room for.
static void test_parts_and_too_many_groups(void **state) {
    (void)state;
    struct params params;
    struct config config;
    struct optimizer_groups groups;
    struct text list = {0};
    const struct gpt_config llama = {.family = FAMILY_LLAMA,
                                     .n_layer = 9,
                                     .n_head = 1,
                                     .n_kv_head = 1,
                                     .head_dim = 4,
                                     .n_embd = 4,
                                     .intermediate_size = 8,
                                     .vocab_size = 5,
                                     .n_positions = 3};
    EXPECT_OK(params_init(&params, &llama));
    EXPECT_FAILURE(STATUS_INVALID,
                   resolve(&params, "adamw", "[{\"match\": \"*.q_proj.weight\"}]", &config, &groups),
                   "which is a part of layers.0.self_attn.qkv_proj.weight");
    optimizer_groups_free(&groups);
    config_free(&config);
    for (int i = 0; i < 9; i++)
        text_add(&list, "%s{\"match\": \"layers.%d.*\", \"lr\": 0.00%d}", i ? ", " : "[", i, i + 1);
    text_add(&list, "]");
    EXPECT_FAILURE(STATUS_INVALID, resolve(&params, "adamw", list.data, &config, &groups),
                   "more than 16 groups of tensors");
    optimizer_groups_free(&groups);
    config_free(&config);
    text_free(&list);
    params_free(&params);
}

// The first block of this family lacks the tensors that come first in the others.
static void test_examples_of_names_exist(void **state) {
    (void)state;
    struct params params;
    struct config config;
    struct optimizer_groups groups;
    const struct gpt_config modern = {.family = FAMILY_MODERN,
                                      .n_layer = 2,
                                      .n_head = 1,
                                      .n_kv_head = 1,
                                      .head_dim = 4,
                                      .n_embd = 4,
                                      .intermediate_size = 8,
                                      .vocab_size = 5,
                                      .n_positions = 3,
                                      .embedding_skip = true};
    EXPECT_OK(params_init(&params, &modern));
    EXPECT_FAILURE(STATUS_INVALID, resolve(&params, "adamw", "[{\"match\": \"value*\"}]", &config, &groups),
                   "names such as embed_tokens.weight and layers.");
    optimizer_groups_free(&groups);
    config_free(&config);
    params_free(&params);
}

// ---- over a model

// With fp32 parameters these are the master weights.
static float *floats_of(struct fixture *fixture, float *base, const struct param *param) {
    return base + fixture->params.units[param->unit].offset + param->offset;
}

static const struct param *param_of_tensor(struct fixture *fixture, const cJSON *tensor) {
    const char *name;
    EXPECT_OK(json_get_string(tensor, "name", GOLDEN, &name));
    const int i = params_find(&fixture->params, name);
    assert_true(i >= 0);
    return &fixture->params.params[i];
}

static void store(float *to, const cJSON *numbers, size_t n) {
    assert_int_equal(cJSON_GetArraySize(numbers), n);
    const cJSON *item;
    cJSON_ArrayForEach(item, numbers) *to++ = (float)item->valuedouble;
}

// Every element within the rounding of some operations on the weight, and on an update of the size of the
// rate; and a frozen tensor to the bit.
static void check_result(struct fixture *fixture, const cJSON *tensor, float *weights) {
    const struct param *param = param_of_tensor(fixture, tensor);
    const int index = (int)(param - fixture->params.params);
    const struct optimizer_group *group = optimizer_group_of(&fixture->state.groups, index);
    const float *weight = floats_of(fixture, weights, param);
    const cJSON *wanted = cJSON_GetObjectItem(tensor, "result"),
                *given = cJSON_GetObjectItem(tensor, "weight");
    const double rate = group->lr_scale * fixture->config.optimizer.lr;
    assert_int_equal(cJSON_GetArraySize(wanted), param->elements);
    for (size_t i = 0; i < param->elements; i++) {
        const double want = cJSON_GetArrayItem(wanted, (int)i)->valuedouble;
        if (group->is_frozen)
            assert_true((double)weight[i] == cJSON_GetArrayItem(given, (int)i)->valuedouble);
        if (!(fabs((double)weight[i] - want) <= 16 * 0x1p-24 * (fabs(want) + 8 * rate)))
            fail_msg("%s, element %zu: %.9g, expected %.9g", param->name, i, (double)weight[i], want);
    }
}

static void run_case(const cJSON *of, const cJSON *factors) {
    char *json = cJSON_PrintUnformatted(cJSON_GetObjectItem(of, "config"));
    struct fixture fixture;
    const cJSON *tensors = cJSON_GetObjectItem(of, "tensors"), *norms = cJSON_GetObjectItem(of, "norms"),
                *tensor;
    assert_non_null(json);
    fixture_open(&fixture, &sizes, json);
    cJSON_free(json);
    assert_int_equal(cJSON_GetArraySize(tensors), fixture.params.n_params);
    float *weights = fixture.state.parameters.stored;
    cJSON_ArrayForEach(tensor, tensors) {
        const struct param *param = param_of_tensor(&fixture, tensor);
        store(floats_of(&fixture, weights, param), cJSON_GetObjectItem(tensor, "weight"), param->elements);
    }
    for (int step = 1; step <= cJSON_GetArraySize(factors); step++) {
        const double lr = fixture.config.optimizer.lr * cJSON_GetArrayItem(factors, step - 1)->valuedouble,
                     want = cJSON_GetArrayItem(norms, step - 1)->valuedouble;
        double norm;
        EXPECT_OK(gradients_begin(&fixture.state.gradients, &fixture.stream, 0, 1));
        cJSON_ArrayForEach(tensor, tensors) {
            const struct param *param = param_of_tensor(&fixture, tensor);
            if (!param->is_frozen)
                store(fixture_grad(&fixture, param),
                      cJSON_GetArrayItem(cJSON_GetObjectItem(tensor, "gradients"), step - 1),
                      param->elements);
        }
        EXPECT_OK(optimizer_norm(&fixture.optimizer, &fixture.stream, &norm));
        assert_true(fabs(norm - want) <= 1e-6 * want);
        assert_true(norm > fixture.config.train.gradient_clipping); // clipping is tested too
        EXPECT_OK(fixture_update(&fixture, step, lr, norm));
    }
    cJSON_ArrayForEach(tensor, tensors) check_result(&fixture, tensor, weights);
    fixture_close(&fixture);
}

static void test_against_pytorch(void **state) {
    (void)state;
    cJSON *tree;
    const cJSON *of, *cases;
    EXPECT_OK(json_read_file(GOLDEN, &tree));
    EXPECT_OK(json_get_array(tree, "cases", GOLDEN, &cases));
    cJSON_ArrayForEach(of, cases) run_case(of, cJSON_GetObjectItem(tree, "factors"));
    cJSON_Delete(tree);
}

// Frozen tensors have no gradients and no moments.
static void test_frozen_tensors(void **state) {
    (void)state;
    static const char *const types[] = {"adamw", "adam", "sgd", "lion", "muon"};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        char json[256];
        struct fixture fixture;
        double norm;
        snprintf(
            json, sizeof json,
            "{\"optimizer\": {\"type\": \"%s\", \"groups\": [{\"match\": [\"w*\", \"h.0.*\", \"ln_f.*\", "
            "\"h.1.*.bias\", \"h.1.ln*\", \"h.1.mlp*\", \"*c_proj*\"], \"freeze\": true}]}}",
            types[t]);
        fixture_open(&fixture, &sizes, json);
        float *weights = fixture.state.parameters.stored;
        const int trained = params_find(&fixture.params, "h.1.attn.c_attn.weight");
        size_t n_moments = 0;
        for (int i = 0; i < fixture.params.n_params; i++) {
            const struct param *param = &fixture.params.params[i];
            assert_int_equal(param->is_frozen, i != trained);
            for (size_t k = 0; k < param->elements; k++)
                floats_of(&fixture, weights, param)[k] = (float)(k + 1) / 8;
            for (size_t k = 0; i == trained && k < param->elements; k++)
                fixture_grad(&fixture, param)[k] = k % 2 ? 0.5f : -0.5f;
        }
        assert_true(fixture.params.n_trained <= fixture.params.params[trained].elements + PARAM_ALIGNMENT);
        for (int i = 0; i < fixture.state.placement.n_spans; i++) {
            const struct placement_span *placed = &fixture.state.placement.spans[i];
            n_moments += placed->n_moments > 0 ? placed->span.end - placed->span.begin : 0;
        }
        assert_true(n_moments <= fixture.params.params[trained].elements + PARAM_ALIGNMENT);
        EXPECT_OK(optimizer_norm(&fixture.optimizer, &fixture.stream, &norm));
        assert_true(fabs(norm - 0.5 * sqrt(48)) < 1e-12);
        EXPECT_OK(fixture_update(&fixture, 1, 0.01, norm));
        for (int i = 0; i < fixture.params.n_params; i++)
            for (size_t k = 0; k < fixture.params.params[i].elements; k++) {
                const float now = floats_of(&fixture, weights, &fixture.params.params[i])[k];
                assert_true(i == trained ? now != (float)(k + 1) / 8 && isfinite(now)
                                         : now == (float)(k + 1) / 8);
            }
        fixture_close(&fixture);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_first_entry_applies), cmocka_unit_test(test_muon_leaves_a_matrix_to_adamw),
        cmocka_unit_test(test_what_is_refused),         cmocka_unit_test(test_parts_and_too_many_groups),
        cmocka_unit_test(test_examples_of_names_exist), cmocka_unit_test(test_against_pytorch),
        cmocka_unit_test(test_frozen_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
