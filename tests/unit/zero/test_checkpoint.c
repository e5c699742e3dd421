// Checkpoints: reading returns what was written; all damage is found; no good checkpoint is lost.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/expect.h"
#include "tests/support/small_run.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/comm/rank_state.h"

static struct temporary temporary;
static char folder[512];
static struct config config;
static struct params params;
static struct comm *comm;
static struct partition partition;

// Element values that depend on their position: no two spans are alike.
static float value_of(enum checkpoint_kind kind, int unit, size_t element) {
    return (float)((double)kind * 1e6 + unit * 1e5 + (double)element);
}

static enum status read_values(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                               float *out) {
    (void)context;
    for (size_t i = begin; i < end; i++)
        out[i - begin] = value_of(kind, unit, i);
    return STATUS_OK;
}

static enum status read_fails(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                              float *out) {
    (void)context, (void)kind, (void)begin, (void)end, (void)out;
    return unit == 1 ? FAIL(STATUS_FAILED, "the device is gone") : STATUS_OK;
}

static struct checkpoint_contents contents_of(int64_t step, struct checkpoint_kinds kinds,
                                              struct checkpoint_source source) {
    return (struct checkpoint_contents){.comm = comm,
                                        .partition = &partition,
                                        .step = step,
                                        .tokens = step * 64,
                                        .config = &config,
                                        .params = &params,
                                        .compute = DTYPE_BF16,
                                        .device = "avx2",
                                        .kinds = kinds,
                                        .source = source};
}

static enum status write_step(int64_t step) {
    const struct checkpoint_contents contents =
        contents_of(step, (struct checkpoint_kinds){.n = 3}, (struct checkpoint_source){.read = read_values});
    return checkpoint_write(folder, &contents);
}

static const char *file_of(int64_t step, const char *name, char *buffer, size_t size) {
    snprintf(buffer, size, "%s/step-%08lld/%s", folder, (long long)step, name);
    return buffer;
}

static enum status open_step(int64_t step) {
    struct checkpoint *checkpoint;
    char path[600];
    enum status status = checkpoint_open(NULL, file_of(step, "", path, sizeof path), &checkpoint);
    checkpoint_close(checkpoint);
    return status;
}

// The step of the newest good checkpoint; -1 for none.
static int64_t newest(void) {
    struct checkpoint *checkpoint;
    EXPECT_OK(checkpoint_open_newest(NULL, folder, &checkpoint));
    int64_t step = checkpoint ? checkpoint->step : -1;
    checkpoint_close(checkpoint);
    return step;
}

static int set_up(void **state) {
    (void)state;
    temporary_path(&temporary, "checkpoints", folder, sizeof folder);
    return file_remove_tree(folder) == STATUS_OK ? 0 : -1;
}

static void test_reading_returns_what_was_written(void **state) {
    (void)state;
    struct checkpoint *checkpoint;
    EXPECT_OK(write_step(7));
    EXPECT_OK(checkpoint_open_newest(NULL, folder, &checkpoint));
    assert_int_equal(checkpoint->step, 7);
    assert_int_equal(checkpoint->tokens, 448);
    assert_int_equal(checkpoint->compute, DTYPE_BF16);
    assert_int_equal(checkpoint->kinds.n, 3);
    EXPECT_OK(checkpoint_check_model(checkpoint, &params));
    for (int kind = 0; kind < 3; kind++)
        for (int unit = 0; unit < params.n_units; unit++) {
            size_t n = params.units[unit].elements, begin = n / 3;
            float *values = malloc(n * sizeof *values);
            assert_non_null(values);
            EXPECT_OK(checkpoint_read_span(checkpoint, (enum checkpoint_kind)kind, unit, begin, n, values));
            for (size_t i = begin; i < n; i++)
                assert_true(values[i - begin] == value_of((enum checkpoint_kind)kind, unit, i));
            EXPECT_FAILURE(
                STATUS_FAILED,
                checkpoint_read_span(checkpoint, (enum checkpoint_kind)kind, unit, n - 1, n + 1, values),
                "unit");
            free(values);
        }
    checkpoint_close(checkpoint);
}

// Tensors with fewer moments than others (0, 1 and 2 in turn): those they lack are not asked for, take no
// bytes and read as zeros.
static enum status read_existing(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                                 float *out) {
    const unsigned char *n_moments = context;
    const struct param_unit *u = &params.units[unit];
    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        const struct param *param = &params.params[i];
        if (begin < param->offset + param->elements && end > param->offset)
            assert_true((int)kind <= n_moments[i]);
    }
    return read_values(NULL, kind, unit, begin, end, out);
}

static void test_moments_that_do_not_exist(void **state) {
    (void)state;
    unsigned char n_moments[64];
    struct checkpoint *checkpoint;
    assert_true(params.n_params <= 64);
    for (int i = 0; i < params.n_params; i++)
        n_moments[i] = (unsigned char)(i % 3);
    const struct checkpoint_contents contents =
        contents_of(7, (struct checkpoint_kinds){.n = 3, .n_moments = n_moments},
                    (struct checkpoint_source){.context = n_moments, .read = read_existing});
    EXPECT_OK(checkpoint_write(folder, &contents));
    EXPECT_OK(checkpoint_open_newest(NULL, folder, &checkpoint));
    float *values = malloc(params.n_elements * sizeof *values);
    assert_non_null(values);
    for (int kind = 0; kind < 3; kind++)
        for (int unit = 0; unit < params.n_units; unit++) {
            const struct param_unit *u = &params.units[unit];
            EXPECT_OK(
                checkpoint_read_span(checkpoint, (enum checkpoint_kind)kind, unit, 0, u->elements, values));
            for (int i = u->first_param; i < u->first_param + u->n_params; i++)
                for (size_t k = params.params[i].offset;
                     k < params.params[i].offset + params.params[i].elements; k++)
                    assert_true(values[k] ==
                                (kind <= n_moments[i] ? value_of((enum checkpoint_kind)kind, unit, k) : 0));
        }
    free(values);
    checkpoint_close(checkpoint);
}

// Damages a file with `change`, expects opening to fail and to name the file, and restores it.
static void expect_found(const char *name, void (*change)(char *data, size_t *bytes, size_t at), size_t at) {
    char path[600], *data, *good;
    size_t bytes, length;
    EXPECT_OK(file_read(file_of(7, name, path, sizeof path), 1 << 24, &data, &bytes));
    EXPECT_OK(file_read(path, 1 << 24, &good, &length));
    change(data, &bytes, at);
    EXPECT_OK(file_write_all(path, data, bytes));
    EXPECT_FAILURE(STATUS_INVALID, open_step(7), name);
    EXPECT_OK(file_write_all(path, good, length));
    free(data);
    free(good);
}

static void flip(char *data, size_t *bytes, size_t at) {
    data[at % *bytes] ^= (char)(1 << at % 8);
}

static void truncate_at(char *data, size_t *bytes, size_t at) {
    (void)data;
    *bytes = at % *bytes;
}

static void lengthen(char *data, size_t *bytes, size_t at) {
    data[*bytes] = (char)at; // file_read allocates a byte beyond the content
    ++*bytes;
}

static void test_all_damage_is_found(void **state) {
    static const char *const names[] = {"manifest.json", "rank-00000.bin"};
    (void)state;
    EXPECT_OK(write_step(7));
    for (int i = 0; i < 2; i++) {
        for (size_t at = 0; at < 400; at++) {
            expect_found(names[i], flip, at * 1009);
            if (at % 8 == 0)
                expect_found(names[i], truncate_at, at * 1013);
        }
        expect_found(names[i], lengthen, ' ');
        char path[600];
        assert_int_equal(remove(file_of(7, names[i], path, sizeof path)), 0);
        EXPECT_FAILURE(STATUS_INVALID, open_step(7), names[i]);
        EXPECT_OK(write_step(7));
    }
    EXPECT_OK(open_step(7));
}

static void test_a_damaged_checkpoint_is_skipped(void **state) {
    char path[600];
    (void)state;
    assert_int_equal(newest(), -1);
    EXPECT_OK(write_step(1));
    EXPECT_OK(write_step(2));
    EXPECT_OK(write_step(3));
    EXPECT_OK(file_write_all(file_of(3, "rank-00000.bin", path, sizeof path), "", 0));
    assert_int_equal(newest(), 2);
    EXPECT_OK(file_write_all(file_of(2, "manifest.json", path, sizeof path), "{}", 2));
    assert_int_equal(newest(), 1);
    EXPECT_OK(file_write_all(file_of(1, "manifest.json", path, sizeof path), "", 0));
    struct checkpoint *checkpoint;
    EXPECT_FAILURE(STATUS_INVALID, checkpoint_open_newest(NULL, folder, &checkpoint), "all damaged");
}

// A checkpoint that cannot be read is not damaged: resuming from an earlier one would set good weights aside.
static void test_an_unreadable_checkpoint_is_an_error(void **state) {
    static const char *const names[] = {"rank-00000.bin", "manifest.json"};
    char path[600], other[700];
    struct checkpoint *checkpoint;
    (void)state;
    EXPECT_OK(write_step(1));
    EXPECT_OK(write_step(2));
    for (int i = 0; i < 2; i++) {
        file_of(2, names[i], path, sizeof path);
        snprintf(other, sizeof other, "%s.good", path);
        EXPECT_OK(file_rename(path, other));
        assert_int_equal(symlink(path, path), 0); // ELOOP, an error even for root
        EXPECT_FAILURE(STATUS_FAILED, checkpoint_open_newest(NULL, folder, &checkpoint), names[i],
                       "symbolic links");
        EXPECT_FAILURE(STATUS_FAILED, open_step(2), names[i], "symbolic links");
        assert_int_equal(unlink(path), 0);
        // Something that is not a regular file is damage. Opening a FIFO must not wait for a writer.
        assert_int_equal(mkfifo(path, 0600), 0);
        EXPECT_FAILURE(STATUS_INVALID, open_step(2), names[i], "not a regular file");
        assert_int_equal(newest(), 1);
        assert_int_equal(unlink(path), 0);
        EXPECT_OK(file_rename(other, path));
        assert_int_equal(newest(), 2);
    }
    // Without free file descriptors, no checkpoint can be verified.
    struct rlimit before, limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = (struct rlimit){3, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    enum status status = checkpoint_open_newest(NULL, folder, &checkpoint);
    enum status one = open_step(2);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(one, STATUS_FAILED);
    EXPECT_FAILURE(STATUS_FAILED, status, "Too many open files");
    // A folder that cannot be listed may hold checkpoints.
    snprintf(other, sizeof other, "%s-loop", folder);
    assert_int_equal(symlink(other, other), 0);
    EXPECT_FAILURE(STATUS_FAILED, checkpoint_open_newest(NULL, other, &checkpoint), "-loop",
                   "symbolic links");
    EXPECT_FAILURE(STATUS_FAILED, checkpoint_open_path(NULL, other, &checkpoint), "-loop", "symbolic links");
    assert_true(checkpoint_holds_steps(other)); // it may: opening it reports the error
    assert_int_equal(unlink(other), 0);
}

// Files are opened when they are read, which may be long after they were verified.
static void test_a_file_replaced_while_in_use(void **state) {
    char path[600], *data;
    size_t bytes;
    float value;
    struct checkpoint *checkpoint;
    (void)state;
    EXPECT_OK(write_step(1));
    EXPECT_OK(file_read(file_of(1, "rank-00000.bin", path, sizeof path), 1 << 24, &data, &bytes));
    EXPECT_OK(checkpoint_open_newest(NULL, folder, &checkpoint));
    checkpoint_files_delete(checkpoint->open); // as if other files had evicted it from the cache
    checkpoint->open = checkpoint_files_new(checkpoint->path);
    EXPECT_OK(checkpoint_read_span(checkpoint, CHECKPOINT_MASTER, 1, 0, 1, &value));
    checkpoint_files_delete(checkpoint->open);
    checkpoint->open = checkpoint_files_new(checkpoint->path);
    EXPECT_OK(file_write_all(path, data, bytes)); // the same bytes in a new file
    EXPECT_FAILURE(STATUS_FAILED, checkpoint_read_span(checkpoint, CHECKPOINT_MASTER, 1, 0, 1, &value),
                   "rank-00000.bin", "replaced");
    checkpoint_close(checkpoint);
    free(data);
}

// Other ranks may wait until this one has read all its files.
static void test_reading_shows_progress(void **state) {
    struct rank_state shown = {0};
    struct comm reader = {.state = &shown};
    struct checkpoint *checkpoint;
    (void)state;
    EXPECT_OK(write_step(1));
    EXPECT_OK(checkpoint_open_newest(NULL, folder, &checkpoint));
    EXPECT_OK(checkpoint_files_verify(checkpoint->open, &checkpoint->files[0], &reader));
    assert_true(atomic_load(&shown.progress_ms) > 0);
    checkpoint_close(checkpoint);
}

// Only folders with names in the writer's format are checkpoints. Others are never opened and never removed.
static void test_names_of_other_formats(void **state) {
    static const char *const names[] = {"step-000000000006", "step-6", "step-0000006", "step-00000006x",
                                        "step-0000000000000000006"};
    char from[600], to[600];
    (void)state;
    EXPECT_OK(write_step(4));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        EXPECT_OK(write_step(6));
        snprintf(to, sizeof to, "%s/%s", folder, names[i]);
        EXPECT_OK(file_rename(file_of(6, "", from, sizeof from), to));
        int64_t *steps;
        int n_steps;
        EXPECT_OK(checkpoint_list(folder, &steps, &n_steps));
        assert_int_equal(n_steps, 1);
        free(steps);
        assert_int_equal(newest(), 4);
        EXPECT_OK(checkpoint_set_aside_later(folder, 4));
        checkpoint_prune(folder, 1, 0, 4, -1);
        assert_true(file_exists(to));
        EXPECT_OK(file_remove_tree(to));
    }
    EXPECT_OK(write_step(123456789)); // the writer prints nine digits
    assert_int_equal(newest(), 123456789);
}

static int count_entries(void) {
    struct file_list names = {0};
    EXPECT_OK(file_list_folder(&names, folder));
    int n = names.n_paths;
    file_list_free(&names);
    return n;
}

static void test_a_failed_write_leaves_nothing_behind(void **state) {
    (void)state;
    EXPECT_OK(write_step(1));
    const struct checkpoint_contents failing =
        contents_of(2, (struct checkpoint_kinds){.n = 1}, (struct checkpoint_source){.read = read_fails});
    EXPECT_FAILURE(STATUS_FAILED, checkpoint_write(folder, &failing), "the device is gone");
    assert_int_equal(count_entries(), 1);

    // Limits the size of files to every length at which a disk could be full.
    struct rlimit before, limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    char path[600], *data;
    size_t whole;
    EXPECT_OK(file_read(file_of(1, "rank-00000.bin", path, sizeof path), 1 << 24, &data, &whole));
    free(data);
    for (rlim_t bytes = 0; bytes < whole; bytes += whole / 7) {
        limit = (struct rlimit){bytes, before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        enum status status = write_step(2);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        EXPECT_FAILURE(STATUS_FAILED, status, "cannot write");
        assert_int_equal(count_entries(), 1);
        assert_int_equal(newest(), 1);
    }
    EXPECT_OK(write_step(2));
    assert_int_equal(newest(), 2);
}

static void test_pruning_and_leftovers(void **state) {
    char path[600];
    (void)state;
    for (int step = 1; step <= 5; step++)
        EXPECT_OK(write_step(step));
    checkpoint_prune(folder, 0, 0, 5, -1);
    assert_int_equal(count_entries(), 5);
    checkpoint_prune(folder, 2, 0, 4, -1); // 5 is later than the current step, 4: not counted
    assert_int_equal(count_entries(), 3);
    EXPECT_OK(open_step(3));
    snprintf(path, sizeof path, "%s/.tmp-step-00000009/half", folder);
    EXPECT_OK(file_make_folders(path));
    EXPECT_OK(checkpoint_remove_stale(folder));
    snprintf(path, sizeof path, "%s/.tmp-step-00000009", folder);
    assert_false(file_exists(path));
    EXPECT_OK(checkpoint_set_aside_later(folder, 3));
    assert_int_equal(newest(), 3);
    EXPECT_OK(write_step(3)); // the same step again
    assert_int_equal(newest(), 3);
}

// A process that was killed while it pruned leaves a folder that no reader takes for a checkpoint, and that
// the next pruning removes; one that was killed while it replaced a checkpoint, its old one.
static void test_what_a_kill_left(void **state) {
    char removed[600], replaced[600], path[600];
    (void)state;
    for (int step = 1; step <= 3; step++)
        EXPECT_OK(write_step(step));
    snprintf(removed, sizeof removed, "%s/.tmp-removed-step-00000002", folder);
    EXPECT_OK(file_rename(file_of(2, "", path, sizeof path), removed));
    snprintf(path, sizeof path, "%s/.tmp-removed-step-00000002/manifest.json", folder);
    EXPECT_OK(file_remove_tree(path)); // half of it
    assert_int_equal(newest(), 3);
    EXPECT_OK(open_step(1));
    checkpoint_prune(folder, 2, 0, 3, -1);
    assert_false(file_exists(removed));
    assert_int_equal(count_entries(), 2); // steps 1 and 3
    snprintf(replaced, sizeof replaced, "%s/.tmp-replaced-step-00000003", folder);
    EXPECT_OK(file_rename(file_of(3, "", path, sizeof path), replaced));
    assert_int_equal(newest(), 1);
    EXPECT_OK(checkpoint_remove_stale(folder));
    assert_int_equal(newest(), 3);
    EXPECT_OK(write_step(2));
    snprintf(path, sizeof path, "%s/.tmp-replaced-step-00000002/half", folder); // of step 2, which is there
    EXPECT_OK(file_make_folders(path));
    EXPECT_OK(checkpoint_remove_stale(folder));
    assert_int_equal(count_entries(), 3);
    EXPECT_OK(open_step(2));
}

// The best one is kept beside the newest, under a name of its own that is no checkpoint of its own.
static void test_the_best_is_kept(void **state) {
    char path[600];
    struct checkpoint *checkpoint;
    (void)state;
    assert_int_equal(checkpoint_find_best(folder), -1);
    for (int step = 1; step <= 5; step++)
        EXPECT_OK(write_step(step));
    checkpoint_name_best(folder, 2);
    assert_int_equal(checkpoint_find_best(folder), 2);
    checkpoint_prune(folder, 2, 0, 5, 2);
    assert_int_equal(count_entries(), 4); // steps 2, 4 and 5, and the link
    assert_int_equal(newest(), 5);
    snprintf(path, sizeof path, "%s/best", folder);
    EXPECT_OK(checkpoint_open(NULL, path, &checkpoint));
    assert_int_equal(checkpoint->step, 2);
    assert_non_null(strstr(checkpoint->path, "/step-00000002")); // also when the run moves the link
    checkpoint_close(checkpoint);
    EXPECT_FAILURE(STATUS_FAILED, open_step(3), "its run pruned the checkpoint while it was being read");
    checkpoint_name_best(folder, 4);
    assert_int_equal(checkpoint_find_best(folder), 4);
    checkpoint_name_best(folder, 3); // pruned
    assert_int_equal(checkpoint_find_best(folder), -1);
}

static void test_another_model(void **state) {
    (void)state;
    struct params other;
    struct checkpoint *checkpoint;
    EXPECT_OK(write_step(1));
    EXPECT_OK(params_init(
        &other,
        &(struct gpt_config){.n_layer = 2, .n_head = 2, .n_embd = 16, .vocab_size = 31, .n_positions = 8}));
    EXPECT_OK(checkpoint_open_newest(NULL, folder, &checkpoint));
    EXPECT_FAILURE(STATUS_INVALID, checkpoint_check_model(checkpoint, &other), "8", "16");
    checkpoint_close(checkpoint);
    params_free(&other);
}

static int make_folder(void **state) {
    (void)state;
    return small_run_init(&temporary, &config, &params, &partition, 1, &comm) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return small_run_free(&temporary, &config, &params, &partition, comm) ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_reading_returns_what_was_written, set_up),
        cmocka_unit_test_setup(test_moments_that_do_not_exist, set_up),
        cmocka_unit_test_setup(test_all_damage_is_found, set_up),
        cmocka_unit_test_setup(test_a_damaged_checkpoint_is_skipped, set_up),
        cmocka_unit_test_setup(test_an_unreadable_checkpoint_is_an_error, set_up),
        cmocka_unit_test_setup(test_a_file_replaced_while_in_use, set_up),
        cmocka_unit_test_setup(test_reading_shows_progress, set_up),
        cmocka_unit_test_setup(test_names_of_other_formats, set_up),
        cmocka_unit_test_setup(test_a_failed_write_leaves_nothing_behind, set_up),
        cmocka_unit_test_setup(test_pruning_and_leftovers, set_up),
        cmocka_unit_test_setup(test_what_a_kill_left, set_up),
        cmocka_unit_test_setup(test_the_best_is_kept, set_up),
        cmocka_unit_test_setup(test_another_model, set_up),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
