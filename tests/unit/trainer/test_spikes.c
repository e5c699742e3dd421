// Limits of the loss and the norm, what enters their window, and the record in a checkpoint's manifest.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "tests/support/expect.h"
#include "trainer/spikes.h"

static struct config config;

static int set_up(void **state) {
    (void)state;
    const char *text = "{}";
    EXPECT_OK(config_parse(&config, text, strlen(text), "test"));
    config.train.spike_window = 21;
    config.train.spike_threshold = 4;
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    config_free(&config);
    return 0;
}

// Steps with losses 1, 2, ..., n and norms 100.
static void add_steps(struct spike_record *record, int n) {
    for (int i = 1; i <= n; i++)
        spikes_add(&config, record, &(struct spike_figures){i, 100});
}

static void test_limits_are_of_the_median_and_its_deviations(void **state) {
    (void)state;
    struct spike_record record = {0};
    add_steps(&record, SPIKE_FEWEST);
    assert_true(spikes_limits(&config, &record, false).loss == 0); // the last step is not in the window yet
    assert_true(spikes_limits(&config, &record, true).loss > 0);
    assert_int_equal(spikes_limits(&config, &record, true).n_steps, SPIKE_FEWEST);
    add_steps(&record, 21 - SPIKE_FEWEST + 1);
    memset(&record, 0, sizeof record);
    add_steps(&record, 30);
    // Losses 9 to 29: the median is 19, the deviations 0, 1, 1, ..., 10, 10, and theirs 5. Norms do not vary.
    const struct spike_limits limits = spikes_limits(&config, &record, false);
    assert_true(limits.median_loss == 19 && limits.median_norm == 100);
    assert_int_equal(limits.n_steps, 21);
    assert_true(fabs(limits.loss - (19 + 4 * 1.4826 * 5)) < 1e-12);
    assert_true(fabs(limits.norm - (100 + 4 * SPIKE_FLOOR_NORM * 100)) < 1e-12);
    assert_true(spikes_limits(&config, &record, true).median_loss == 20); // 10 to 30
}

static void test_a_host_that_is_ahead_has_the_same_limits(void **state) {
    (void)state;
    struct spike_record record = {0};
    double loss = 3;
    for (int step = 0; step < 60; step++) {
        const struct spike_limits ahead = spikes_limits(&config, &record, true);
        const struct spike_figures figures = {loss = loss * 0.97 + 0.1 * (step % 5), 1 + step % 3};
        const bool is_skipped = step % 11 == 3;
        spikes_add(&config, &record, is_skipped ? NULL : &figures);
        const struct spike_limits then = spikes_limits(&config, &record, false);
        assert_true(ahead.loss == then.loss && ahead.norm == then.norm);
    }
    assert_int_equal(record.n, 21);
}

static void test_off_has_neither_limits_nor_window(void **state) {
    (void)state;
    struct spike_record record = {0};
    add_steps(&record, 40);
    config.train.spike_threshold = 0;
    assert_true(spikes_limits(&config, &record, false).loss == 0);
    config.train.spike_threshold = 4;
    config.train.on_spike = CONFIG_ON_SPIKE_OFF;
    assert_true(spikes_limits(&config, &record, false).loss == 0);
    struct spike_record empty = {0};
    add_steps(&empty, 40);
    assert_int_equal(empty.n, 0);
}

static void test_a_record_is_read_as_written(void **state) {
    (void)state;
    static struct run_state written, read;
    struct spike_record *record = &written.spikes;
    struct text text = {0};
    cJSON *root;
    run_state_print(&written, &text);
    assert_null(text.data); // nothing to record
    add_steps(record, 30);
    record->seen = 5, record->skipped = 3, record->consecutive = 2;
    record->newest.loss = 0.1;
    text_add(&text, "{");
    run_state_print(&written, &text);
    text_add(&text, "\"step\": 9}");
    EXPECT_OK(json_parse(text.data, text.length, "test", &root));
    EXPECT_OK(run_state_parse(&read, root, 9, "test"));
    assert_memory_equal(&read.spikes, record, sizeof *record);
    EXPECT_FAILURE(STATUS_INVALID, run_state_parse(&read, root, 2, "test"), "skipped");
    cJSON_Delete(root);
    text_free(&text);
}

static void test_a_forged_record_is_refused(void **state) {
    (void)state;
    static const char *const windows[] = {"[[1]]", "[[1, null]]", "[[1, 1e999]]",
                                          "[3]",   "{}",          "[[1, \"2\"]]"};
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        static struct run_state record;
        struct text text = {0};
        cJSON *root;
        record = (struct run_state){0};
        text_add(&text, "{\"spikes\": {\"seen\": 0, \"skipped\": 0, \"consecutive\": 0, \"window\": %s}}",
                 windows[i]);
        EXPECT_OK(json_parse(text.data, text.length, "test", &root));
        EXPECT_FAILURE(STATUS_INVALID, run_state_parse(&record, root, 9, "test"), "test");
        cJSON_Delete(root);
        text_free(&text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_limits_are_of_the_median_and_its_deviations, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_host_that_is_ahead_has_the_same_limits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_off_has_neither_limits_nor_window, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_record_is_read_as_written, set_up, tear_down),
        cmocka_unit_test(test_a_forged_record_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
