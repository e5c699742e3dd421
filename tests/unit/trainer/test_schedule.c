// Schedules against values computed by hand.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/expect.h"
#include "trainer/schedule.h"

#define PEAK 0.01

static void configure(struct config *config, const char *text) {
    EXPECT_OK(config_parse(config, text, strlen(text), "test"));
    config->optimizer.lr = PEAK;
}

// Of a new run.
static int64_t warmup_of(const struct config *config) {
    return schedule_warmup_of(config->scheduler.warmup_steps, config_decay_steps(config));
}

static double rate_of(const struct config *config, int64_t step) {
    return schedule_lr(config, warmup_of(config), step);
}

static void assert_rate(const struct config *config, int64_t step, double expected) {
    double rate = rate_of(config, step);
    if (!(fabs(rate - expected) <= 1e-12 * PEAK))
        fail_msg("step %lld: %.17g, expected %.17g", (long long)step, rate, expected);
}

static void test_warm_up_is_linear(void **unused) {
    (void)unused;
    static const char *const types[] = {"constant", "cosine", "linear", "warmup-stable-decay"};
    for (int i = 0; i < 4; i++) {
        char text[160];
        snprintf(text, sizeof text,
                 "{\"train\": {\"max_steps\": 100}, \"scheduler\": {\"type\": \"%s\", \"warmup_steps\": 5}}",
                 types[i]);
        struct config config;
        configure(&config, text);
        for (int64_t step = 0; step < 5; step++)
            assert_rate(&config, step, PEAK * (double)(step + 1) / 5);
        config_free(&config);
    }
}

// Golden curves need exactly the configured rate.
static void test_constant_is_exact(void **unused) {
    (void)unused;
    struct config config;
    configure(&config, "{\"train\": {\"max_steps\": 20}, "
                       "\"scheduler\": {\"type\": \"constant\", \"warmup_steps\": 0}}");
    for (int64_t step = 0; step < 20; step++)
        assert_true(rate_of(&config, step) == PEAK);
    config_free(&config);
}

// No warm-up, 101 steps: step s is s / 100 of the way.
static void test_cosine_and_linear_at_known_points(void **unused) {
    (void)unused;
    struct config config;
    configure(&config, "{\"train\": {\"max_steps\": 101}, "
                       "\"scheduler\": {\"type\": \"cosine\", \"warmup_steps\": 0, \"min_lr_ratio\": 0.1}}");
    assert_rate(&config, 0, PEAK);
    assert_rate(&config, 25, PEAK * (0.1 + 0.9 * 0.5 * (1 + sqrt(0.5))));
    assert_rate(&config, 50, PEAK * 0.55);
    assert_rate(&config, 75, PEAK * (0.1 + 0.9 * 0.5 * (1 - sqrt(0.5))));
    assert_rate(&config, 100, PEAK * 0.1);
    config_free(&config);
    configure(&config, "{\"train\": {\"max_steps\": 101}, "
                       "\"scheduler\": {\"type\": \"linear\", \"warmup_steps\": 0, \"min_lr_ratio\": 0}}");
    for (int64_t step = 0; step <= 100; step++)
        assert_rate(&config, step, PEAK * (1 - (double)step / 100));
    config_free(&config);
}

static void test_stable_phase_then_linear_decay(void **unused) {
    (void)unused;
    struct config config;
    configure(&config, "{\"train\": {\"max_steps\": 100}, \"scheduler\": {\"type\": \"warmup-stable-decay\", "
                       "\"warmup_steps\": 10, \"decay_ratio\": 0.2, \"min_lr_ratio\": 0.1}}");
    for (int64_t step = 9; step <= 79; step++)
        assert_rate(&config, step, PEAK);
    assert_rate(&config, 89, PEAK * 0.55);
    assert_rate(&config, 99, PEAK * 0.1);
    for (int64_t step = 80; step < 100; step++)
        assert_true(rate_of(&config, step) < rate_of(&config, step - 1));
    config_free(&config);
    // A last part that would begin in the warm-up begins at its end.
    configure(&config, "{\"train\": {\"max_steps\": 40}, \"scheduler\": {\"type\": \"warmup-stable-decay\", "
                       "\"warmup_steps\": 20, \"decay_ratio\": 0.9, \"min_lr_ratio\": 0}}");
    for (int64_t step = 19; step < 40; step++)
        assert_rate(&config, step, PEAK * (double)(39 - step) / 20);
    config_free(&config);
}

// decay_steps apart from max_steps: the schedule is that of decay_steps, and its last rate stays.
static void test_decay_steps(void **unused) {
    (void)unused;
    static const char *const types[] = {"cosine", "linear", "warmup-stable-decay"};
    for (int i = 0; i < 3; i++) {
        char text[2][200];
        struct config plain, apart;
        for (int k = 0; k < 2; k++)
            snprintf(
                text[k], sizeof text[k],
                "{\"train\": {\"max_steps\": %d}, \"scheduler\": {\"type\": \"%s\", \"warmup_steps\": 5, "
                "\"decay_steps\": %d}}",
                k ? 150 : 100, types[i], k ? 100 : 0);
        configure(&plain, text[0]);
        configure(&apart, text[1]);
        for (int64_t step = 0; step < 100; step++)
            assert_true(rate_of(&plain, step) == rate_of(&apart, step));
        for (int64_t step = 100; step < 150; step++)
            assert_rate(&apart, step, 0.1 * PEAK);
        config_free(&plain);
        config_free(&apart);
    }
}

// A warm-up longer than the schedule takes a tenth of it, and at least a step.
static void test_shortened_warm_up(void **unused) {
    (void)unused;
    static const struct {
        int max_steps, decay_steps, warmup, expected;
    } cases[] = {{10, 0, 700, 1},    {7, 0, 8, 1},         {699, 0, 700, 69},
                 {700, 0, 700, 700}, {10, 5000, 700, 700}, {5000, 600, 700, 60}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[200];
        struct config config;
        snprintf(
            text, sizeof text,
            "{\"train\": {\"max_steps\": %d}, \"scheduler\": {\"warmup_steps\": %d, \"decay_steps\": %d}}",
            cases[i].max_steps, cases[i].warmup, cases[i].decay_steps);
        configure(&config, text);
        assert_int_equal(warmup_of(&config), cases[i].expected);
        assert_rate(&config, 0, PEAK / cases[i].expected);
        assert_rate(&config, cases[i].expected - 1, PEAK);
        config_free(&config);
    }
}

// A run that is made longer keeps its warm-up: with every schedule it goes on as if that had been given.
static void test_a_longer_run_keeps_its_warm_up(void **unused) {
    (void)unused;
    static const char *const types[] = {"constant", "cosine", "linear", "warmup-stable-decay"};
    for (int i = 0; i < 4; i++) {
        struct config config;
        char text[160];
        snprintf(text, sizeof text, "{\"train\": {\"max_steps\": 20}, \"scheduler\": {\"type\": \"%s\"}}",
                 types[i]);
        configure(&config, text);
        int64_t warmup = warmup_of(&config);
        assert_int_equal(warmup, 2);
        config.train.max_steps = 120;
        warmup = schedule_warmup_of(warmup, config_decay_steps(&config));
        assert_int_equal(warmup, 2);
        for (int64_t step = 20; step < 120; step++) {
            const double before = schedule_lr(&config, warmup, step - 1);
            assert_true(schedule_lr(&config, warmup, step) <= before);
        }
        config_free(&config);
    }
}

// The rate stays within its bounds, also where warm-up, decay and the last step meet.
static void test_never_outside_its_bounds(void **unused) {
    (void)unused;
    static const char *const types[] = {"constant", "cosine", "linear", "warmup-stable-decay"};
    for (int type = 0; type < 4; type++)
        for (int warmup = 0; warmup <= 3; warmup++)
            for (int last = 0; last <= 4; last++)
                for (int decay = 0; decay <= 2; decay++) {
                    char text[240];
                    snprintf(text, sizeof text,
                             "{\"train\": {\"max_steps\": %d}, \"scheduler\": {\"type\": \"%s\", "
                             "\"warmup_steps\": %d, \"decay_ratio\": %g, \"min_lr_ratio\": 0.25}}",
                             last, types[type], warmup, 0.5 * decay);
                    struct config config;
                    configure(&config, text);
                    for (int64_t step = 0; step < last; step++) {
                        double rate = rate_of(&config, step);
                        assert_true(rate > 0.2499 * PEAK && rate <= PEAK * (1 + 1e-12));
                    }
                    config_free(&config);
                }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warm_up_is_linear),
        cmocka_unit_test(test_constant_is_exact),
        cmocka_unit_test(test_cosine_and_linear_at_known_points),
        cmocka_unit_test(test_stable_phase_then_linear_decay),
        cmocka_unit_test(test_decay_steps),
        cmocka_unit_test(test_shortened_warm_up),
        cmocka_unit_test(test_a_longer_run_keeps_its_warm_up),
        cmocka_unit_test(test_never_outside_its_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
