// Checkpoints among ranks that see different folders, different contents, or nothing. All ranks end with the
// same step, or with one error that names what differs. No rank waits forever, and no incomplete checkpoint
// becomes visible.
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/expect.h"
#include "tests/support/forked_ranks.h"
#include "tests/support/small_run.h"
#include "zero/checkpoint/checkpoint.h"

#define RANKS 3

static struct temporary temporary;
static struct config config;
static struct params params;
static struct partition partition;
static struct comm *alone;
static struct forked_result results[RANKS];
static char shared_folder[512], other_folder[512];

// What the ranks do: the folder that each of them uses, and the values that they write.
struct rank_task {
    const char *folders[RANKS];
    int64_t step;
    float values;
    int bad_rank; // writes the value `bad` into its `bad_kind` of unit 1; -1: no rank does
    float bad;
    enum checkpoint_kind bad_kind;
    enum dtype compute;
};

static enum status read_values(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                               float *out) {
    const struct rank_task *task = context;
    for (size_t i = begin; i < end; i++)
        out[i - begin] = task->values + (float)i;
    if (task->bad != 0 && kind == task->bad_kind && unit == 1 && end > begin)
        out[(end - begin) / 2] = task->bad;
    return STATUS_OK;
}

static enum status write_with(struct comm *comm, const struct partition *by, const char *folder,
                              struct rank_task *task) {
    struct rank_task own = *task;
    if (comm->rank != task->bad_rank)
        own.bad = 0;
    const struct checkpoint_contents contents = {.comm = comm,
                                                 .partition = by,
                                                 .step = task->step,
                                                 .tokens = task->step,
                                                 .config = &config,
                                                 .params = &params,
                                                 .compute = task->compute,
                                                 .device = "avx2",
                                                 .kinds.n = 3,
                                                 .source = {.context = &own, .read = read_values}};
    return checkpoint_write(folder, &contents);
}

static enum status write_here(struct comm *comm, void *context, int64_t *value) {
    struct rank_task *task = context;
    *value = task->step;
    return write_with(comm, &partition, task->folders[comm->rank], task);
}

static enum status step_of(struct checkpoint *checkpoint, int64_t *value) {
    *value = checkpoint ? checkpoint->step : -1;
    checkpoint_close(checkpoint);
    return STATUS_OK;
}

static enum status open_newest(struct comm *comm, void *context, int64_t *value) {
    struct rank_task *task = context;
    struct checkpoint *checkpoint;
    TRY(checkpoint_open_newest(comm, task->folders[comm->rank], &checkpoint));
    return step_of(checkpoint, value);
}

static enum status open_path(struct comm *comm, void *context, int64_t *value) {
    struct rank_task *task = context;
    struct checkpoint *checkpoint;
    TRY(checkpoint_open_path(comm, task->folders[comm->rank], &checkpoint));
    return step_of(checkpoint, value);
}

static enum status require_none(struct comm *comm, void *context, int64_t *value) {
    struct rank_task *task = context;
    *value = 0;
    return checkpoint_require_none(comm, task->folders[comm->rank]);
}

static void write_alone(const char *folder, int64_t step, float values) {
    struct rank_task task = {.step = step, .values = values, .bad_rank = -1};
    struct partition whole;
    partition_init(&whole, &params, PARTITION_EVEN, 1);
    EXPECT_OK(write_with(alone, &whole, folder, &task));
    partition_free(&whole);
}

// All ranks see the shared folder, except `rank` (-1: none), which sees the other one.
static struct rank_task task_of(int rank) {
    struct rank_task task = {.step = 9, .bad_rank = -1};
    for (int i = 0; i < RANKS; i++)
        task.folders[i] = i == rank ? other_folder : shared_folder;
    return task;
}

static void expect_step(int64_t step) {
    for (int rank = 0; rank < RANKS; rank++) {
        if (results[rank].status != STATUS_OK)
            print_error("rank %d: %s\n", rank, results[rank].message);
        assert_int_equal(results[rank].status, STATUS_OK);
        assert_int_equal(results[rank].value, step);
    }
}

// Expects the same status on every rank, and a message with these facts.
static void expect_failure(enum status status, const char *const *facts) {
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(results[rank].status, status);
        for (int i = 0; facts[i]; i++)
            if (!strstr(results[rank].message, facts[i])) {
                print_error("rank %d lacks \"%s\": %s\n", rank, facts[i], results[rank].message);
                fail();
            }
    }
}
#define FACTS(...) ((const char *const[]){__VA_ARGS__, NULL})

static int set_up(void **state) {
    (void)state;
    temporary_path(&temporary, "shared", shared_folder, sizeof shared_folder);
    temporary_path(&temporary, "other", other_folder, sizeof other_folder);
    bool gone = file_remove_tree(shared_folder) == STATUS_OK && file_remove_tree(other_folder) == STATUS_OK;
    return gone ? 0 : -1;
}

static void test_the_same_folder(void **state) {
    (void)state;
    struct rank_task task = task_of(-1);
    forked_ranks(RANKS, open_newest, &task, results);
    expect_step(-1);
    forked_ranks(RANKS, require_none, &task, results);
    expect_step(0);
    for (task.step = 1; task.step <= 3; task.step++) {
        forked_ranks(RANKS, write_here, &task, results);
        expect_step(task.step);
    }
    forked_ranks(RANKS, open_newest, &task, results);
    expect_step(3);
    forked_ranks(RANKS, require_none, &task, results);
    expect_failure(STATUS_INVALID, FACTS("holds 3 checkpoints", "checkpoint.resume is never"));
}

// A damaged file of any rank, whichever rank verifies it, makes all ranks use the checkpoint before.
static void test_damage_makes_all_use_the_checkpoint_before(void **state) {
    (void)state;
    struct rank_task task = task_of(-1);
    for (task.step = 1; task.step <= 4; task.step++)
        forked_ranks(RANKS, write_here, &task, results);
    for (int n = 0; n < RANKS; n++) {
        char path[700];
        snprintf(path, sizeof path, "%s/step-%08d/rank-%05d.bin", shared_folder, 4 - n, n);
        EXPECT_OK(file_write_all(path, "torn", 4));
        forked_ranks(RANKS, open_newest, &task, results);
        expect_step(3 - n);
    }
    char path[700];
    snprintf(path, sizeof path, "%s/step-00000001/manifest.json", shared_folder);
    EXPECT_OK(file_write_all(path, "torn", 4));
    forked_ranks(RANKS, open_newest, &task, results);
    expect_failure(STATUS_INVALID, FACTS("4 found, all damaged"));
}

// A file that one rank cannot read is not damage: resuming from an older step would set the newest aside.
static void test_a_file_unreadable_on_one_rank_ends_all(void **state) {
    (void)state;
    struct rank_task task = task_of(-1);
    for (task.step = 1; task.step <= 2; task.step++)
        forked_ranks(RANKS, write_here, &task, results);
    char path[700];
    snprintf(path, sizeof path, "%s/step-00000002/rank-00001.bin", shared_folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(path, path), 0); // ELOOP, an error even for root
    forked_ranks(RANKS, open_newest, &task, results);
    expect_failure(STATUS_FAILED, FACTS("rank 1: ", "step-00000002/rank-00001.bin", "symbolic links"));
}

static void test_other_folders(void **state) {
    (void)state;
    for (int rank = 0; rank < RANKS; rank++) {
        struct rank_task task = task_of(rank);
        char prefix[32];
        snprintf(prefix, sizeof prefix, "rank %d: ", rank == 0 ? 1 : rank);
        set_up(NULL);
        write_alone(shared_folder, 4, 1);
        write_alone(shared_folder, 6, 1);
        // The other folder is empty.
        forked_ranks(RANKS, open_newest, &task, results);
        expect_failure(STATUS_FAILED, FACTS(prefix, shared_folder, other_folder, "all machines share"));
        forked_ranks(RANKS, require_none, &task, results);
        if (rank == 0)
            expect_failure(STATUS_FAILED, FACTS(prefix, shared_folder, other_folder, "step-00000006"));
        else
            expect_failure(STATUS_INVALID, FACTS("holds 2 checkpoints"));
        forked_ranks(RANKS, open_path, &task, results);
        if (rank == 0)
            expect_failure(STATUS_INVALID, FACTS(other_folder, "does not exist"));
        else
            expect_failure(STATUS_FAILED, FACTS(prefix, shared_folder, other_folder, "all machines share"));
        // The other folder has only an older step.
        write_alone(other_folder, 4, 1);
        forked_ranks(RANKS, open_newest, &task, results);
        if (rank == 0) // whose choice the other ranks can open, too
            expect_step(4);
        else
            expect_failure(STATUS_FAILED, FACTS(prefix, shared_folder, other_folder, "all machines share"));
        // The same step of another run: manifests of the same size that differ in the checksums of the data.
        write_alone(other_folder, 6, 2);
        forked_ranks(RANKS, open_newest, &task, results);
        expect_failure(STATUS_FAILED, FACTS(prefix, shared_folder, other_folder, "is not the one"));
        forked_ranks(RANKS, open_path, &task, results);
        expect_failure(STATUS_FAILED, FACTS(prefix, shared_folder, other_folder, "is not the one"));
    }
}

static int count_entries(const char *folder) {
    struct file_list names = {0};
    EXPECT_OK(file_list_folder(&names, folder));
    int n = names.n_paths;
    file_list_free(&names);
    return n;
}

static void expect_only_step_6(void) {
    struct checkpoint *checkpoint;
    assert_int_equal(count_entries(shared_folder), 1);
    EXPECT_OK(checkpoint_open_newest(NULL, shared_folder, &checkpoint));
    assert_int_equal(checkpoint->step, 6);
    checkpoint_close(checkpoint);
}

// The other folder has the temporary folder of a killed writer, so the rank that uses it writes there without
// an error.
static void test_a_file_written_to_another_folder(void **state) {
    (void)state;
    struct rank_task task = task_of(2);
    write_alone(shared_folder, 6, 1);
    forked_ranks(RANKS, write_here, &task, results);
    expect_failure(STATUS_FAILED, FACTS("rank 2: ", ".tmp-step-00000009", "does not exist on this rank"));
    expect_only_step_6();
    char path[700];
    snprintf(path, sizeof path, "%s/.tmp-step-00000009", other_folder);
    EXPECT_OK(file_make_folders(path));
    forked_ranks(RANKS, write_here, &task, results);
    expect_failure(STATUS_FAILED, FACTS("rank 0: ", shared_folder, "rank-00002.bin", "rank 2 has written",
                                        "all machines share"));
    expect_only_step_6();
}

static void test_values_that_are_not_finite(void **state) {
    (void)state;
    static const struct {
        float value;
        enum dtype compute;
        enum checkpoint_kind kind;
        const char *name, *type; // type NULL: the checkpoint is written
    } cases[] = {
        {NAN, DTYPE_F32, CHECKPOINT_V, "nan in \"v\"", "fp32"},
        {NAN, DTYPE_F16, CHECKPOINT_MASTER, "nan in \"master\"", "fp16"},
        {INFINITY, DTYPE_BF16, CHECKPOINT_M, "inf in \"m\"", "fp32"},
        {-INFINITY, DTYPE_BF16, CHECKPOINT_MASTER, "-inf in \"master\"", "bf16"},
        {3.4e38f, DTYPE_BF16, CHECKPOINT_MASTER, "3.4e+38 in \"master\"", "bf16"}, // infinite once rounded
        {-65520, DTYPE_F16, CHECKPOINT_MASTER, "-65520 in \"master\"", "fp16"},
        {65519, DTYPE_F16, CHECKPOINT_MASTER, "", NULL}, // 65504 as fp16
        {-65520, DTYPE_F16, CHECKPOINT_V, "", NULL},     // moments are not rounded
        {3.38e38f, DTYPE_BF16, CHECKPOINT_MASTER, "", NULL},
        {FLT_MAX, DTYPE_F32, CHECKPOINT_MASTER, "", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rank_task task = task_of(-1);
        EXPECT_OK(file_remove_tree(shared_folder));
        write_alone(shared_folder, 6, 1);
        task.bad = cases[i].value;
        task.bad_kind = cases[i].kind;
        task.compute = cases[i].compute;
        task.bad_rank = (int)i % RANKS;
        char name[32];
        snprintf(name, sizeof name, "rank-%05d.bin", task.bad_rank);
        forked_ranks(RANKS, write_here, &task, results);
        if (!cases[i].type) {
            expect_step(task.step);
            continue;
        }
        expect_failure(STATUS_FAILED,
                       FACTS("rank", name, cases[i].name, "(unit 1, h.0.", "not finite as", cases[i].type,
                             "no checkpoint of step 9", "the last good checkpoint is step 6"));
        expect_only_step_6();
    }
}

static int make_folder(void **state) {
    (void)state;
    return small_run_init(&temporary, &config, &params, &partition, RANKS, &alone) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return small_run_free(&temporary, &config, &params, &partition, alone) ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_the_same_folder, set_up),
        cmocka_unit_test_setup(test_damage_makes_all_use_the_checkpoint_before, set_up),
        cmocka_unit_test_setup(test_a_file_unreadable_on_one_rank_ends_all, set_up),
        cmocka_unit_test_setup(test_other_folders, set_up),
        cmocka_unit_test_setup(test_a_file_written_to_another_folder, set_up),
        cmocka_unit_test_setup(test_values_that_are_not_finite, set_up),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
