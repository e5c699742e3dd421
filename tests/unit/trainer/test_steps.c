// Whole runs in one process: PyTorch's golden curve, resuming to the bit, and failures. tests/cli tests the
// same through the command line; here everything runs under the sanitizers.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"
#include "data/shard.h"
#include "tests/support/expect.h"
#include "tests/support/temporary.h"
#include "trainer/trainer.h"
#include "zero/checkpoint/checkpoint.h"

#define GOLDEN     "tests/golden/gpt2-tiny"
#define MAX_STEPS  32
#define MAX_LENGTH 512

static struct temporary temporary;

// ---- running

#define MAX_OVERRIDES 16

static enum status train_by(const char *config_name, const char *run, va_list list) {
    char path[MAX_LENGTH], folder[MAX_LENGTH];
    char *overrides[MAX_OVERRIDES] = {folder};
    int n = 1;
    temporary_path(&temporary, config_name, path, sizeof path);
    snprintf(folder, sizeof folder, "run.dir=%s/%s", temporary.folder, run);
    for (char *override; (override = va_arg(list, char *));) {
        assert_true(n < MAX_OVERRIDES);
        overrides[n++] = override;
    }
    struct config config;
    struct comm *comm = comm_open_self();
    enum status status = config_read(&config, path, n, overrides);
    if (status == STATUS_OK)
        status = trainer_run(&config, "./train tiny.json", comm);
    status = comm_close(comm, status);
    config_free(&config);
    return status;
}

// Trains a tiny model in folder RUN of the temporary folder; overrides end with NULL.
static enum status train(const char *run, ...) {
    va_list list;
    va_start(list, run);
    enum status status = train_by("tiny.json", run, list);
    va_end(list);
    return status;
}

// The same without model sizes, for runs that take them from weights or a tokenizer.
static enum status train_unsized(const char *run, ...) {
    va_list list;
    va_start(list, run);
    enum status status = train_by("unsized.json", run, list);
    va_end(list);
    return status;
}

struct curve {
    int n;
    double loss[MAX_STEPS], norm[MAX_STEPS], lr[MAX_STEPS];
};

// The steps of a run's metrics, which must be 1, 2, 3 ...
static struct curve read_curve(const char *run) {
    struct curve curve = {0};
    char path[MAX_LENGTH], *text, *rest;
    size_t bytes;
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", temporary.folder, run);
    EXPECT_OK(file_read(path, 1 << 20, &text, &bytes));
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        cJSON *object;
        double step;
        EXPECT_OK(json_parse(line, strlen(line), path, &object));
        if (cJSON_GetObjectItemCaseSensitive(object, "loss")) {
            assert_true(curve.n < MAX_STEPS);
            EXPECT_OK(json_get_number(object, "step", path, &step));
            assert_true(step == curve.n + 1);
            EXPECT_OK(json_get_number(object, "loss", path, &curve.loss[curve.n]));
            EXPECT_OK(json_get_number(object, "grad_norm", path, &curve.norm[curve.n]));
            EXPECT_OK(json_get_number(object, "lr", path, &curve.lr[curve.n]));
            curve.n++;
        }
        cJSON_Delete(object);
    }
    free(text);
    return curve;
}

static void assert_same_curve(const struct curve *a, const struct curve *b) {
    assert_int_equal(a->n, b->n);
    size_t bytes = (size_t)a->n * sizeof *a->loss;
    assert_memory_equal(a->loss, b->loss, bytes);
    assert_memory_equal(a->norm, b->norm, bytes);
    assert_memory_equal(a->lr, b->lr, bytes);
}

static struct checkpoint *open_run(const char *run) {
    char path[MAX_LENGTH];
    struct checkpoint *checkpoint;
    snprintf(path, sizeof path, "%s/%s", temporary.folder, run);
    EXPECT_OK(checkpoint_open_path(NULL, path, &checkpoint));
    return checkpoint;
}

// Compares all model states in the newest checkpoints of two runs, to the bit.
static void assert_same_state(const char *first, const char *second) {
    struct checkpoint *a = open_run(first), *b = open_run(second);
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->tokens, b->tokens);
    assert_int_equal(a->compute, b->compute);
    assert_int_equal(a->kinds.n, b->kinds.n);
    for (int unit = 0; unit < a->params.n_units; unit++) {
        size_t n = a->params.units[unit].elements;
        float *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);
        assert_non_null(x);
        assert_non_null(y);
        for (int kind = 0; kind < a->kinds.n; kind++) {
            EXPECT_OK(checkpoint_read_span(a, (enum checkpoint_kind)kind, unit, 0, n, x));
            EXPECT_OK(checkpoint_read_span(b, (enum checkpoint_kind)kind, unit, 0, n, y));
            assert_memory_equal(x, y, n * sizeof *x);
        }
        free(x);
        free(y);
    }
    checkpoint_close(a);
    checkpoint_close(b);
}

// ---- tests

// Losses and norms of a golden run, from metrics.jsonl.
static void assert_golden(const char *run, const char *folder) {
    char path[MAX_LENGTH];
    cJSON *expected;
    const cJSON *steps, *entry;
    struct curve got = read_curve(run);
    snprintf(path, sizeof path, "%s/expected.json", folder);
    EXPECT_OK(json_read_file(path, &expected));
    EXPECT_OK(json_get_array(expected, "curve", path, &steps));
    assert_int_equal(got.n, cJSON_GetArraySize(steps));
    double worst_loss = 0, worst_norm = 0;
    int step = 0;
    cJSON_ArrayForEach(entry, steps) {
        double loss, norm;
        EXPECT_OK(json_get_number(entry, "loss", path, &loss));
        EXPECT_OK(json_get_number(entry, "grad_norm", path, &norm));
        worst_loss = fmax(worst_loss, fabs(got.loss[step] - loss) / loss);
        worst_norm = fmax(worst_norm, fabs(got.norm[step] - norm) / norm);
        assert_true(got.lr[step++] == 1e-3);
    }
    cJSON_Delete(expected);
    print_message("%s: losses within %.1e, norms within %.1e\n", run, worst_loss, worst_norm);
    assert_true(worst_loss <= 1e-6);
    assert_true(worst_norm <= 5e-6);
}

static void test_golden_curve(void **unused) {
    (void)unused;
    EXPECT_OK(train_unsized("golden", "data.train=" GOLDEN "/tokens.bin", "model.init_from=" GOLDEN,
                            "data.shuffle=false", "train.train_batch_size=4", "train.seq_len=32",
                            "train.micro_batch_size=4", "train.max_steps=20", "optimizer.lr=1e-3",
                            "precision.compute=fp32", NULL));
    assert_golden("golden", GOLDEN);
}

static void test_golden_curve_of_accumulated_micro_batches(void **unused) {
    (void)unused;
    EXPECT_OK(train_unsized("golden-accum", "data.train=" GOLDEN "-accum/tokens.bin",
                            "model.init_from=" GOLDEN "-accum", "data.shuffle=false",
                            "train.train_batch_size=8", "train.seq_len=16", "train.micro_batch_size=2",
                            "train.max_steps=10", "optimizer.lr=1e-3", "precision.compute=fp32", NULL));
    assert_golden("golden-accum", GOLDEN "-accum");
}

static void test_repeated_and_resumed_runs_are_equal(void **unused) {
    (void)unused;
    static char *const computes[] = {"precision.compute=fp32", "precision.compute=bf16",
                                     "precision.compute=fp16"};
    for (int i = 0; i < N_COMPUTE_DTYPES; i++) {
        char runs[3][32];
        for (int k = 0; k < 3; k++)
            snprintf(runs[k], sizeof runs[k], "%s-%d", k == 0 ? "a" : k == 1 ? "b" : "resumed", i);
        EXPECT_OK(train(runs[0], computes[i], "train.max_steps=7", NULL));
        EXPECT_OK(train(runs[1], computes[i], "train.max_steps=7", NULL));
        EXPECT_OK(train(runs[2], computes[i], "train.max_steps=1", NULL));
        EXPECT_OK(train(runs[2], computes[i], "train.max_steps=4", NULL));
        EXPECT_OK(train(runs[2], computes[i], "train.max_steps=7", NULL));
        struct curve curves[3];
        for (int k = 0; k < 3; k++)
            curves[k] = read_curve(runs[k]);
        assert_int_equal(curves[0].n, 7);
        for (int k = 1; k < 3; k++) {
            assert_same_curve(&curves[0], &curves[k]);
            assert_same_state(runs[0], runs[k]);
        }
    }
}

// checkpoint.resume names an earlier checkpoint: the run continues from there and ends with the same bits.
static void test_resuming_from_an_earlier_checkpoint(void **unused) {
    (void)unused;
    char resume[MAX_LENGTH];
    EXPECT_OK(train("straight", "train.max_steps=6", NULL));
    EXPECT_OK(train("back", "train.max_steps=6", "checkpoint.every=2", NULL));
    snprintf(resume, sizeof resume, "checkpoint.resume=%s/back/checkpoints/step-00000002", temporary.folder);
    EXPECT_OK(train("back", "train.max_steps=6", resume, NULL));
    struct curve straight = read_curve("straight"), back = read_curve("back");
    assert_same_curve(&straight, &back);
    assert_same_state("straight", "back");
}

static void test_a_complete_run_is_left_alone(void **unused) {
    (void)unused;
    EXPECT_OK(train("complete", "train.max_steps=3", NULL));
    struct curve before = read_curve("complete");
    EXPECT_OK(train("complete", "train.max_steps=3", NULL));
    struct curve after = read_curve("complete");
    assert_same_curve(&before, &after);
}

static void test_no_steps_keep_the_initial_weights(void **unused) {
    (void)unused;
    EXPECT_OK(train("none", "train.max_steps=0", NULL));
    struct checkpoint *checkpoint = open_run("none");
    assert_int_equal(checkpoint->step, 0);
    size_t n = checkpoint->params.units[1].elements;
    float *got = malloc(n * sizeof *got), *expected = malloc(n * sizeof *expected);
    assert_non_null(got);
    assert_non_null(expected);
    EXPECT_OK(checkpoint_read_span(checkpoint, CHECKPOINT_MASTER, 1, 0, n, got));
    params_init_span(&checkpoint->params, 1337, 1, 0, n, expected);
    assert_memory_equal(got, expected, n * sizeof *got);
    EXPECT_OK(checkpoint_read_span(checkpoint, CHECKPOINT_V, 1, 0, n, got));
    for (size_t i = 0; i < n; i++)
        assert_true(got[i] == 0);
    free(got);
    free(expected);
    checkpoint_close(checkpoint);
}

// If a run diverges, it ends with a message, and the last good checkpoint is kept.
static void test_divergence_keeps_the_last_checkpoint(void **unused) {
    (void)unused;
    EXPECT_FAILURE(STATUS_FAILED,
                   train("diverged", "train.max_steps=20", "checkpoint.every=1", "checkpoint.keep=0",
                         "optimizer.type=sgd", "optimizer.lr=1e6", "train.gradient_clipping=0", NULL),
                   "step ", "loss", "norm", "optimizer.lr");
    struct curve curve = read_curve("diverged");
    assert_true(curve.n > 0 && curve.n < 20);
    for (int i = 0; i < curve.n; i++)
        assert_true(isfinite(curve.loss[i]) && isfinite(curve.norm[i]));
    struct checkpoint *checkpoint = open_run("diverged");
    assert_int_equal(checkpoint->step, curve.n);
    checkpoint_close(checkpoint);
}

static void test_what_a_resumed_run_may_not_change(void **unused) {
    (void)unused;
    EXPECT_OK(train("fixed", "train.max_steps=2", NULL));
    EXPECT_FAILURE(STATUS_INVALID, train("fixed", "train.max_steps=4", "optimizer.lr=0.5", NULL),
                   "optimizer.lr", "0.5");
    EXPECT_FAILURE(STATUS_INVALID, train("fixed", "train.max_steps=1", NULL), "train.max_steps");
    EXPECT_FAILURE(STATUS_INVALID, train("fixed", "train.max_steps=4", "model.n_embd=48", NULL), "n_embd");
    EXPECT_FAILURE(STATUS_INVALID, train("fixed", "train.max_steps=4", "checkpoint.resume=never", NULL),
                   "never", "run.dir");
    // Refused runs change nothing, and the original run can still be resumed.
    EXPECT_OK(train("fixed", "train.max_steps=4", "run.log_every=2", "recompute=block", NULL));
    EXPECT_OK(train("as it was", "train.max_steps=4", NULL));
    struct curve fixed = read_curve("fixed"), straight = read_curve("as it was");
    assert_same_curve(&straight, &fixed);
    assert_same_state("as it was", "fixed");
}

static void test_sizes_come_from_the_weights(void **unused) {
    (void)unused;
    EXPECT_FAILURE(STATUS_INVALID,
                   train_unsized("sizes", "data.train=" GOLDEN "/tokens.bin", "model.init_from=" GOLDEN,
                                 "model.n_layer=5", NULL),
                   "model.n_layer", "5", "2");
    EXPECT_FAILURE(STATUS_INVALID, train_unsized("sizes", "model.init_from=nowhere at all", NULL),
                   "nowhere at all");
}

static void test_vocabulary_comes_from_the_tokenizer(void **unused) {
    (void)unused;
    EXPECT_OK(train_unsized("bytes", "data.tokenizer=bytes", "train.max_steps=1", "model.n_layer=1",
                            "model.n_head=2", "model.n_embd=16", "model.n_positions=16", NULL));
    struct checkpoint *checkpoint = open_run("bytes");
    assert_int_equal(checkpoint->params.config.vocab_size, 257);
    checkpoint_close(checkpoint);
    EXPECT_FAILURE(STATUS_INVALID, train("smaller", "data.tokenizer=bytes", "train.max_steps=1", NULL), "257",
                   "61");
}

static void test_overfitting_one_batch(void **unused) {
    (void)unused;
    EXPECT_OK(
        train("overfit", "train.overfit_one_batch=true", "train.max_steps=30", "optimizer.lr=0.01", NULL));
    struct curve curve = read_curve("overfit");
    // The untrained model predicts all 61 tokens alike.
    assert_true(fabs(curve.loss[0] - log(61)) < 0.1 * log(61));
    assert_true(curve.loss[29] < 0.7 * curve.loss[0]);
}

// ---- the folder of the tests

// Sets the compute dtype, because "auto" depends on measurements, which vary on a busy machine.
static void write_config(const char *name, const char *sizes) {
    char path[MAX_LENGTH], text[1024];
    int length = snprintf(
        text, sizeof text,
        "{%s\"device\": \"cpu\", \"precision\": {\"compute\": \"fp32\"}, \"run\": {\"threads\": 2}, "
        "\"data\": {\"train\": \"%s/tokens.bin\"},"
        " \"train\": {\"seq_len\": 16, \"train_batch_size\": 4, \"micro_batch_size\": 2},"
        " \"scheduler\": {\"type\": \"constant\", \"warmup_steps\": 0}, \"checkpoint\": {\"every\": 0}}",
        sizes, temporary.folder);
    temporary_path(&temporary, name, path, sizeof path);
    EXPECT_OK(file_write_all(path, text, (size_t)length));
}

static int make_folder(void **unused) {
    (void)unused;
    char path[MAX_LENGTH];
    struct shard_writer writer;
    if (!temporary_init(&temporary))
        return -1;
    log_set_level(LOG_QUIET);
    write_config("unsized.json", "");
    write_config("tiny.json",
                 "\"model\": {\"n_layer\": 2, \"n_head\": 2, \"n_embd\": 32, \"vocab_size\": 61, "
                 "\"n_positions\": 16}, ");
    temporary_path(&temporary, "tokens.bin", path, sizeof path);
    EXPECT_OK(shard_writer_open(&writer, path, 2));
    for (uint64_t i = 0; i < 3000; i++) {
        int32_t token = (int32_t)rng_below(1, 1, i, 61);
        shard_writer_add(&writer, &token, 1);
    }
    EXPECT_OK(shard_writer_commit(&writer));
    return 0;
}

static int remove_folder(void **unused) {
    (void)unused;
    return temporary_free(&temporary) ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_curve),
        cmocka_unit_test(test_golden_curve_of_accumulated_micro_batches),
        cmocka_unit_test(test_repeated_and_resumed_runs_are_equal),
        cmocka_unit_test(test_resuming_from_an_earlier_checkpoint),
        cmocka_unit_test(test_a_complete_run_is_left_alone),
        cmocka_unit_test(test_no_steps_keep_the_initial_weights),
        cmocka_unit_test(test_divergence_keeps_the_last_checkpoint),
        cmocka_unit_test(test_what_a_resumed_run_may_not_change),
        cmocka_unit_test(test_sizes_come_from_the_weights),
        cmocka_unit_test(test_vocabulary_comes_from_the_tokenizer),
        cmocka_unit_test(test_overfitting_one_batch),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
