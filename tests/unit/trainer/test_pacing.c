// train.max_minutes: when the length of a run is decided, how long it becomes, and the learning rate that
// follows.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/expect.h"
#include "trainer/pacing.h"
#include "trainer/schedule.h"

#define PEAK   0.01
#define WARMUP 10

static void configure(struct config *config, const char *train, const char *scheduler) {
    char text[400];
    snprintf(
        text, sizeof text,
        "{\"train\": {\"max_minutes\": 1, \"max_steps\": 10000, \"train_batch_size\": 4, %s}, "
        "\"scheduler\": {\"warmup_steps\": 10, \"min_lr_ratio\": 0.1, %s}, \"checkpoint\": {\"every\": 0}}",
        train, scheduler);
    EXPECT_OK(config_parse(config, text, strlen(text), "test"));
    config->optimizer.lr = PEAK;
}

static bool is_due(const struct pacing_decision *last, const struct config *config, int64_t step,
                   double spent_s, double step_s) {
    return pacing_is_due(last, config, step, &(struct pacing_report){.spent_s = spent_s, .step_s = step_s});
}

static void test_when(void **unused) {
    (void)unused;
    struct config config;
    struct pacing_decision last = {.total = 10000};
    configure(&config, "\"eval_every\": 0", "\"type\": \"cosine\"");
    assert_false(is_due(&last, &config, 3, 5, 0)); // no step is measured yet
    assert_true(is_due(&last, &config, 3, 61, 0)); // a single slow one
    assert_false(is_due(&last, &config, 3, 1.1, 0.1));
    assert_true(is_due(&last, &config, 3, 1.2, 0.1)); // 2 % of the time
    last = (struct pacing_decision){.step = 12, .total = 612, .spent_s = 1.2};
    assert_false(is_due(&last, &config, 120, 11.9, 0.1));
    assert_true(is_due(&last, &config, 120, 12, 0.1)); // 20 %
    last = (struct pacing_decision){.step = 120, .total = 600, .spent_s = 12};
    assert_false(is_due(&last, &config, 130, 35.9, 0.1));
    assert_true(is_due(&last, &config, 130, 36, 0.1)); // half of the time that was left
    assert_false(is_due(&last, &config, 359, 13, 0.1));
    assert_true(
        is_due(&last, &config, 360, 13, 0.1)); // half of the steps, though little of the time is spent
    // Resumed: no step is measured yet.
    assert_false(is_due(&last, &config, 360, 36, 0));
    assert_true(is_due(&last, &config, 360, 60, 0));
    // The last few steps are made as they were to be, unless the time is over.
    last.total = 127;
    assert_false(is_due(&last, &config, 124, 59.9, 0.1));
    assert_true(is_due(&last, &config, 124, 60, 0.1));
    config_free(&config);
}

// A process per core begins half-way: each step takes longer from then on. At whatever factor, the run ends
// within 10 % of its time, and the rate at its least.
static void test_a_machine_that_becomes_slower(void **unused) {
    (void)unused;
    static const double factors[] = {0.5, 1, 2, 3, 5};
    static const double lengths[] = {0.001, 0.03, 0.3};
    for (int i = 0; i < 15; i++) {
        struct config config;
        struct pacing_decision last = {.total = 1000000};
        configure(&config, "\"eval_every\": 0", "\"type\": \"warmup-stable-decay\", \"decay_ratio\": 0.6");
        config.train.max_steps = 1000000;
        const struct batch_sizes sizes = batch_sizes_of(&config);
        int64_t step = 0, since = 0;
        int n = 0;
        double spent = 0, sum = 0;
        while (step < last.total) {
            const double seconds = lengths[i % 3] * (spent > 30 ? factors[i / 3] : 1);
            spent += seconds, sum += seconds, since++, step++;
            const struct pacing_report report = {.spent_s = spent,
                                                 .step_s = since > 0 ? sum / (double)since : 0};
            if (!pacing_is_due(&last, &config, step, &report))
                continue;
            last = (struct pacing_decision){
                .step = step,
                .total = pacing_total(&config, &sizes, &(struct pacing_evaluations){0}, step, &report),
                .position = schedule_position(WARMUP, &last, step - 1),
                .spent_s = spent};
            sum = 0, since = 0, n++;
        }
        assert_true(fabs(spent / 60 - 1) < 0.1);
        assert_in_range(n, 4, 18); // about one for each doubling of the steps
        assert_true(schedule_lr_paced(&config, WARMUP, &last, step - 1) < 0.11 * PEAK);
        config_free(&config);
    }
}

static void test_how_long(void **unused) {
    (void)unused;
    struct config config;
    const struct pacing_evaluations none = {0}, some = {8, 100, 0};
    configure(&config, "\"eval_every\": 0", "\"type\": \"cosine\"");
    const struct batch_sizes sizes = batch_sizes_of(&config);
    // 60 s, of which 12 are spent: 480 steps of 0.1 s are left.
    assert_int_equal(
        pacing_total(&config, &sizes, &none, 100, &(struct pacing_report){.spent_s = 12, .step_s = 0.1}),
        580);
    // The last checkpoint takes 3 of them.
    assert_int_equal(pacing_total(&config, &sizes, &none, 100,
                                  &(struct pacing_report){.spent_s = 12, .step_s = 0.1, .save_s = 3}),
                     550);
    // train.max_steps limits it, and the steps done are the least.
    assert_int_equal(
        pacing_total(&config, &sizes, &none, 0, &(struct pacing_report){.spent_s = 1, .step_s = 1e-6}),
        10000);
    assert_int_equal(
        pacing_total(&config, &sizes, &none, 100, &(struct pacing_report){.spent_s = 61, .step_s = 0.1}),
        100);
    // Evaluations of 8 sequences of 0.05 s, every 4 steps and at the end, and of 100 at the end: 42.6 s are
    // left for steps of 0.2 s.
    config.train.eval_every = 4;
    const struct pacing_report measured = {.spent_s = 12, .step_s = 0.1, .eval_sequence_s = 0.05};
    assert_int_equal(pacing_total(&config, &sizes, &some, 100, &measured), 313);
    // Not measured yet: a sequence takes a third of its part of a step of 0.6 s.
    assert_int_equal(
        pacing_total(&config, &sizes, &some, 100, &(struct pacing_report){.spent_s = 12, .step_s = 0.6}),
        160);
    // Tasks, every 4 steps and at the end: 4 sequences of 0.05 s, then as measured.
    config.train.eval_every = 0;
    config.eval.every = 4;
    const struct pacing_evaluations tasks = {.task_sequences = 4};
    assert_int_equal(pacing_total(&config, &sizes, &tasks, 100, &measured),
                     100 + 318); // 47.8 s, of 0.15 s each
    const struct pacing_report timed = {.spent_s = 12, .step_s = 0.1, .tasks_s = 3};
    assert_int_equal(pacing_total(&config, &sizes, &tasks, 100, &timed), 100 + 52); // 45 s, of 0.85 s each
    config_free(&config);
}

// However often and at whatever speed the length is decided, the rate has no jumps, and ends where it should.
static void test_the_rate_is_continuous(void **unused) {
    (void)unused;
    static const char *const types[] = {"\"type\": \"cosine\"", "\"type\": \"linear\"",
                                        "\"type\": \"warmup-stable-decay\""};
    static const int64_t steps[] = {2, 40, 60, 300}, totals[] = {200, 100, 1000, 320};
    for (int type = 0; type < 3; type++) {
        struct config config;
        struct pacing_decision decision = {.total = 10000};
        configure(&config, "\"eval_every\": 0", types[type]);
        double last = 0;
        int n = 0;
        for (int64_t step = 0; step < totals[3]; step++) {
            if (n < 4 && step == steps[n]) {
                const double position = schedule_position(WARMUP, &decision, step - 1);
                decision = (struct pacing_decision){step, totals[n], position, 0};
                assert_true(fabs(schedule_position(WARMUP, &decision, step - 1) - position) < 1e-12);
                n++;
            }
            const double rate = schedule_lr_paced(&config, WARMUP, &decision, step);
            if (step < 10)
                assert_true(fabs(rate - PEAK * (double)(step + 1) / 10) < 1e-15);
            else // no more than twice the largest slope of the fastest part: 240 steps in 20
                assert_true(rate <= last + 1e-15 && last - rate < PEAK * 0.1);
            last = rate;
        }
        assert_true(fabs(last - 0.1 * PEAK) < 1e-12);
        config_free(&config);
    }
}

// A run that seems shorter than its warm-up shortens it; when it turns out to be longer, the rate does not go
// back.
static void test_a_warm_up_that_was_shortened(void **unused) {
    (void)unused;
    struct config config;
    configure(&config, "\"eval_every\": 0", "\"type\": \"linear\"");
    const struct pacing_decision none = {.total = 10000}, shorter = {.step = 3, .total = 8};
    assert_true(schedule_lr_paced(&config, WARMUP, &none, 2) == PEAK * 3 / 10);
    const int64_t warmup = schedule_warmup_of(WARMUP, shorter.total);
    assert_true(schedule_lr_paced(&config, warmup, &shorter, 3) > 0.7 * PEAK);
    const struct pacing_decision longer = {
        .step = 5, .total = 100, .position = schedule_position(warmup, &shorter, 4)};
    assert_int_equal(schedule_warmup_of(warmup, longer.total), warmup);
    const double before = schedule_lr_paced(&config, warmup, &shorter, 4),
                 after = schedule_lr_paced(&config, warmup, &longer, 5);
    assert_true(after < before && after > before - 0.02 * PEAK);
    config_free(&config);
}

// The length is decided twice while the rate warms up: the second decision, on more steps, does not take the
// rate back.
static void test_a_warm_up_under_way(void **unused) {
    (void)unused;
    struct config config;
    configure(&config, "\"eval_every\": 0", "\"type\": \"constant\"");
    const struct pacing_decision first = {.step = 1, .total = 60}, second = {.step = 4, .total = 5000};
    const int64_t warmup = schedule_warmup_of(100, first.total);
    assert_int_equal(warmup, 6);
    const double before = schedule_lr_paced(&config, warmup, &first, 3);
    assert_true(schedule_lr_paced(&config, schedule_warmup_of(warmup, second.total), &second, 4) > before);
    config_free(&config);
}

// A length that stands gives the rates of a run with that max_steps.
static void test_a_length_that_stands(void **unused) {
    (void)unused;
    struct config config;
    configure(&config, "\"eval_every\": 0", "\"type\": \"cosine\"");
    config.train.max_steps = 123;
    const struct pacing_decision decision = {.step = 2, .total = 123};
    for (int64_t step = 0; step < 123; step++)
        assert_true(fabs(schedule_lr_paced(&config, WARMUP, &decision, step) -
                         schedule_lr(&config, WARMUP, step)) < 1e-15);
    config_free(&config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_when),
        cmocka_unit_test(test_a_machine_that_becomes_slower),
        cmocka_unit_test(test_how_long),
        cmocka_unit_test(test_the_rate_is_continuous),
        cmocka_unit_test(test_a_warm_up_that_was_shortened),
        cmocka_unit_test(test_a_warm_up_under_way),
        cmocka_unit_test(test_a_length_that_stands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
