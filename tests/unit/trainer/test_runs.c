// What is read back of a run folder: sessions and metrics as a kill, a resume or another program leaves them,
// and series that keep spikes in bounded memory.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/expect.h"
#include "tests/support/temporary.h"
#include "trainer/runs/run_record.h"

static struct temporary temporary;

static void write_file(const char *name, const char *text) {
    char path[512];
    temporary_path(&temporary, name, path, sizeof path);
    EXPECT_OK(file_write_all(path, text, strlen(text)));
}

static void append_file(const char *name, const char *text) {
    char path[512];
    FILE *stream;
    EXPECT_OK(file_append_open(temporary_path(&temporary, name, path, sizeof path), &stream));
    fputs(text, stream);
    assert_int_equal(fclose(stream), 0);
}

static int begin_folder(void **state) {
    (void)state;
    return temporary_init(&temporary) ? 0 : -1;
}

static int end_folder(void **state) {
    (void)state;
    return temporary_free(&temporary) ? 0 : -1;
}

// ---- sessions

static void test_sessions(void **state) {
    (void)state;
    int n;
    struct session *sessions = sessions_read(temporary.folder, &n);
    assert_int_equal(n, 0);
    free(sessions);
    struct session session = {.began = 1000.5, .step = 3, .ranks = 2, .threads = 4, .parameters = 1e9};
    strcpy(session.machine, "a \"quoted\" host");
    strcpy(session.version, "1.2");
    EXPECT_OK(sessions_begin(temporary.folder, &session));
    append_file("sessions.jsonl", "{\"event\": \"end\", \"wall_time\": 1"); // killed while it wrote
    EXPECT_OK(sessions_begin(temporary.folder, &(struct session){.began = 2000, .step = 5}));
    EXPECT_OK(sessions_end(
        temporary.folder,
        &(struct session){
            .ended = 2100, .end_step = 9, .total = 20, .end = SESSION_FAILED, .message = "disk\nfull"}));
    append_file("sessions.jsonl",
                "[]\n{\"event\": 7}\n{\"event\": \"begin\", \"step\": 1e300, \"ranks\": -3}\n");
    sessions = sessions_read(temporary.folder, &n);
    assert_int_equal(n, 3);
    assert_string_equal(sessions[0].machine, session.machine);
    assert_string_equal(sessions[0].version, "1.2");
    assert_true(sessions[0].began == 1000.5 && sessions[0].step == 3 && sessions[0].ranks == 2);
    assert_int_equal(sessions[0].end, SESSION_OPEN);
    assert_int_equal(sessions[1].end, SESSION_FAILED);
    assert_string_equal(sessions[1].message, "disk\nfull");
    assert_true(sessions[1].end_step == 9 && sessions[1].total == 20 && sessions[1].ended == 2100);
    assert_true(sessions[2].step == INT64_C(1) << 53 && sessions[2].ranks == 0);
    free(sessions);
}

// ---- metrics

static void expect_line(struct metrics_reader *reader, int64_t step, double loss) {
    struct metrics_line line;
    enum metrics_event event;
    EXPECT_OK(metrics_reader_next(reader, &line, &event));
    assert_int_equal(event, METRICS_LINE);
    assert_int_equal(line.step, step);
    assert_true(line.is_step &&
                (line.values[METRIC_LOSS] == loss || (isnan(loss) && isnan(line.values[METRIC_LOSS]))));
}

static void expect_event(struct metrics_reader *reader, enum metrics_event expected) {
    struct metrics_line line;
    enum metrics_event event;
    EXPECT_OK(metrics_reader_next(reader, &line, &event));
    assert_int_equal(event, expected);
}

static void test_metrics_of_a_running_run(void **state) {
    (void)state;
    struct metrics_reader reader;
    metrics_reader_open(&reader, temporary.folder);
    expect_event(&reader, METRICS_END); // not begun
    write_file("metrics.jsonl",
               "{\"step\": 1, \"wall_time\": 5, \"loss\": 2.5}\n{\"step\": 2, \"wall_time\": 6, \"lo");
    expect_line(&reader, 1, 2.5);
    expect_event(&reader, METRICS_END);
    append_file("metrics.jsonl", "ss\": null}\n{\"step\": 3, \"loss\": 1}\n");
    expect_line(&reader, 2, NAN);
    expect_line(&reader, 3, 1);
    expect_event(&reader, METRICS_END);
    write_file("metrics.jsonl",
               "{\"step\": 1, \"wall_time\": 5, \"loss\": 2.25}\n"); // resumed: cut and replaced
    expect_event(&reader, METRICS_RESTARTED);
    expect_line(&reader, 1, 2.25);
    expect_event(&reader, METRICS_END);
    metrics_reader_close(&reader);
}

static void test_damaged_metrics(void **state) {
    (void)state;
    static const char *const lines[] = {"",
                                        "{",
                                        "}",
                                        "nonsense",
                                        "{\"step\"",
                                        "{\"step\":",
                                        "{\"step\": }",
                                        "{\"step\": 1,}",
                                        "{\"step\": 1} x",
                                        "{\"step\": -1}",
                                        "{\"step\": \"1\"}",
                                        "{\"step\": 1e99}",
                                        "{\"step\": 1 \"loss\": 2}",
                                        "{\"loss\": 1}",
                                        "{\"step\": 1, \"a\": [1, {\"b\": \"]\"}}",
                                        "{\"step\": 1, \"a\": \"\\\"}",
                                        "{\"step\": nan}",
                                        "\xff\xfe{\"step\": 1}",
                                        "[{\"step\": 1}]"};
    enum { N = sizeof lines / sizeof *lines };
    struct metrics_reader reader;
    char *longest = malloc((3 << 20) + 1);
    assert_non_null(longest);
    memset(longest, 'x', 3 << 20);
    longest[3 << 20] = '\0';
    write_file("metrics.jsonl", longest);
    free(longest);
    append_file("metrics.jsonl", "\n");
    for (int i = 0; i < N; i++) {
        append_file("metrics.jsonl", lines[i]);
        append_file("metrics.jsonl", "\n");
    }
    append_file("metrics.jsonl",
                " { \"step\" : 7 , \"x\" : {\"loss\": [3, \"}\"]} , \"wall_time\":1,\"loss\":\t0.5 } \n");
    metrics_reader_open(&reader, temporary.folder);
    expect_line(&reader, 7, 0.5);
    assert_int_equal(reader.damaged, N + 1);
    expect_event(&reader, METRICS_END);
    metrics_reader_close(&reader);
}

static void test_tail(void **state) {
    (void)state;
    struct metrics_reader reader;
    write_file(
        "metrics.jsonl",
        "{\"step\": 1, \"wall_time\": 1, \"loss\": 1}\n{\"step\": 2, \"wall_time\": 1, \"loss\": 2}\n");
    metrics_reader_open(&reader, temporary.folder);
    metrics_reader_seek_tail(&reader, 60);
    expect_line(&reader, 2, 2);
    expect_event(&reader, METRICS_END);
    assert_int_equal(reader.damaged, 0);
    metrics_reader_close(&reader);
}

// ---- series

static void test_series_keeps_spikes(void **state) {
    (void)state;
    enum { STEPS = 100000, CAPACITY = 64 };
    struct series series;
    double values[SERIES_VALUES] = {0};
    series_init(&series, CAPACITY);
    for (int64_t step = 1; step <= STEPS; step++) {
        values[0] = step == 77777 ? 1e6 : step == 12345 ? -1e6 : 3;
        values[1] = step % 2 ? NAN : 1;
        series_add(&series, step, (double)step * 10, (double)step / 3600, values);
    }
    int64_t lines = 0, finite = 0, next = 1;
    int with_high = 0, with_low = 0;
    assert_in_range(series.n, CAPACITY / 2, CAPACITY);
    for (int i = 0; i < series.n; i++) {
        const struct series_bucket *bucket = &series.buckets[i];
        assert_int_equal(bucket->first, next);
        assert_int_equal(bucket->last - bucket->first + 1, bucket->lines);
        next = bucket->last + 1;
        lines += bucket->lines;
        finite += bucket->ranges[1].count;
        assert_true(bucket->tokens == (double)bucket->last * 10);
        const bool has_high = bucket->first <= 77777 && 77777 <= bucket->last,
                   has_low = bucket->first <= 12345 && 12345 <= bucket->last;
        assert_true(bucket->ranges[0].high == (has_high ? 1e6 : 3));
        assert_true(bucket->ranges[0].low == (has_low ? -1e6 : 3));
        with_high += has_high;
        with_low += has_low;
    }
    assert_true(lines == STEPS && finite == STEPS / 2 && with_high == 1 && with_low == 1);
    series_free(&series);
}

static void test_series_of_repeated_steps(void **state) {
    (void)state;
    struct series series;
    double values[SERIES_VALUES] = {0};
    series_init(&series, 16);
    for (int64_t step = 1; step <= 10; step++)
        series_add(&series, step, 0, 0, values);
    values[0] = 5;
    for (int64_t step = 7; step <= 8; step++)
        series_add(&series, step, 0, 0, values);
    assert_int_equal(series.n, 8);
    for (int i = 0; i < series.n; i++)
        assert_true(series.buckets[i].first == i + 1 && series.buckets[i].ranges[0].sum == (i < 6 ? 0 : 5));
    series_free(&series);
}

// ---- the record

// Two sessions of 10 s and 5 s with an hour between them, and an evaluation.
static void test_hours_and_state(void **state) {
    (void)state;
    struct run_record record;
    bool changed;
    run_record_open(&record, temporary.folder, 16);
    EXPECT_OK(run_record_update(&record, NULL));
    assert_int_equal(record.state, RUN_WAITING);
    write_file("config.json", "{\"train\": {\"max_steps\": 40}}");
    EXPECT_OK(sessions_begin(temporary.folder, &(struct session){.began = 1000, .step = 0}));
    write_file("metrics.jsonl",
               "{\"step\": 1, \"wall_time\": 1010, \"loss\": 2, \"tokens\": 8, \"step_ms\": 500}\n"
               "{\"step\": 1, \"val_loss\": 3, \"final\": false}\n");
    EXPECT_OK(run_record_update(&record, &changed));
    assert_true(changed && record.state == RUN_STALE && record.total == 40);
    EXPECT_OK(run_record_update(&record, &changed));
    assert_false(changed);
    EXPECT_OK(sessions_begin(temporary.folder, &(struct session){.began = 4600, .step = 1}));
    EXPECT_OK(sessions_end(temporary.folder,
                           &(struct session){.ended = 4606, .end = SESSION_STOPPED, .end_step = 2}));
    append_file("metrics.jsonl",
                "{\"step\": 2, \"wall_time\": 4605, \"loss\": 4, \"tokens\": 16, \"step_ms\": 250}\n");
    EXPECT_OK(run_record_update(&record, &changed));
    assert_true(changed && record.state == RUN_STOPPED);
    assert_true(fabs(record.hours * 3600 - 15) < 1e-6 && record.step_s == 0.75);
    assert_true(fabs(run_record_recent_loss(&record) - 3) < 1e-12);
    assert_true(fabs(run_record_seconds_left(&record) - 38 * 5) < 1e-6);
    assert_true(record.val.best_loss == 3 && record.val.best_step == 1 && record.evals.n == 1);
    assert_true(fabs(record.evals.buckets[0].hours * 3600 - 10) < 1e-6);
    run_record_close(&record);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin_folder, end_folder)
    const struct CMUnitTest tests[] = {
        TEST(test_sessions),
        TEST(test_metrics_of_a_running_run),
        TEST(test_damaged_metrics),
        TEST(test_tail),
        TEST(test_series_keeps_spikes),
        TEST(test_series_of_repeated_steps),
        TEST(test_hours_and_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
