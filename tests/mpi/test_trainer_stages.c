// Every stage is the same run. Whole training runs on all ranks must have bitwise equal losses, norms (as
// text) and weights, whatever the stage, bucket sizes, overlap, prefetch and persistence. Bytes sent and
// memory used must be as planned. Run with 1, 2, 3 and 4 ranks.
#include <math.h>

#include "tests/mpi/training_runs.h"

#define FEW_STEPS 6 // of the first grid, unless ZERO_TESTS_FULL is set

static bool is_full(void) {
    return getenv("ZERO_TESTS_FULL") != NULL;
}

// Steps of each run in the first grid.
static int grid_steps(void) {
    return is_full() ? MAX_STEPS : FEW_STEPS;
}

// In the short run, an odd number of ranks has half of the settings of a test with many, and an even one the
// others: each is run on two numbers of ranks.
static bool has_turn(int setting) {
    return is_full() || (setting + comm->world) % 2 == 0;
}

// All stages, with large and small buckets, with and without overlap.
static void grid(const char *partition, const char *precision, struct run_outcome *first) {
    for (int stage = 0; stage <= 3; stage++)
        for (int variant = 0; variant < 4; variant++) {
            const char *overlap = variant & 1 ? "true" : "false";
            long long bucket = variant & 2 ? 1001 : 500000000;
            char what[128];
            snprintf(what, sizeof what, "%s %s stage %d bucket %lld overlap %s", partition, precision, stage,
                     bucket, overlap);
            expect_same(
                first,
                train(comm,
                      "precision.compute=%s train.max_steps=%d train.train_batch_size=12 "
                      "train.micro_batch_size=%d zero_optimization.partition=%s zero_optimization.stage=%d "
                      "zero_optimization.reduce_bucket_size=%lld "
                      "zero_optimization.allgather_bucket_size=%lld zero_optimization.overlap_comm=%s "
                      "zero_optimization.stage3_param_persistence_threshold=400",
                      precision, grid_steps(), 12 / comm->world, partition, stage, bucket, bucket, overlap),
                what);
        }
}

static void test_stages_buckets_and_overlap(void **state) {
    (void)state;
    static const char *const partitions[] = {"even", "layer", "tensor"};
    struct run_outcome first[3] = {0}, rounded = {0};
    const int n_partitions = comm->world > 1 || is_full() ? 3 : 1; // one rank has all in each of them
    for (int i = 0; i < n_partitions; i++)
        grid(partitions[i], "fp32", &first[i]);
    bool near = true;
    for (int i = 1; i < n_partitions && comm->rank == 0; i++)
        for (int step = 0; step < grid_steps(); step++)
            near =
                near && fabs(first[i].losses[step] - first[0].losses[step]) <= 1e-6 * first[0].losses[step];
    together_true(comm, near); // partitions order the norm's sum differently
    together_true(comm, comm->rank > 0 || first[0].losses[grid_steps() - 1] < first[0].losses[0]);
    grid("even", "bf16", &rounded);
    for (int i = 0; i < 3; i++)
        outcome_free(&first[i]);
    outcome_free(&rounded);
}

static void test_accumulation(void **state) {
    (void)state;
    struct run_outcome once = {0}, each = {0};
    for (int stage = 0; stage <= 3; stage++)
        for (int every = 0; every <= 1; every++) {
            char what[64];
            snprintf(what, sizeof what, "stage %d with accumulation%s", stage,
                     every ? ", every micro-batch" : "");
            bool is_each = every || stage >= 2;
            expect_same(is_each ? &each : &once,
                        train(comm,
                              "train.max_steps=12 train.train_batch_size=24 train.micro_batch_size=1 "
                              "zero_optimization.stage=%d zero_optimization.reduce_every_micro_batch=%s "
                              "zero_optimization.stage3_param_persistence_threshold=0",
                              stage, every ? "true" : "false"),
                        what);
        }
    // k micro-batches give the same losses as one batch of k times the size, except for rounding.
    struct run_outcome whole = train(comm,
                                     "train.max_steps=12 train.train_batch_size=24 train.micro_batch_size=%d "
                                     "zero_optimization.stage=2",
                                     24 / comm->world);
    bool near = true;
    for (int step = 0; step < 12 && comm->rank == 0; step++)
        near = near && fabs(whole.losses[step] - once.losses[step]) <= 1e-5 * whole.losses[step] &&
               fabs(each.losses[step] - once.losses[step]) <= 1e-5 * once.losses[step];
    together_true(comm, near);
    outcome_free(&whole);
    outcome_free(&once);
    outcome_free(&each);
}

static void test_prefetch_and_persistence(void **state) {
    (void)state;
    static const char *const variants[] = {
        "zero_optimization.stage=0",
        "zero_optimization.stage=3 zero_optimization.stage3_param_persistence_threshold=0",
        "zero_optimization.stage=3 zero_optimization.stage3_param_persistence_threshold=0 "
        "zero_optimization.stage3_prefetch_bucket_size=0",
        "zero_optimization.stage=3 zero_optimization.stage3_param_persistence_threshold=0 "
        "zero_optimization.stage3_prefetch_bucket_size=5000",
        "zero_optimization.stage=3 zero_optimization.stage3_param_persistence_threshold=100000",
        "zero_optimization.stage=3 recompute=block",
        "zero_optimization.stage=3 zero_optimization.offload_optimizer.device=cpu "
        "zero_optimization.offload_param.device=cpu",
        "zero_optimization.stage=1 zero_optimization.offload_optimizer.device=cpu "
        "zero_optimization.offload_optimizer.ratio=0.3",
    };
    for (int partition = 0; partition < 2; partition++) {
        struct run_outcome first = {0};
        for (size_t i = 0; i < sizeof variants / sizeof *variants && has_turn(partition); i++)
            expect_same(&first,
                        train(comm,
                              "train.max_steps=8 train.train_batch_size=12 "
                              "train.gradient_accumulation_steps=1 zero_optimization.partition=%s %s",
                              partition ? "tensor" : "even", variants[i]),
                        variants[i]);
        outcome_free(&first);
    }
}

// Every recompute level, with and without prefetch, with small buckets and persistent tensors: the run is as
// planned and bitwise equal.
static void test_recompute_levels(void **state) {
    (void)state;
    static const struct {
        int stage, persistence;
        const char *more;
    } variants[] = {
        {2, 0, ""},
        {3, 0, "recompute=none"},
        {3, 0, "recompute=attention"},
        {3, 0, "recompute=block"},
        {3, 0, "recompute=block zero_optimization.overlap_comm=false"},
        {3, 0, "recompute=block zero_optimization.stage3_prefetch_bucket_size=0"},
        {3, 0,
         "recompute=block zero_optimization.reduce_bucket_size=777 "
         "zero_optimization.allgather_bucket_size=333"},
        {3, 400, "recompute=attention"},
        {3, 1300, "recompute=elementwise"},
        {3, 100000, "recompute=block"},
    };
    for (int layers = 1; layers <= 3; layers += 2)
        for (int partition = 0; partition < N_PARTITIONS; partition++) {
            struct run_outcome first = {0};
            for (size_t i = 0; i < sizeof variants / sizeof *variants && has_turn(partition + layers / 2);
                 i++)
                expect_same(&first,
                            train(comm,
                                  "model.n_layer=%d precision.compute=%s train.max_steps=4 "
                                  "train.train_batch_size=24 train.gradient_accumulation_steps=2 "
                                  "zero_optimization.partition=%s zero_optimization.stage=%d "
                                  "zero_optimization.stage3_param_persistence_threshold=%d %s",
                                  layers, partition ? "fp32" : "bf16",
                                  partition_name((enum partition_kind)partition), variants[i].stage,
                                  variants[i].persistence, variants[i].more),
                            variants[i].more);
            outcome_free(&first);
        }
}

// Gradients reduced in bf16 or fp16: the bits differ from fp32, but are equal in every stage.
static void test_communication_dtype(void **state) {
    (void)state;
    static const char *const variants[] = {"communication_data_type=bf16",
                                           "communication_data_type=fp16 fp16.loss_scaling=on"};
    for (int i = 0; i < 2; i++) {
        struct run_outcome first = {0};
        for (int stage = 0; stage <= 3; stage++)
            expect_same(&first,
                        train(comm,
                              "%s train.max_steps=8 train.train_batch_size=12 "
                              "train.gradient_accumulation_steps=1 zero_optimization.stage=%d",
                              variants[i], stage),
                        variants[i]);
        outcome_free(&first);
    }
}

// fp16, starting with a loss scale at which gradients overflow: some steps are skipped, then the loss falls,
// bitwise equal in every stage.
static void test_fp16(void **state) {
    (void)state;
    static const char *const variants[] = {
        "zero_optimization.stage=0",
        "zero_optimization.stage=1 zero_optimization.overlap_comm=false",
        "zero_optimization.stage=2 zero_optimization.reduce_bucket_size=1001",
        "zero_optimization.stage=3 zero_optimization.stage3_param_persistence_threshold=400",
    };
    struct run_outcome first = {0};
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        expect_same(&first,
                    train(comm,
                          "precision.compute=fp16 fp16.initial_scale_power=28 train.max_steps=20 "
                          "train.train_batch_size=12 train.gradient_accumulation_steps=1 "
                          "train.overfit_one_batch=true scheduler.warmup_steps=2 %s",
                          variants[i]),
                    variants[i]);
    bool right = comm->rank > 0 || (first.losses[0] == first.losses[3] && first.losses[19] < first.losses[0]);
    together_true(comm, right);
    outcome_free(&first);
}

// Over a hundred tensors, most of them smaller than the alignment; and a model of three units, of which the
// partition `layer` leaves nothing for a fourth rank.
static void test_tiny_tensors_and_idle_ranks(void **state) {
    (void)state;
    for (int layers = 1; layers <= 9; layers += 8)
        for (int partition = 0; partition < N_PARTITIONS; partition++) {
            struct run_outcome first = {0};
            for (int stage = 0; stage <= 3 && has_turn(partition + layers / 8); stage++)
                expect_same(&first,
                            train(comm,
                                  "model.n_layer=%d model.n_embd=4 model.n_head=1 model.n_positions=3 "
                                  "train.seq_len=3 train.max_steps=4 train.train_batch_size=12 "
                                  "train.gradient_accumulation_steps=1 zero_optimization.partition=%s "
                                  "zero_optimization.stage=%d "
                                  "zero_optimization.stage3_param_persistence_threshold=20",
                                  layers, partition_name((enum partition_kind)partition), stage),
                            "tiny tensors");
            outcome_free(&first);
        }
}

// One step of plain SGD, or of AdamW with betas of 0, reveals the gradient: N ranks must have the same as
// one.
static void test_update_reveals_the_gradient(void **state) {
    (void)state;
    static const char *const optimizers[] = {
        "optimizer.type=sgd optimizer.momentum=0 optimizer.lr=1",
        "optimizer.betas=[0,0] optimizer.eps=1 optimizer.lr=1",
    };
    for (int i = 0; i < 2; i++) {
        const char *format = "%s optimizer.weight_decay=0 train.gradient_clipping=0 scheduler.type=constant "
                             "train.max_steps=1 train.train_batch_size=12 train.micro_batch_size=1 "
                             "zero_optimization.stage=%d";
        struct run_outcome alone = {0};
        if (comm->rank == 0) {
            struct comm *self = comm_open_self();
            alone = train(self, format, optimizers[i], 0);
            assert_int_equal(comm_close(self, STATUS_OK), STATUS_OK);
        } else
            n_runs++; // folder numbers stay equal on all ranks
        for (int stage = 0; stage <= 3; stage++) {
            struct run_outcome together = train(comm, format, optimizers[i], stage);
            double worst = 0;
            for (size_t k = 0; k < together.n_weights; k++)
                worst = fmax(worst, fabs((double)together.weights[k] - (double)alone.weights[k]));
            // Weights and gradients are below 1: a few roundings in the sum over twelve sequences.
            together_true(comm, comm->rank > 0 || (together.n_weights == alone.n_weights && worst < 2e-6));
            outcome_free(&together);
        }
        outcome_free(&alone);
    }
}

// A loss scale so large that gradients overflow until it has been halved often enough. Skipped steps change
// nothing, not even the step count of Adam and the schedule: the run then has the same losses as one without
// scaling.
static void test_overflows_are_skipped_everywhere(void **state) {
    (void)state;
    const char *format = "train.max_steps=%d train.train_batch_size=12 train.gradient_accumulation_steps=1 "
                         "train.overfit_one_batch=true train.gradient_clipping=0 scheduler.type=constant "
                         "scheduler.warmup_steps=4 zero_optimization.stage=%d %s";
    const char *scaled = "fp16.loss_scaling=on fp16.initial_scale_power=140 fp16.loss_scale_window=100";
    struct run_outcome plain = train(comm, format, 8, 0, ""), first = {0};
    for (int stage = 0; stage <= 3; stage++) {
        struct run_outcome outcome = train(comm, format, 30, stage, scaled);
        int skipped = 0;
        while (comm->rank == 0 && skipped + 1 < outcome.n_steps &&
               outcome.losses[skipped] == outcome.losses[skipped + 1])
            skipped++;
        bool right = comm->rank > 0 || (skipped >= 3 && skipped <= 22);
        for (int step = 0; step < 8 && comm->rank == 0 && right; step++)
            right = outcome.losses[skipped + step] == plain.losses[step];
        together_true(comm, right);
        outcome_free(&first);
        first = outcome;
    }
    outcome_free(&first);
    outcome_free(&plain);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages_buckets_and_overlap),
        cmocka_unit_test(test_accumulation),
        cmocka_unit_test(test_prefetch_and_persistence),
        cmocka_unit_test(test_recompute_levels),
        cmocka_unit_test(test_communication_dtype),
        cmocka_unit_test(test_fp16),
        cmocka_unit_test(test_tiny_tensors_and_idle_ranks),
        cmocka_unit_test(test_update_reveals_the_gradient),
        cmocka_unit_test(test_overflows_are_skipped_everywhere),
    };
    return runs_main(tests);
}
