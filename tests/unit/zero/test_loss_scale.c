// Loss scaling with scripted overflows: the scale after each step must follow DeepSpeed's rules.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/support/expect.h"
#include "zero/optimizer/rules/loss_scale.h"

static struct config read_config(const char *json) {
    struct config config;
    EXPECT_OK(config_parse(&config, json, strlen(json), "json"));
    return config;
}

// script: one character per step, x for an overflow. scales: the expected scale after each step.
static struct loss_scale follow(const char *json, const char *script, const double *scales) {
    struct config config = read_config(json);
    struct loss_scale loss_scale = loss_scale_initial(&config);
    for (int64_t step = 0; script[step]; step++) {
        EXPECT_OK(loss_scale_update(&loss_scale, &config, step, script[step] == 'x'));
        if (loss_scale.scale != scales[step])
            fail_msg("after step %d of %s the scale is %g, expected %g", (int)step, script, loss_scale.scale,
                     scales[step]);
    }
    config_free(&config);
    return loss_scale;
}

// The window starts at the last overflow: with a window of 4 the scale doubles 4, 8, ... steps after it. With
// hysteresis 2 the first overflow has no effect, also again after the scale has grown.
static void test_dynamic(void **state) {
    (void)state;
    static const double scales[] = {256, 256, 256, 512, 512, 256, 128, 128, 128, 128, 256, 256, 128};
    struct loss_scale end = follow("{\"fp16\": {\"loss_scaling\": \"on\", \"initial_scale_power\": 8, "
                                   "\"loss_scale_window\": 4, \"hysteresis\": 2}}",
                                   "....xxx....xx", scales);
    assert_int_equal(end.skipped, 5);
    assert_int_equal(end.last_overflow, 12);
    assert_int_equal(end.hysteresis_left, 1);
}

static void test_without_hysteresis(void **state) {
    (void)state;
    static const double scales[] = {4, 2, 2, 4, 4, 2, 1};
    struct loss_scale end = follow("{\"fp16\": {\"loss_scaling\": \"on\", \"initial_scale_power\": 3, "
                                   "\"loss_scale_window\": 2, \"hysteresis\": 1}}",
                                   "xx...xx", scales);
    assert_int_equal(end.skipped, 4);
}

static void test_the_smallest_scale(void **state) {
    (void)state;
    struct config config = read_config("{\"fp16\": {\"loss_scaling\": \"on\", \"initial_scale_power\": 2, "
                                       "\"hysteresis\": 1, \"min_loss_scale\": 3}}");
    struct loss_scale loss_scale = loss_scale_initial(&config);
    EXPECT_OK(loss_scale_update(&loss_scale, &config, 0, true));
    assert_true(loss_scale.scale == 3);
    EXPECT_FAILURE(STATUS_FAILED, loss_scale_update(&loss_scale, &config, 1, true), "min_loss_scale 3",
                   "step 2");
    config_free(&config);
}

static void test_fixed_and_none(void **state) {
    (void)state;
    static const double fixed[] = {1024, 1024, 1024}, none[] = {0, 0, 0};
    struct loss_scale end =
        follow("{\"fp16\": {\"loss_scaling\": \"on\", \"loss_scale\": 1024, \"loss_scale_window\": 1}}",
               ".xx", fixed);
    assert_int_equal(end.skipped, 2);
    assert_true(loss_scale_factor(&end) == 1024);
    end = follow("{}", "...", none);
    assert_true(loss_scale_factor(&end) == 1);
}

// Too many skipped steps in a row end the run, with dynamic and fixed scales. One good step resets the count.
static void test_the_limit_on_consecutive_skips(void **state) {
    (void)state;
    static const char *const modes[] = {"\"loss_scale\": 1024", "\"initial_scale_power\": 100"};
    static const char *const names[] = {"fixed loss scale of 1024", "dynamic loss scale"};
    for (int mode = 0; mode < 2; mode++) {
        char json[160];
        snprintf(json, sizeof json, "{\"fp16\": {\"loss_scaling\": \"on\", %s}}", modes[mode]);
        struct config config = read_config(json);
        struct loss_scale loss_scale = loss_scale_initial(&config);
        for (int64_t step = 0; step < 99; step++)
            EXPECT_OK(loss_scale_update(&loss_scale, &config, step, step != 49));
        EXPECT_FAILURE(STATUS_FAILED, loss_scale_update(&loss_scale, &config, 99, true),
                       "step 100: 50 steps in a row", names[mode], "a checkpoint of step 50 or earlier");
        config_free(&config);
    }
}

// fp16 scales losses unless disabled; other types only if enabled.
static void test_where_losses_are_scaled(void **state) {
    (void)state;
    static const struct {
        const char *json;
        double scale;
    } cases[] = {
        {"{\"precision\": {\"compute\": \"fp16\"}}", 65536},
        {"{\"precision\": {\"compute\": \"fp16\"}, \"fp16\": {\"loss_scaling\": \"off\"}}", 0},
        {"{\"precision\": {\"compute\": \"fp16\"}, \"fp16\": {\"loss_scale\": 8}}", 8},
        {"{\"precision\": {\"compute\": \"bf16\"}}", 0},
        {"{\"precision\": {\"compute\": \"bf16\"}, \"fp16\": {\"loss_scaling\": true}}", 65536},
        {"{\"precision\": {\"compute\": \"auto\"}, \"fp16\": {\"loss_scaling\": false}}", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config config = read_config(cases[i].json);
        struct loss_scale loss_scale = loss_scale_initial(&config);
        if (loss_scale.scale != cases[i].scale)
            fail_msg("%s: the scale is %g, expected %g", cases[i].json, loss_scale.scale, cases[i].scale);
        config_free(&config);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dynamic),
        cmocka_unit_test(test_without_hysteresis),
        cmocka_unit_test(test_the_smallest_scale),
        cmocka_unit_test(test_fixed_and_none),
        cmocka_unit_test(test_the_limit_on_consecutive_skips),
        cmocka_unit_test(test_where_losses_are_scaled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
