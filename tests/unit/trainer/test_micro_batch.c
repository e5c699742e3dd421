// The micro-batch size that a GPU's memory plan chooses: the largest divisor that fits to the byte, with its
// reason.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/expect.h"
#include "trainer/plan/micro_batch.h"
#include "trainer/plan/model_sizes.h"
#include "trainer/plan/plan.h"

struct fixture {
    struct config config;
    struct params params;
    struct device *device;
    struct engine_options options;
};

static void fixture_init(struct fixture *fixture, int world, const char *train) {
    char json[512];
    snprintf(
        json, sizeof json,
        "{\"model\": {\"n_layer\": 2, \"n_head\": 2, \"n_embd\": 128, \"vocab_size\": 500, \"n_positions\": "
        "128}, \"precision\": {\"compute\": \"bf16\"}, \"train\": {%s}}",
        train);
    *fixture = (struct fixture){.device = NULL};
    EXPECT_OK(config_parse(&fixture->config, json, strlen(json), "test"));
    EXPECT_OK(config_resolve(&fixture->config, world));
    assert_true(fixture->config.micro_batch_is_open);
    const struct gpt_config sizes = config_model(&fixture->config);
    EXPECT_OK(params_init(&fixture->params, &sizes));
    fixture->device = cuda_device_plan();
    fixture->options = (struct engine_options){.config = &fixture->config,
                                               .params = &fixture->params,
                                               .type = DTYPE_BF16,
                                               .device = fixture->device,
                                               .attention = ATTENTION_CUDNN,
                                               .world = world,
                                               .local_world = world};
}

static void fixture_free(struct fixture *fixture) {
    device_close(fixture->device);
    params_free(&fixture->params);
    config_free(&fixture->config);
}

// Bytes of the plan with a size, of the rank that needs most.
static size_t planned(const struct fixture *fixture, int64_t size, enum region_place place) {
    struct engine_options options = fixture->options;
    struct config config = fixture->config;
    size_t most = 0;
    config_set_micro_batch(&config, size);
    options.config = &config;
    for (options.rank = 0; options.rank < options.world; options.rank++) {
        struct plan plan;
        EXPECT_OK(plan_make(&options, &plan));
        most = plan.taken[place] > most ? plan.taken[place] : most;
    }
    return most;
}

static void expect_choice(const struct fixture *fixture, uint64_t device, uint64_t host, int64_t size,
                          enum micro_batch_reason reason, const char *words) {
    const uint64_t limits[N_REGION_PLACES] = {[REGION_HOST] = host, [REGION_DEVICE] = device};
    struct micro_batch_choice choice;
    char text[160];
    EXPECT_OK(micro_batch_choose_for_all(&fixture->options, limits, &choice));
    assert_int_equal(choice.size, size);
    assert_int_equal(choice.reason, reason);
    assert_non_null(strstr(micro_batch_describe(&choice, text, sizeof text), words));
}

static void test_the_largest_that_fits_to_the_byte(void **state) {
    (void)state;
    for (int world = 1; world <= 3; world += 2) {
        struct fixture fixture;
        char train[64];
        snprintf(train, sizeof train, "\"train_batch_size\": %d", 24 * world);
        fixture_init(&fixture, world, train);
        expect_choice(&fixture, UINT64_MAX, UINT64_MAX, 24, MICRO_BATCH_WHOLE,
                      "all sequences of a rank's step");
        static const int sizes[] = {24, 12, 8, 6, 4, 3, 2, 1};
        for (int i = 0; i < 8; i++) {
            const size_t needs = planned(&fixture, sizes[i], REGION_DEVICE);
            char next[64];
            snprintf(next, sizeof next, i + 1 < 8 ? ": %d would need" : "the smallest", sizes[i]);
            expect_choice(&fixture, needs, UINT64_MAX, sizes[i], i ? MICRO_BATCH_MEMORY : MICRO_BATCH_WHOLE,
                          "");
            expect_choice(&fixture, needs - 1, UINT64_MAX, i + 1 < 8 ? sizes[i + 1] : 1,
                          i + 1 < 8 ? MICRO_BATCH_MEMORY : MICRO_BATCH_NONE, next);
        }
        fixture_free(&fixture);
    }
}

static void test_host_memory_counts(void **state) {
    (void)state;
    struct fixture fixture;
    fixture_init(&fixture, 1, "\"train_batch_size\": 24");
    const size_t needs = planned(&fixture, 24, REGION_HOST);
    if (needs > planned(&fixture, 12, REGION_HOST))
        expect_choice(&fixture, UINT64_MAX, needs - 1, 12, MICRO_BATCH_MEMORY, "host memory: 24 would need");
    expect_choice(&fixture, UINT64_MAX, 0, 1, MICRO_BATCH_NONE, "the smallest");
    fixture_free(&fixture);
}

static void test_no_more_tokens_than_gain(void **state) {
    (void)state;
    struct fixture fixture;
    fixture_init(&fixture, 1, "\"train_batch_size\": 3000");
    expect_choice(&fixture, UINT64_MAX, UINT64_MAX, 500, MICRO_BATCH_TOKENS, "at most 65536 tokens");
    assert_true(500 * 128 <= MICRO_BATCH_MOST_TOKENS && 600 * 128 > MICRO_BATCH_MOST_TOKENS);
    fixture_free(&fixture);
}

static void test_a_recorded_size(void **state) {
    (void)state;
    struct fixture fixture;
    fixture_init(&fixture, 1, "\"train_batch_size\": 24");
    const size_t needs = planned(&fixture, 6, REGION_DEVICE);
    bool fits;
    EXPECT_OK(micro_batch_fits(&fixture.options, (const uint64_t[]){UINT64_MAX, needs}, 6, &fits));
    assert_true(fits);
    EXPECT_OK(micro_batch_fits(&fixture.options, (const uint64_t[]){UINT64_MAX, needs - 1}, 6, &fits));
    assert_false(fits);
    fixture_free(&fixture);
}

static void test_what_stays_free(void **state) {
    (void)state;
    assert_int_equal(micro_batch_limit(1600), 1500);
    assert_int_equal(micro_batch_limit((uint64_t)80 << 30), (uint64_t)78 << 30);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_largest_that_fits_to_the_byte),
        cmocka_unit_test(test_host_memory_counts),
        cmocka_unit_test(test_no_more_tokens_than_gain),
        cmocka_unit_test(test_a_recorded_size),
        cmocka_unit_test(test_what_stays_free),
    };
    return cmocka_run_group_tests_name("micro-batch sizes", tests, NULL, NULL);
}
