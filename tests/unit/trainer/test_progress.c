// The progress line at every width, the micro-batches of a long step, and the answers to signals.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/expect.h"
#include "trainer/output/progress.h"

static struct config config;
static struct progress progress;

static void begin(const char *json) {
    EXPECT_OK(config_parse(&config, json, strlen(json), "test"));
    EXPECT_OK(config_resolve(&config, 1));
    progress_init(&progress, &config, 1);
}

static void end(void) {
    progress_free(&progress);
    config_free(&config);
}

static void assert_line(double now_s, size_t columns, const char *expected) {
    struct log_field fields[PROGRESS_FIELDS];
    char line[512];
    progress_fields(&progress, now_s, fields);
    assert_string_equal(log_join_fields(fields, PROGRESS_FIELDS, columns, line, sizeof line), expected);
}

static const struct step_metrics usual = {.step = 4700,
                                          .total = 9400,
                                          .loss = 3.18631,
                                          .grad_norm = 1.4451,
                                          .lr = 3e-4,
                                          .tokens_per_s = 20012,
                                          .step_ms = 26,
                                          .mfu = 0.74,
                                          .of_gemm = 0.74,
                                          .memory.total = 86822092};

static void test_whole_fields_go_by_rank_of_use(void **unused) {
    (void)unused;
    begin("{\"train\": {\"max_steps\": 9400}}");
    progress_start(&progress, 4699, 9400, 0.026, false);
    progress_step_begin(&progress, 10);
    progress_step(&progress, &usual, 10.026);
    assert_line(10.026, 120,
                "step 4700/9400  loss 3.1863  norm 1.445  lr 3.00e-04  20.0K tok/s  26 ms  74% of GEMM  "
                "total 82.8 MiB  "
                "2:02 left");
    assert_line(10.026, 80,
                "step 4700/9400  loss 3.1863  20.0K tok/s  74% of GEMM  total 82.8 MiB  2:02 left");
    assert_line(10.026, 79, "step 4700/9400  loss 3.1863  20.0K tok/s  total 82.8 MiB  2:02 left");
    assert_line(10.026, 59, "step 4700/9400  loss 3.1863  20.0K tok/s  2:02 left");
    assert_line(10.026, 49, "step 4700/9400  loss 3.1863  20.0K tok/s");
    assert_line(10.026, 30, "step 4700/9400  loss 3.1863");
    assert_line(10.026, 20, "step 4700/9400");
    end();
}

// Where a GPU's dense peak is known, the utilization is of it.
static void test_utilization_of_the_dense_peak(void **unused) {
    (void)unused;
    struct step_metrics on_gpu = usual;
    on_gpu.mfu = 0.36;
    on_gpu.mfu_of_dense_peak = true;
    begin("{\"train\": {\"max_steps\": 9400}}");
    progress_start(&progress, 4699, 9400, 0.026, false);
    progress_step_begin(&progress, 10);
    progress_step(&progress, &on_gpu, 10.026);
    assert_line(10.026, 140,
                "step 4700/9400  loss 3.1863  norm 1.445  lr 3.00e-04  20.0K tok/s  26 ms  36% MFU, 74% of "
                "GEMM  total 82.8 MiB  "
                "2:02 left");
    end();
}

// The widest line that a run of the size of GPT-3 has, on 60 columns.
static void test_large_figures_keep_the_four_fields(void **unused) {
    (void)unused;
    begin("{\"train\": {\"max_steps\": 600000}}");
    struct step_metrics large = usual;
    large.step = 99999;
    large.total = 600000;
    large.loss = 10.93121;
    large.tokens_per_s = 1.234e6;
    large.step_ms = 60000;
    progress_start(&progress, 99998, 600000, 60, false);
    progress_step_begin(&progress, 0);
    progress_step(&progress, &large, 60);
    assert_line(60, 59, "step 99999/600000  loss 10.9312  1.23M tok/s  347d 05h left");
    end();
}

static void test_a_long_step_shows_its_micro_batches(void **unused) {
    (void)unused;
    begin("{\"train\": {\"max_steps\": 10, \"micro_batch_size\": 4, \"train_batch_size\": 512}}");
    progress_start(&progress, 0, 10, 1300, false);
    progress_step_begin(&progress, 100);
    assert_line(100, 100, "step 0/10  micro-batch 1/128  0 s of about 21:40  3:36:40 left");
    progress_micro_batch(&progress, 2, 120); // 10 s each
    assert_line(120, 100, "step 0/10  micro-batch 3/128  20 s of about 21:20  3:33:00 left");
    assert_line(120, 50, "step 0/10  micro-batch 3/128  3:33:00 left");
    struct step_metrics first = usual;
    first.step = 1;
    first.total = 10;
    first.step_ms = 1280e3;
    progress_step(&progress, &first, 1380);
    progress_step_begin(&progress, 1380);
    progress_micro_batch(&progress, 64, 2020);
    assert_line(2020, 200,
                "step 1/10  micro-batch 65/128  loss 3.1863  norm 1.445  lr 3.00e-04  20.0K tok/s  "
                "10:40 of about 21:20  74% of GEMM  total 82.8 MiB  3:01:20 left");
    assert_line(2020, 65, "step 1/10  loss 3.1863  20.0K tok/s  total 82.8 MiB  3:01:20 left");
    assert_line(2020, 59, "step 1/10  loss 3.1863  20.0K tok/s  3:01:20 left");
    end();
}

static void assert_stop(double now_s, const char *expected) {
    char line[256];
    progress_describe_stop(&progress, SIGTERM, now_s, line, sizeof line);
    assert_string_equal(line, expected);
}

static void test_the_first_signal_is_answered(void **unused) {
    (void)unused;
    begin("{\"train\": {\"max_steps\": 10}}");
    assert_stop(0, "stopping before the first step; a second signal stops at once");
    progress_start(&progress, 0, 10, 30, false);
    progress_step_begin(&progress, 100);
    assert_stop(110, "finishing this step (about 20 s); a second signal stops at once");
    assert_stop(500, "finishing this step (about 1 s); a second signal stops at once");
    struct step_metrics first = usual;
    first.step = 1;
    first.total = 10;
    progress_step(&progress, &first, 500);
    assert_stop(501, "finishing the current work; a second signal stops at once");
    progress_between(&progress, "evaluation", 501);
    assert_stop(502, "finishing evaluation; a second signal stops at once");
    progress.world = 2; // SIGTERM may be from mpirun
    assert_stop(
        502,
        "finishing evaluation; a second signal stops at once. After Ctrl-C, mpirun kills the ranks within a "
        "second or so; to give them more time, send SIGUSR1 to mpirun instead");
    end();
}

// What is printed to standard error by `act`.
static void capture(void (*act)(void), char *out, size_t size) {
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stderr);
    int before = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    act();
    dup2(before, STDERR_FILENO);
    close(before);
    rewind(file);
    out[fread(out, 1, size - 1, file)] = '\0';
    fclose(file);
}

static void run_slowly(void) {
    progress_start(&progress, 2, 10, 1300, false);
    progress_step_begin(&progress, 0);
    for (int k = 1; k < 128; k++)
        progress_micro_batch(&progress, k, 10 * k);
    struct step_metrics step = usual;
    step.step = 3;
    step.total = 10;
    progress_step(&progress, &step, 1280);
}

static void run_quickly(void) {
    progress_start(&progress, 2, 10, 0.1, false);
    progress_step_begin(&progress, 0);
    for (int k = 1; k < 128; k++)
        progress_micro_batch(&progress, k, 0.001 * k);
}

static void tick_slowly(void) {
    progress_start(&progress, 0, 10, 0.5, false);
    progress_step_begin(&progress, 0);
    for (int s = 1; s < 130; s++)
        progress_tick(&progress, s);
    struct step_metrics step = usual;
    step.step = 3;
    step.total = 10;
    progress_step(&progress, &step, 130);
    for (int s = 131; s < 200; s++)
        progress_tick(&progress, s);
    progress_between(&progress, "evaluation", 200);
    for (int s = 201; s < 270; s++)
        progress_tick(&progress, s);
    progress_between(&progress, NULL, 270);
    progress_tick(&progress, 400);
}

// One micro-batch, or an evaluation, that takes minutes.
static void test_ticks(void **unused) {
    (void)unused;
    char out[8192];
    begin("{\"train\": {\"max_steps\": 10}, \"run\": {\"log_every\": 2}}");
    capture(tick_slowly, out, sizeof out);
    assert_string_equal(out,
                        "step 0/10  micro-batch 1/1  60 s  9:00 left\n"
                        "step 0/10  micro-batch 1/1  2:00  18:00 left\n"
                        "step 3/10  evaluation  loss 3.1863  norm 1.445  lr 3.00e-04  20.0K tok/s  60 s  "
                        "74% of GEMM  total 82.8 MiB  0:00 left\n");
    end();
}

static void test_lines_without_a_terminal(void **unused) {
    (void)unused;
    char out[8192];
    begin("{\"train\": {\"max_steps\": 10, \"micro_batch_size\": 4, \"train_batch_size\": 512}, \"run\": "
          "{\"log_every\": 2}}");
    capture(run_slowly, out, sizeof out);
    assert_non_null(
        strstr(out, "each step takes about 21:40 (estimated from the GEMM rate), 8 steps about 2:53:20\n"
                    "step 2/10  micro-batch 1/128  0 s of about 21:40  2:53:20 left\n"
                    "step 2/10  micro-batch 7/128  60 s of about 21:20  2:49:40 left\n"));
    int lines = 0;
    for (const char *at = out; (at = strchr(at, '\n')); at++)
        lines++;
    assert_int_equal(lines, 2 + 1270 / 60); // step 3 is no multiple of log_every
    end();
    begin("{\"train\": {\"max_steps\": 10, \"micro_batch_size\": 4, \"train_batch_size\": 512}}");
    capture(run_quickly, out, sizeof out);
    assert_string_equal(out, "");
    end();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_fields_go_by_rank_of_use),
        cmocka_unit_test(test_large_figures_keep_the_four_fields),
        cmocka_unit_test(test_utilization_of_the_dense_peak),
        cmocka_unit_test(test_a_long_step_shows_its_micro_batches),
        cmocka_unit_test(test_the_first_signal_is_answered),
        cmocka_unit_test(test_lines_without_a_terminal),
        cmocka_unit_test(test_ticks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
