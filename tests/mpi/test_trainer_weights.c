// Weights of targets, through the whole trainer: a step's loss and gradient norm are those of its global
// batch, whatever ranks and micro-batches it is distributed over. Run with 1, 2, 3 and 4 ranks.
#include <math.h>

#include "tests/mpi/training_runs.h"
#include "trainer/setup.h"

enum { STEPS = 3, ROWS = 12, T = 8 };

typedef void weighing(const int32_t *tokens, int n, float *weights); // of loader_options

// Fractions and zeros; in some sequences nothing else.
static void weigh_some(const int32_t *tokens, int n, float *weights) {
    for (int t = 0; t < n; t++)
        weights[t] = tokens[0] % 4 == 1 ? 0 : 0.25f * (float)(tokens[t + 1] % 5);
}

static void weigh_ones(const int32_t *tokens, int n, float *weights) {
    (void)tokens;
    for (int t = 0; t < n; t++)
        weights[t] = 1;
}

static void weigh_twos(const int32_t *tokens, int n, float *weights) {
    (void)tokens;
    for (int t = 0; t < n; t++)
        weights[t] = 2;
}

// What must not depend on how a batch is distributed.
struct figures {
    double weighted_targets[STEPS], loss[STEPS], norm[STEPS];
    double variance, square; // of the noise scale
};

// data.train, with weights by `weigh` unless it is NULL, in micro-batches of B rows.
static enum status open_weighted(const struct comm *with, int B, weighing *weigh, struct loader **out) {
    char path[300];
    temporary_path(&temporary, "tokens.bin", path, sizeof path);
    const struct file_list shards = {.paths = (char *[]){path}, .n_paths = 1};
    const struct source_option source = {.patterns = &shards};
    return loader_new(&(struct loader_options){.sources = {.list = &source, .n = 1, .option = "data.train"},
                                               .vocab_size = 61,
                                               .seq_len = T,
                                               .batch_size = ROWS,
                                               .micro_batch_size = B,
                                               .first_row = with->rank * B,
                                               .row_stride = with->world * B,
                                               .weigh = weigh},
                      out);
}

static enum status run_steps(struct trainer *trainer, struct figures *figures) {
    for (int i = 0; i < STEPS; i++) {
        TRY(steps_issue(&trainer->steps));
        TRY(steps_finish(&trainer->steps, 0));
        const struct issued_step *step = &trainer->steps.issued[(trainer->steps.n_issued - 1) % STEP_SLOTS];
        figures->weighted_targets[i] = step->weighted_targets;
        figures->loss[i] = step->now.loss;
        figures->norm[i] = step->now.grad_norm;
    }
    figures->variance = trainer->run.state.noise.variance;
    figures->square = trainer->run.state.noise.square;
    return STATUS_OK;
}

// Takes the first steps of a run whose data.train is weighed.
static enum status train_on(struct comm *with, struct config *config, weighing *weigh,
                            struct figures *figures) {
    struct trainer *trainer = trainer_new(config, "./train", with, NULL);
    struct loader *weighted = NULL;
    bool complete;
    enum status status = trainer_setup(trainer, &complete);
    if (status == STATUS_OK)
        status = comm_agree(with, open_weighted(with, (int)config->train.micro_batch_size, weigh, &weighted));
    if (status == STATUS_OK) {
        loader_delete(trainer->data.train);
        trainer->data.train = weighted;
        status = run_steps(trainer, figures);
    }
    trainer_delete(trainer);
    return status;
}

static struct figures train_weighted(struct comm *with, int B, int stage, weighing *weigh) {
    char path[300], words[5][340], *overrides[] = {words[0], words[1], words[2], words[3], words[4]};
    struct config config;
    struct figures figures = {0};
    snprintf(words[0], sizeof words[0], "run.dir=%s/weighted-%d", temporary.folder,
             with == comm ? ++n_runs : 0);
    snprintf(words[1], sizeof words[1], "zero_optimization.stage=%d", stage);
    snprintf(words[2], sizeof words[2], "train.train_batch_size=%d", ROWS);
    snprintf(words[3], sizeof words[3], "train.micro_batch_size=%d", B);
    snprintf(words[4], sizeof words[4], "train.noise_scale_every=%d", B == 1);
    enum status status =
        config_read(&config, temporary_path(&temporary, "c.json", path, sizeof path), 5, overrides);
    if (status == STATUS_OK)
        status = train_on(with, &config, weigh, &figures);
    config_free(&config);
    if (status != STATUS_OK)
        print_error("rank %d: %s\n", comm->rank, status_message());
    if (status != STATUS_OK)
        figures.loss[0] = NAN; // equal to nothing
    return figures;
}

// By rank 0 alone, in one micro-batch.
static struct figures train_whole(void) {
    struct figures whole = {0};
    if (comm->rank == 0) {
        struct comm *self = comm_open_self();
        whole = train_weighted(self, ROWS, 0, weigh_some);
        (void)comm_close(self, STATUS_OK);
    }
    together_ok(comm, comm_broadcast(comm, &whole, sizeof whole, 0));
    return whole;
}

// The rows' losses and gradients are added in another order: 96 terms, each with some 100 roundings, as in
// tests/unit/model/test_documents.c. Later steps begin with parameters that differ by that.
static bool is_close(double a, double b) {
    return fabs(a - b) <= 5000 * dtype_epsilon(DTYPE_F32) * fabs(b);
}

static void test_any_split_has_the_same_mean(void **state) {
    (void)state;
    const struct figures whole = train_whole();
    together_true(comm, whole.weighted_targets[0] > 0 && whole.weighted_targets[0] != ROWS * T);
    for (int B = 1; B <= 3; B++)
        for (int stage = 0; stage <= 3 && ROWS % (B * comm->world) == 0; stage++) {
            const struct figures split = train_weighted(comm, B, stage, weigh_some);
            for (int i = 0; i < STEPS; i++) {
                together_true(comm, split.weighted_targets[i] == whole.weighted_targets[i]);
                together_true(comm, is_close(split.loss[i], whole.loss[i]));
                together_true(comm, is_close(split.norm[i], whole.norm[i]));
            }
        }
}

// To the bit: weights of 1 are none, and a factor of 2 cancels, in the noise scale too.
static void test_a_common_factor_cancels(void **state) {
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        const struct figures none = train_weighted(comm, 1, stage, NULL);
        const struct figures ones = train_weighted(comm, 1, stage, weigh_ones);
        struct figures twos = train_weighted(comm, 1, stage, weigh_twos);
        together_true(comm, none.loss[0] > 0 && none.norm[0] > 0 && none.variance > 0);
        together_true(comm, memcmp(&none, &ones, sizeof none) == 0);
        for (int i = 0; i < STEPS; i++)
            twos.weighted_targets[i] /= 2;
        together_true(comm, memcmp(&none, &twos, sizeof none) == 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_split_has_the_same_mean),
        cmocka_unit_test(test_a_common_factor_cancels),
    };
    return runs_main(tests);
}
