// metrics.jsonl: numbers read back bit for bit, and after a resume there is one line per step.
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/rng.h"
#include "tests/support/expect.h"
#include "tests/support/temporary.h"
#include "trainer/output/metrics.h"
#include "trainer/runs/sessions.h"

static struct temporary temporary;
static char path[512];

static void begin(void) {
    temporary_path(&temporary, "metrics.jsonl", path, sizeof path);
    EXPECT_OK(file_remove_tree(path));
}

// Continues a run after `done` steps, to `end` steps.
static void write_steps(int64_t done, int64_t end) {
    struct metrics metrics;
    EXPECT_OK(metrics_open(&metrics, temporary.folder, done));
    for (int64_t step = done + 1; step <= end; step++)
        EXPECT_OK(metrics_step(&metrics, &(struct step_metrics){.step = step, .loss = 0.5}));
    metrics_close(&metrics);
}

static void write_evaluation(int64_t step, int64_t done, double bits_per_byte) {
    struct metrics metrics;
    EXPECT_OK(metrics_open(&metrics, temporary.folder, done));
    EXPECT_OK(metrics_eval(&metrics, &(struct eval_metrics){.step = step,
                                                            .loss = 1.25,
                                                            .bits_per_byte = bits_per_byte,
                                                            .final = step == 4,
                                                            .sequences = 5,
                                                            .all_sequences = 20}));
    metrics_close(&metrics);
}

// The file's lines, parsed; the caller deletes the array.
static cJSON *read_lines(void) {
    char *text, *rest, *line;
    size_t bytes;
    EXPECT_OK(file_read(path, 1 << 20, &text, &bytes));
    cJSON *lines = cJSON_CreateArray();
    assert_true(bytes == 0 || text[bytes - 1] == '\n');
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        cJSON *object;
        EXPECT_OK(json_parse(line, strlen(line), path, &object));
        cJSON_AddItemToArray(lines, object);
    }
    free(text);
    return lines;
}

static double number(const cJSON *object, const char *key) {
    double value;
    EXPECT_OK(json_get_number(object, key, path, &value));
    return value;
}

// The steps of the lines in order, evaluations with a v: "1,2,2v,3".
static void assert_steps(const char *expected) {
    char got[256] = "";
    cJSON *lines = read_lines();
    const cJSON *entry;
    cJSON_ArrayForEach(entry, lines) {
        size_t length = strlen(got);
        snprintf(got + length, sizeof got - length, "%s%.0f%s", length ? "," : "", number(entry, "step"),
                 cJSON_GetObjectItemCaseSensitive(entry, "val_loss") ? "v" : "");
    }
    cJSON_Delete(lines);
    assert_string_equal(got, expected);
}

static void test_floats_read_back_to_the_bit(void **unused) {
    (void)unused;
    begin();
    enum { N = 200 };
    struct step_metrics written[N];
    struct metrics metrics;
    EXPECT_OK(metrics_open(&metrics, temporary.folder, 0));
    for (int i = 0; i < N; i++) {
        double scale = pow(10, rng_below(1, 1, (uint64_t)i, 60) - 30.0);
        written[i] = (struct step_metrics){.step = i,
                                           .total = 2 * i,
                                           .loss = scale * rng_uniform(1, 2, (uint64_t)i),
                                           .grad_norm = scale * rng_uniform(1, 3, (uint64_t)i),
                                           .lr = scale * rng_uniform(1, 4, (uint64_t)i),
                                           .tokens = (int64_t)1 << (i % 53),
                                           .tokens_per_s = 1e5 * rng_uniform(1, 5, (uint64_t)i),
                                           .step_ms = 1e3 * rng_uniform(1, 6, (uint64_t)i),
                                           .of_gemm = rng_uniform(1, 8, (uint64_t)i),
                                           .mfu = rng_uniform(1, 7, (uint64_t)i),
                                           .memory.total = (size_t)i << 31,
                                           .memory.model = (size_t)i << 28};
        EXPECT_OK(metrics_step(&metrics, &written[i]));
    }
    metrics_close(&metrics);
    cJSON *lines = read_lines();
    assert_int_equal(cJSON_GetArraySize(lines), N);
    const cJSON *entry = lines->child;
    for (int i = 0; i < N; i++, entry = entry->next) {
        assert_true(number(entry, "step") == i);
        assert_true(number(entry, "total_steps") == 2 * i);
        assert_true(number(entry, "loss") == written[i].loss);
        assert_true(number(entry, "grad_norm") == written[i].grad_norm);
        assert_true(number(entry, "lr") == written[i].lr);
        assert_true(number(entry, "tokens") == (double)written[i].tokens);
        assert_true(number(entry, "tokens_per_s") == written[i].tokens_per_s);
        assert_true(number(entry, "step_ms") == written[i].step_ms);
        assert_true(number(entry, "mfu") == written[i].mfu);
        assert_true(number(entry, "of_gemm") == written[i].of_gemm);
        assert_true(number(entry, "total_bytes") == (double)written[i].memory.total);
        assert_true(number(entry, "program_bytes") ==
                    (double)(written[i].memory.total - written[i].memory.model));
        assert_null(cJSON_GetObjectItem(entry, "model_memory"));
    }
    cJSON_Delete(lines);
}

static void continue_session(int64_t done, int64_t end, const struct step_metrics *constants) {
    struct metrics metrics;
    struct step_metrics step = *constants;
    EXPECT_OK(sessions_begin(temporary.folder, &(struct session){.step = done}));
    EXPECT_OK(metrics_open(&metrics, temporary.folder, done));
    for (step.step = done + 1; step.step <= end; step.step++)
        EXPECT_OK(metrics_step(&metrics, &step));
    metrics_close(&metrics);
}

// What does not change in a session is in sessions.jsonl, once for each session.
static void test_constants(void **unused) {
    (void)unused;
    static const char *const kinds[] = {"model_memory_planned", "model_memory"};
    struct step_metrics step = {.mfu_of_dense_peak = true,
                                .threads = 3,
                                .memory.total_planned = (size_t)7 << 40,
                                .memory.model_planned = (size_t)5 << 40,
                                .memory.model = (size_t)4 << 40,
                                .memory.device_planned = (size_t)2 << 40,
                                .memory.device = (size_t)1 << 40};
    int n;
    begin();
    for (int kind = 0; kind < N_REGION_KINDS; kind++)
        step.memory.planned[kind] = step.memory.measured[kind] =
            ((size_t)9 << 40) + (size_t)kind; // long numbers fit, too
    continue_session(0, 3, &step);
    step.threads = 4;
    continue_session(2, 3, &step);
    struct session *sessions = sessions_read(temporary.folder, &n);
    assert_int_equal(n, 2);
    for (int i = 0; i < n; i++) {
        cJSON *constants;
        EXPECT_OK(json_parse(sessions[i].constants, strlen(sessions[i].constants), "constants", &constants));
        assert_true(number(constants, "step") == (i ? 3 : 1));
        assert_true(number(constants, "threads") == 3 + i);
        assert_string_equal(cJSON_GetObjectItem(constants, "mfu_of")->valuestring, "dense peak");
        assert_true(number(constants, "total_planned_bytes") == (double)step.memory.total_planned);
        assert_true(number(constants, "model_planned_bytes") == (double)step.memory.model_planned);
        assert_true(number(constants, "program_planned_bytes") == 0x1p41); // the rest of the total
        assert_true(number(constants, "model_bytes") == (double)step.memory.model);
        assert_true(number(constants, "device_planned_bytes") == (double)step.memory.device_planned);
        assert_true(number(constants, "device_bytes") == (double)step.memory.device);
        for (int k = 0; k < 2; k++)
            for (int kind = 0; kind < N_REGION_KINDS; kind++)
                assert_true(number(cJSON_GetObjectItem(constants, kinds[k]),
                                   region_kind_name((enum region_kind)kind)) ==
                            (double)step.memory.planned[kind]);
        cJSON_Delete(constants);
    }
    free(sessions);
}

// Tasks are removed and written again like everything else; names are escaped.
static void test_tasks(void **unused) {
    (void)unused;
    begin();
    char a[] = "hellaswag", b[] = "my \"task\"";
    struct task tasks[] = {{.name = a}, {.name = b}};
    const struct task_list list = {tasks, 2};
    const struct task_result results[] = {
        {.measures = {{"acc", 0.25, 0.125, true}, {"acc_norm", 0.5, NAN, true}},
         .n_measures = 2,
         .n_items = 12},
        {.measures = {{"acc", 1, 0, true}}, .n_measures = 1, .n_items = 1}};
    for (int64_t step = 2; step <= 6; step += 2) {
        struct metrics metrics;
        EXPECT_OK(metrics_open(&metrics, temporary.folder, step == 6 ? 2 : step)); // from step 2 on again
        EXPECT_OK(metrics_tasks(&metrics, step, &list, results));
        metrics_close(&metrics);
    }
    assert_steps("2,6");
    cJSON *lines = read_lines();
    const cJSON *entry = cJSON_GetObjectItem(lines->child, "tasks");
    assert_true(number(cJSON_GetObjectItem(entry, "hellaswag"), "acc_stderr") == 0.125);
    assert_true(
        cJSON_IsNull(cJSON_GetObjectItem(cJSON_GetObjectItem(entry, "hellaswag"), "acc_norm_stderr")));
    assert_true(number(cJSON_GetObjectItem(entry, "my \"task\""), "items") == 1);
    cJSON_Delete(lines);
}

static void test_no_tokenizer_gives_null(void **unused) {
    (void)unused;
    begin();
    write_evaluation(3, 3, NAN);
    write_evaluation(4, 4, 2.5);
    cJSON *lines = read_lines();
    assert_true(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(lines->child, "val_bits_per_byte")));
    assert_true(number(lines->child->next, "val_bits_per_byte") == 2.5);
    assert_true(number(lines->child->next, "val_loss") == 1.25);
    assert_true(number(lines->child->next, "val_sequences") == 5);
    assert_true(number(lines->child->next, "val_all_sequences") == 20);
    assert_true(cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(lines->child, "final")));
    assert_true(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(lines->child->next, "final")));
    cJSON_Delete(lines);
}

// A scale of 0 is an estimate, as the log has it.
static void test_the_noise_scale_of_measured_steps(void **unused) {
    (void)unused;
    static const double scales[] = {0, NAN, 12.5};
    const cJSON *entry;
    begin();
    struct metrics metrics;
    EXPECT_OK(metrics_open(&metrics, temporary.folder, 0));
    EXPECT_OK(metrics_step(&metrics, &(struct step_metrics){.step = 0}));
    for (int i = 0; i < 3; i++)
        EXPECT_OK(metrics_step(
            &metrics,
            &(struct step_metrics){.step = i + 1, .measures_noise = true, .noise_scale = scales[i]}));
    metrics_close(&metrics);
    cJSON *lines = read_lines();
    assert_null(cJSON_GetObjectItemCaseSensitive(lines->child, "noise_scale"));
    entry = lines->child->next;
    assert_true(number(entry, "noise_scale") == 0);
    assert_true(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(entry->next, "noise_scale")));
    assert_true(number(entry->next->next, "noise_scale") == 12.5);
    cJSON_Delete(lines);
}

// Each line is flushed, so that other programs can follow a run.
static void test_every_line_is_flushed(void **unused) {
    (void)unused;
    begin();
    struct metrics metrics;
    EXPECT_OK(metrics_open(&metrics, temporary.folder, 0));
    EXPECT_OK(metrics_step(&metrics, &(struct step_metrics){.step = 0}));
    assert_steps("0");
    EXPECT_OK(metrics_step(&metrics, &(struct step_metrics){.step = 1}));
    assert_steps("0,1");
    metrics_close(&metrics);
}

// A run resumed after N steps keeps what it wrote up to them.
static void test_resuming_removes_steps_that_will_be_repeated(void **unused) {
    (void)unused;
    begin();
    write_steps(0, 3);
    write_evaluation(3, 3, 2);
    write_steps(3, 6);
    write_evaluation(6, 6, 2);
    assert_steps("1,2,3,3v,4,5,6,6v");
    write_steps(5, 7);
    assert_steps("1,2,3,3v,4,5,6,7");
    write_steps(3, 4);
    assert_steps("1,2,3,3v,4");
    write_steps(0, 1);
    assert_steps("1");
}

static void append(const char *text) {
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void test_an_incomplete_line_is_removed(void **unused) {
    (void)unused;
    begin();
    write_steps(0, 2);
    append("{\"step\": 3, \"lo");
    write_steps(2, 4);
    assert_steps("1,2,3,4");
    append("{\"step\": 4, \"lo\n");
    write_steps(4, 5);
    assert_steps("1,2,3,4,5");
}

static void test_a_missing_folder(void **unused) {
    (void)unused;
    char blocked[512];
    struct metrics metrics;
    temporary_path(&temporary, "absent", blocked, sizeof blocked);
    EXPECT_FAILURE(STATUS_FAILED, metrics_open(&metrics, blocked, 0), blocked);
    metrics_close(&metrics);
}

static void limit_file_sizes(rlim_t bytes) {
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

// A limit on file sizes is a full disk. The first line that does not fit fails and leaves no part of it; it
// is written before the next one, or at the end.
static void test_a_full_disk(void **unused) {
    (void)unused;
    struct metrics metrics;
    struct stat info;
    begin();
    signal(SIGXFSZ, SIG_IGN);
    EXPECT_OK(metrics_open(&metrics, temporary.folder, 0));
    EXPECT_OK(metrics_step(&metrics, &(struct step_metrics){.step = 1, .loss = 0.5}));
    for (int step = 2; step <= 4; step += 2) {
        assert_int_equal(stat(path, &info), 0);
        limit_file_sizes((rlim_t)info.st_size + 10);
        EXPECT_FAILURE(STATUS_FAILED,
                       metrics_step(&metrics, &(struct step_metrics){.step = step, .loss = 0.5}), path,
                       "large");
        limit_file_sizes(RLIM_INFINITY);
        assert_steps(step == 2 ? "1" : "1,2,3");
        if (step == 2)
            EXPECT_OK(metrics_step(&metrics, &(struct step_metrics){.step = 3, .loss = 0.5}));
    }
    metrics_close(&metrics);
    assert_steps("1,2,3,4");
}

static void test_missing_lines_are_counted(void **unused) {
    struct metrics metrics;
    (void)unused;
    begin();
    write_steps(0, 5);
    write_evaluation(5, 5, 1);
    EXPECT_OK(metrics_open(&metrics, temporary.folder, 5));
    assert_int_equal(metrics.n_missing, 0);
    metrics_close(&metrics);
    EXPECT_OK(metrics_open(&metrics, temporary.folder, 7)); // as if cut after step 5
    assert_int_equal(metrics.n_missing, 2);
    assert_int_equal(metrics.last_step, 5);
    metrics_close(&metrics);
    write_steps(7, 9);
    EXPECT_OK(metrics_open(&metrics, temporary.folder, 9)); // a gap within
    assert_int_equal(metrics.n_missing, 2);
    metrics_close(&metrics);
    begin();
    write_steps(6, 8); // a run from another one's checkpoint
    EXPECT_OK(metrics_open(&metrics, temporary.folder, 8));
    assert_int_equal(metrics.n_missing, 0);
    metrics_close(&metrics);
    begin();
    EXPECT_OK(metrics_open(&metrics, temporary.folder, 8));
    assert_int_equal(metrics.n_missing, 8);
    assert_int_equal(metrics.last_step, 0);
    metrics_close(&metrics);
}

static int make_folder(void **unused) {
    (void)unused;
    return temporary_init(&temporary) ? 0 : -1;
}

static int remove_folder(void **unused) {
    (void)unused;
    return temporary_free(&temporary) ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_floats_read_back_to_the_bit),
        cmocka_unit_test(test_constants),
        cmocka_unit_test(test_tasks),
        cmocka_unit_test(test_no_tokenizer_gives_null),
        cmocka_unit_test(test_the_noise_scale_of_measured_steps),
        cmocka_unit_test(test_every_line_is_flushed),
        cmocka_unit_test(test_resuming_removes_steps_that_will_be_repeated),
        cmocka_unit_test(test_an_incomplete_line_is_removed),
        cmocka_unit_test(test_a_missing_folder),
        cmocka_unit_test(test_a_full_disk),
        cmocka_unit_test(test_missing_lines_are_counted),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
