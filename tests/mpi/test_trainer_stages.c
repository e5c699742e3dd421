// Every stage is the same run. Whole training runs on all ranks must have bitwise equal losses, norms (as
// text) and weights, whatever the stage, bucket sizes, overlap, prefetch and persistence. Bytes sent and
// memory used must be as planned. Run with 1, 2, 3 and 4 ranks.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/mpi/together.h"
#include "trainer/trainer.h"
#include "trainer/trainer_internal.h"

static struct comm *comm;
static struct temporary temporary;

#define MAX_STEPS     30
#define FEW_STEPS     6 // of the first grid, unless ZERO_TESTS_FULL is set
#define MAX_OVERRIDES 24

// The results of a run; empty on ranks other than 0.
struct run_outcome {
    char *curve; // the text of each step's loss and norm
    double losses[MAX_STEPS];
    int n_steps;
    float *weights; // master weights and moments, unit by unit, kind by kind
    size_t n_weights;
    bool as_planned; // bytes and calls of every step, and memory by kind
};

static void outcome_free(struct run_outcome *outcome) {
    free(outcome->curve);
    free(outcome->weights);
    *outcome = (struct run_outcome){0};
}

static void read_curve(const char *run, struct run_outcome *outcome) {
    char path[512], *text, *rest;
    size_t bytes;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    if (file_read(path, 1 << 24, &text, &bytes) != STATUS_OK)
        return;
    struct text curve = {0};
    outcome->as_planned = true;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *begin = strstr(line, "\"loss\":"), *end = strstr(line, ", \"lr\"");
        unsigned long long sent = 0, planned = 1, calls = 0, calls_planned = 1;
        if (!begin || !end)
            continue;
        outcome->losses[outcome->n_steps++] = strtod(begin + 7, NULL);
        text_add_bytes(&curve, begin, (size_t)(end - begin));
        text_add(&curve, "\n");
        // Compares the two JSON objects byte for byte.
        static const char as_planned[] = "\"model_memory_planned\": ", as_measured[] = "\"model_memory\": ";
        const char *memory_planned = strstr(line, as_planned), *memory = strstr(line, as_measured);
        memory_planned += strlen(as_planned);
        memory += strlen(as_measured);
        bool same = strncmp(memory_planned, memory, strcspn(memory, "}")) == 0;
        sscanf(strstr(line, "\"comm_bytes\""), "\"comm_bytes\": %llu, \"comm_planned_bytes\": %llu", &sent,
               &planned);
        sscanf(strstr(line, "\"comm_calls\""), "\"comm_calls\": %llu, \"comm_planned_calls\": %llu", &calls,
               &calls_planned);
        if (!same || sent != planned || calls != calls_planned)
            print_error("not as planned: %s\n", line);
        outcome->as_planned = outcome->as_planned && same && sent == planned && calls == calls_planned;
    }
    outcome->curve = curve.data;
    free(text);
}

static void read_weights(const char *run, struct run_outcome *outcome) {
    struct checkpoint *checkpoint;
    if (checkpoint_open_path(NULL, run, &checkpoint) != STATUS_OK)
        return;
    const struct checkpoint_layout *layout = &checkpoint->layout;
    outcome->n_weights = checkpoint->params.n_elements * (size_t)checkpoint->kinds.n;
    for (int i = 0; i < layout->n_matrices; i++)
        outcome->n_weights += layout->matrices[i].values;
    outcome->weights = calloc(outcome->n_weights, sizeof(float));
    float *to = outcome->weights;
    for (int unit = 0; unit < checkpoint->params.n_units; unit++)
        for (int kind = 0; kind < checkpoint->kinds.n; kind++) {
            size_t elements = checkpoint->params.units[unit].elements;
            if (checkpoint_read_span(checkpoint, (enum checkpoint_kind)kind, unit, 0, elements, to) !=
                STATUS_OK)
                outcome->n_weights = 0;
            to += elements;
        }
    size_t begin = 0; // of a matrix's preconditioners among those of its unit
    for (int i = 0; i < layout->n_matrices; to += layout->matrices[i++].values) {
        const int unit = checkpoint->params.params[layout->matrices[i].param].unit;
        const bool next = i > 0 && checkpoint->params.params[layout->matrices[i - 1].param].unit == unit;
        begin = next ? begin + layout->matrices[i - 1].values : 0;
        if (checkpoint_read_span(checkpoint, CHECKPOINT_PRECONDITIONERS, unit, begin,
                                 begin + layout->matrices[i].values, to) != STATUS_OK)
            outcome->n_weights = 0;
    }
    checkpoint_close(checkpoint);
}

// Trains with these overrides (split at spaces) on all ranks of `with`. Rank 0 reads the results.
static int n_runs;

static struct run_outcome train(struct comm *with, const char *format, ...) {
    char words[2048], run[300], run_dir[320], *overrides[MAX_OVERRIDES] = {run_dir}, *rest;
    struct run_outcome outcome = {0};
    va_list list;
    va_start(list, format);
    vsnprintf(words, sizeof words, format, list);
    va_end(list);
    snprintf(run, sizeof run, "%s/run-%d", temporary.folder, n_runs++);
    snprintf(run_dir, sizeof run_dir, "run.dir=%s", run);
    int n = 1;
    for (char *word = strtok_r(words, " ", &rest); word && n < MAX_OVERRIDES;
         word = strtok_r(NULL, " ", &rest))
        overrides[n++] = word;
    char path[300];
    struct config config;
    enum status status =
        config_read(&config, temporary_path(&temporary, "c.json", path, sizeof path), n, overrides);
    if (status == STATUS_OK)
        status = trainer_run(&config, "./train", with);
    config_free(&config);
    if (with == comm)
        together_ok(comm, status);
    if (status == STATUS_OK && comm->rank == 0) {
        read_curve(run, &outcome);
        read_weights(run, &outcome);
        status = file_remove_tree(run);
    }
    return outcome;
}

static bool same_bits(const struct run_outcome *a, const struct run_outcome *b) {
    return a->n_steps > 0 && a->n_steps == b->n_steps && strcmp(a->curve, b->curve) == 0 &&
           a->n_weights > 0 && a->n_weights == b->n_weights &&
           memcmp(a->weights, b->weights, a->n_weights * sizeof *a->weights) == 0;
}

// The run must be as planned and bitwise equal to *first. If *first is empty, it becomes *first.
static void expect_same(struct run_outcome *first, struct run_outcome outcome, const char *what) {
    bool good = comm->rank > 0 || outcome.as_planned;
    if (comm->rank == 0 && first->curve)
        good = good && same_bits(first, &outcome);
    if (!good)
        print_error("differs from the first run or from its plan: %s\n", what);
    together_true(comm, good);
    if (first->curve || comm->rank > 0)
        outcome_free(&outcome);
    else
        *first = outcome;
}

// Steps of each run in the first grid.
static int grid_steps(void) {
    return getenv("ZERO_TESTS_FULL") ? MAX_STEPS : FEW_STEPS;
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
    for (int i = 0; i < 3; i++)
        grid(partitions[i], "fp32", &first[i]);
    bool near = true;
    for (int i = 1; i < 3 && comm->rank == 0; i++)
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
        for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
            expect_same(&first,
                        train(comm,
                              "train.max_steps=8 train.train_batch_size=12 "
                              "train.gradient_accumulation_steps=1 zero_optimization.partition=%s %s",
                              partition ? "tensor" : "even", variants[i]),
                        variants[i]);
        outcome_free(&first);
    }
}

// Blocks that are gathered and reduced group by group: the run is as planned and bitwise equal with every
// recompute level (which gathers again), with and without prefetch, and with small buckets.
static void test_blocks_by_group(void **state) {
    (void)state;
    static const struct {
        int stage;
        long long max_live, persistence;
        const char *more;
    } variants[] = {
        {2, 0, 0, ""},
        {3, 1000000000, 0, "recompute=block"},
        {3, 0, 0, ""},
        {3, 0, 0, "recompute=none"},
        {3, 0, 0, "recompute=attention"},
        {3, 0, 0, "recompute=block"},
        {3, 0, 0, "recompute=block zero_optimization.overlap_comm=false"},
        {3, 0, 0, "recompute=block zero_optimization.stage3_prefetch_bucket_size=0"},
        {3, 0, 0,
         "recompute=block zero_optimization.reduce_bucket_size=777 "
         "zero_optimization.allgather_bucket_size=333"},
        {3, 0, 400, "recompute=attention"},
        {3, 0, 1300, "recompute=elementwise"},
        {3, 0, 100000, "recompute=block"},
    };
    for (int layers = 1; layers <= 3; layers += 2)
        for (int partition = 0; partition < N_PARTITIONS; partition++) {
            struct run_outcome first = {0};
            for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
                expect_same(&first,
                            train(comm,
                                  "model.n_layer=%d precision.compute=%s train.max_steps=4 "
                                  "train.train_batch_size=24 train.gradient_accumulation_steps=2 "
                                  "zero_optimization.partition=%s zero_optimization.stage=%d "
                                  "zero_optimization.stage3_max_live_parameters=%lld "
                                  "zero_optimization.stage3_param_persistence_threshold=%lld %s",
                                  layers, partition ? "fp32" : "bf16",
                                  partition_name((enum partition_kind)partition), variants[i].stage,
                                  variants[i].max_live, variants[i].persistence, variants[i].more),
                            variants[i].more);
            outcome_free(&first);
        }
}

// Every optimizer and state dtype. Quantization blocks of int8 states never cross spans, in any partition.
static void test_optimizers(void **state) {
    (void)state;
    static const char *const variants[] = {
        "optimizer.type=lion", "optimizer.type=adam optimizer.state_dtype=bf16",
        "optimizer.type=sgd optimizer.state_dtype=int8", "optimizer.type=adamw optimizer.state_dtype=int8",
        "optimizer.type=adafactor"};
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        struct run_outcome first = {0};
        for (int stage = 0; stage <= 3; stage++)
            expect_same(&first,
                        train(comm,
                              "%s precision.compute=bf16 train.max_steps=6 train.train_batch_size=12 "
                              "train.gradient_accumulation_steps=1 zero_optimization.stage=%d "
                              "zero_optimization.partition=%s",
                              variants[i], stage, i % 2 ? "tensor" : "even"),
                        variants[i]);
        outcome_free(&first);
    }
}

// Muon: each matrix is orthogonalized by one rank, from the same bits in every stage, whatever the partition
// sends. The momentum in every dtype.
static void test_muon(void **state) {
    (void)state;
    static const char *const variants[] = {
        "precision.compute=bf16",
        "precision.compute=fp32 optimizer.state_dtype=int8",
        ("precision.compute=fp16 optimizer.state_dtype=bf16 optimizer.muon_scale=jordan "
         "optimizer.adamw_lr=0.002"),
    };
    for (int partition = 0; partition < N_PARTITIONS; partition++) {
        struct run_outcome first = {0};
        for (int stage = 0; stage <= 3; stage++)
            expect_same(&first,
                        train(comm,
                              "%s optimizer.type=muon train.max_steps=5 train.train_batch_size=12 "
                              "train.gradient_accumulation_steps=1 zero_optimization.stage=%d "
                              "zero_optimization.partition=%s zero_optimization.overlap_comm=%s",
                              variants[partition], stage, partition_name((enum partition_kind)partition),
                              stage % 2 ? "true" : "false"),
                        variants[partition]);
        together_true(comm, comm->rank > 0 || first.losses[4] < first.losses[0]);
        outcome_free(&first);
    }
}

// Groups of tensors with rates and decays of their own, or frozen: with partition layer a rank may own frozen
// tensors only.
static void test_groups(void **state) {
    (void)state;
    static const char *const variants[N_PARTITIONS] = {
        "precision.compute=bf16 optimizer.groups=[{\"match\":\"h.0.attn.*\",\"freeze\":true},"
        "{\"match\":[\"*.bias\",\"*ln_*\"],\"lr\":0.004,\"weight_decay\":0.2}]",
        "optimizer.type=adafactor optimizer.groups=[{\"match\":\"w*\",\"freeze\":true},"
        "{\"match\":[\"h.0.*\",\"ln_f.*\"],\"freeze\":true},{\"match\":\"*.bias\",\"lr\":0.004}]",
        "optimizer.type=muon precision.compute=fp16 fp16.initial_scale_power=26 optimizer.state_dtype=int8 "
        "optimizer.groups=[{\"match\":\"h.?.mlp.c_fc.*\",\"freeze\":true},"
        "{\"match\":\"h.0.attn.*\",\"type\":\"adamw\",\"lr\":0.002}]",
    };
    for (int partition = 0; partition < N_PARTITIONS; partition++) {
        struct run_outcome first = {0};
        for (int stage = 0; stage <= 3; stage++)
            expect_same(&first,
                        train(comm,
                              "%s train.max_steps=4 train.train_batch_size=12 model.n_layer=2 "
                              "train.gradient_accumulation_steps=1 zero_optimization.stage=%d "
                              "zero_optimization.partition=%s zero_optimization.overlap_comm=%s",
                              variants[partition], stage, partition_name((enum partition_kind)partition),
                              stage % 2 ? "true" : "false"),
                        variants[partition]);
        outcome_free(&first);
    }
}

// SOAP: each matrix has one rank with all its states, which differs by stage and partition. Refreshes of both
// kinds of bases, with and without a longest side, and steps that are skipped (fp16).
static void test_soap(void **state) {
    (void)state;
    static const char *const variants[] = {
        "precision.compute=fp32",
        "precision.compute=bf16 optimizer.state_dtype=int8 optimizer.max_precond_dim=20",
        "precision.compute=fp16 fp16.initial_scale_power=24 fp16.hysteresis=1 optimizer.adamw_lr=0.002",
    };
    for (int partition = 0; partition < N_PARTITIONS; partition++) {
        struct run_outcome first = {0};
        for (int stage = 0; stage <= 3; stage++)
            expect_same(&first,
                        train(comm,
                              "%s optimizer.type=soap optimizer.precondition_frequency=2 "
                              "train.max_steps=6 train.train_batch_size=12 "
                              "train.gradient_accumulation_steps=1 zero_optimization.stage=%d "
                              "zero_optimization.partition=%s zero_optimization.overlap_comm=%s",
                              variants[partition], stage, partition_name((enum partition_kind)partition),
                              stage % 2 ? "true" : "false"),
                        variants[partition]);
        together_true(comm, comm->rank > 0 || first.losses[5] < first.losses[0]);
        outcome_free(&first);
    }
}

// LAMB: norms of layers of which each rank has a part, q, k and v apart. Tensors without decay, frozen ones,
// those that AdamW updates, and steps that are skipped (fp16).
static void test_lamb(void **state) {
    (void)state;
    static const char *const variants[N_PARTITIONS] = {
        "precision.compute=fp32 optimizer.trust_ratio=[0.5,1]",
        "precision.compute=bf16 optimizer.state_dtype=int8 "
        "optimizer.groups=[{\"match\":\"wpe*\",\"freeze\":true},"
        "{\"match\":\"h.0.attn.*\",\"weight_decay\":0.2},{\"match\":\"h.1.mlp.*\",\"type\":\"adamw\"}]",
        "precision.compute=fp16 fp16.initial_scale_power=24 fp16.hysteresis=1 optimizer.state_dtype=bf16",
    };
    for (int partition = 0; partition < N_PARTITIONS; partition++) {
        struct run_outcome first = {0};
        for (int stage = 0; stage <= 3; stage++)
            expect_same(&first,
                        train(comm,
                              "%s optimizer.type=lamb optimizer.lr=0.01 train.max_steps=6 "
                              "train.train_batch_size=12 train.gradient_accumulation_steps=1 model.n_layer=2 "
                              "zero_optimization.stage=%d zero_optimization.partition=%s "
                              "zero_optimization.overlap_comm=%s",
                              variants[partition], stage, partition_name((enum partition_kind)partition),
                              stage % 2 ? "true" : "false"),
                        variants[partition]);
        together_true(comm, comm->rank > 0 || first.losses[5] < first.losses[0]);
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
            for (int stage = 0; stage <= 3; stage++)
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
            struct comm *self;
            assert_int_equal(comm_open_self(&self), STATUS_OK);
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

// ---- setting up

static const char config_json[] =
    "{\"device\": \"cpu\", \"model\": {\"n_layer\": 2, \"n_head\": 2, \"n_embd\": 20, \"vocab_size\": 61, "
    "\"n_positions\": 8}, \"data\": {\"train\": \"%s/tokens.bin\"}, \"precision\": {\"compute\": \"fp32\"}, "
    "\"optimizer\": {\"lr\": 0.01}, \"train\": {\"gradient_clipping\": 0.7, \"eval_every\": 0}, "
    "\"scheduler\": {\"warmup_steps\": 0}, \"checkpoint\": {\"every\": 0}, \"run\": {\"threads\": 1}}";

static enum status make_inputs(void) {
    enum { N = 6000 };
    static char shard[1024 + 2 * N];
    const int32_t header[3] = {20240520, 1, N};
    memcpy(shard, header, sizeof header);
    uint32_t random = 1;
    for (int i = 0; i < N; i++) {
        random = random * 1664525 + 1013904223;
        shard[1024 + 2 * i] = (char)((random >> 24) % 61 * ((random >> 16) % 4) /
                                     3); // a skewed distribution: there is much to learn
    }
    char path[300], json[1024];
    snprintf(json, sizeof json, config_json, temporary.folder);
    TRY(file_write_all(temporary_path(&temporary, "tokens.bin", path, sizeof path), shard, sizeof shard));
    return file_write_all(temporary_path(&temporary, "c.json", path, sizeof path), json, strlen(json));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages_buckets_and_overlap),
        cmocka_unit_test(test_accumulation),
        cmocka_unit_test(test_prefetch_and_persistence),
        cmocka_unit_test(test_blocks_by_group),
        cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_muon),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_soap),
        cmocka_unit_test(test_lamb),
        cmocka_unit_test(test_communication_dtype),
        cmocka_unit_test(test_fp16),
        cmocka_unit_test(test_tiny_tensors_and_idle_ranks),
        cmocka_unit_test(test_update_reveals_the_gradient),
        cmocka_unit_test(test_overflows_are_skipped_everywhere),
    };
    return together_main(&comm, &temporary, make_inputs, tests);
}
