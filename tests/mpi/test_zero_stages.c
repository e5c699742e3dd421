// Every stage is the same run: whole training runs by all ranks, whose losses, norms (as text) and weights
// must be equal to the bit over stages, buckets, overlap, prefetch and persistence; bytes sent and memory
// taken must be what was planned. Run by 1, 2, 3 and 4 ranks.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tests/mpi/together.h"
#include "tests/support/temporary.h"
#include "zero/trainer.h"
#include "zero/trainer_parts.h"

static struct comm *comm;
static struct temporary temporary;

#define MOST_STEPS     30
#define MOST_OVERRIDES 24

// What a run left behind, on rank 0.
struct outcome {
    char *curve; // the text of each step's loss and norm
    double losses[MOST_STEPS];
    int n_steps;
    float *weights; // master weights and moments, unit by unit, kind by kind
    size_t n_weights;
    bool as_planned; // bytes and calls of every step, and memory by kind
};

static void outcome_free(struct outcome *outcome) {
    free(outcome->curve);
    free(outcome->weights);
    *outcome = (struct outcome){0};
}

static void read_curve(const char *run, struct outcome *outcome) {
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
        // Both objects of kinds, byte for byte.
        char *memory_planned = strstr(line, "\"memory_planned\": {"), *memory = strstr(line, "\"memory\": {");
        memory_planned += strlen("\"memory_planned\": ");
        memory += strlen("\"memory\": ");
        bool same = strncmp(memory_planned, memory, strcspn(memory, "}")) == 0;
        sscanf(strstr(line, "\"wire_bytes\""), "\"wire_bytes\": %llu, \"wire_planned_bytes\": %llu", &sent,
               &planned);
        sscanf(strstr(line, "\"wire_calls\""), "\"wire_calls\": %llu, \"wire_planned_calls\": %llu", &calls,
               &calls_planned);
        if (!same || sent != planned || calls != calls_planned)
            print_error("not as planned: %s\n", line);
        outcome->as_planned = outcome->as_planned && same && sent == planned && calls == calls_planned;
    }
    outcome->curve = curve.data;
    free(text);
}

static void read_weights(const char *run, struct outcome *outcome) {
    struct checkpoint *checkpoint;
    if (checkpoint_open_path(NULL, run, &checkpoint) != STATUS_OK)
        return;
    size_t n = checkpoint->params.n_elements;
    outcome->n_weights = n * (size_t)checkpoint->n_kinds;
    outcome->weights = calloc(outcome->n_weights, sizeof(float));
    float *to = outcome->weights;
    for (int unit = 0; unit < checkpoint->params.n_units; unit++)
        for (int kind = 0; kind < checkpoint->n_kinds; kind++) {
            size_t elements = checkpoint->params.units[unit].elements;
            if (checkpoint_read_span(checkpoint, (enum checkpoint_kind)kind, unit, 0, elements, to) !=
                STATUS_OK)
                outcome->n_weights = 0;
            to += elements;
        }
    checkpoint_close(checkpoint);
}

// Trains with these overrides, split at spaces, on all ranks of `with`; rank 0 reads what came of it.
static int n_runs;

static struct outcome train(struct comm *with, const char *format, ...) {
    char words[2048], run[300], run_dir[320], *overrides[MOST_OVERRIDES] = {run_dir}, *rest;
    struct outcome outcome = {0};
    va_list list;
    va_start(list, format);
    vsnprintf(words, sizeof words, format, list);
    va_end(list);
    snprintf(run, sizeof run, "%s/run-%d", temporary.folder, n_runs++);
    snprintf(run_dir, sizeof run_dir, "run.dir=%s", run);
    int n = 1;
    for (char *word = strtok_r(words, " ", &rest); word && n < MOST_OVERRIDES;
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

static bool same_bits(const struct outcome *a, const struct outcome *b) {
    return a->n_steps > 0 && a->n_steps == b->n_steps && strcmp(a->curve, b->curve) == 0 &&
           a->n_weights > 0 && a->n_weights == b->n_weights &&
           memcmp(a->weights, b->weights, a->n_weights * sizeof *a->weights) == 0;
}

// The run must be as planned and equal to the first of its kind, which it becomes where there is none.
static void expect_same(struct outcome *first, struct outcome outcome, const char *what) {
    bool good = comm->rank > 0 || outcome.as_planned;
    if (comm->rank == 0 && first->curve)
        good = good && same_bits(first, &outcome);
    if (!good)
        print_error("differs, or is not as planned: %s\n", what);
    together_true(comm, good);
    if (first->curve || comm->rank > 0)
        outcome_free(&outcome);
    else
        *first = outcome;
}

// All stages, with large and small buckets, with and without overlap.
static void grid(const char *partition, const char *precision, struct outcome *first) {
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
                      "precision.compute=%s train.max_steps=30 train.train_batch_size=12 "
                      "train.micro_batch_size=%d zero_optimization.partition=%s zero_optimization.stage=%d "
                      "zero_optimization.reduce_bucket_size=%lld "
                      "zero_optimization.allgather_bucket_size=%lld zero_optimization.overlap_comm=%s "
                      "zero_optimization.stage3_param_persistence_threshold=400",
                      precision, 12 / comm->world, partition, stage, bucket, bucket, overlap),
                what);
        }
}

static void test_stages_buckets_and_overlap(void **state) {
    (void)state;
    static const char *const partitions[] = {"even", "layer", "tensor"};
    struct outcome first[3] = {0}, rounded = {0};
    for (int i = 0; i < 3; i++)
        grid(partitions[i], "fp32", &first[i]);
    bool near = true;
    for (int i = 1; i < 3 && comm->rank == 0; i++)
        for (int step = 0; step < MOST_STEPS; step++)
            near =
                near && fabs(first[i].losses[step] - first[0].losses[step]) <= 1e-6 * first[0].losses[step];
    together_true(comm, near); // partitions order the norm's sum differently
    together_true(comm, comm->rank > 0 || first[0].losses[29] < first[0].losses[0]);
    grid("even", "bf16", &rounded);
    for (int i = 0; i < 3; i++)
        outcome_free(&first[i]);
    outcome_free(&rounded);
}

static void test_accumulation(void **state) {
    (void)state;
    struct outcome once = {0}, each = {0};
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
    // k micro-batches equal one batch of k times the size, to rounding.
    struct outcome whole = train(comm,
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
        struct outcome first = {0};
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

// Every rule and type of state; int8's blocks lie within spans, whatever the partition.
static void test_optimizers(void **state) {
    (void)state;
    static const char *const variants[] = {
        "optimizer.type=lion", "optimizer.type=adam optimizer.state_dtype=bf16",
        "optimizer.type=sgd optimizer.state_dtype=int8", "optimizer.type=adamw optimizer.state_dtype=int8"};
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        struct outcome first = {0};
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

// Gradients that travel as bf16 or fp16: other bits than fp32, the same in every stage.
static void test_narrow_gradients(void **state) {
    (void)state;
    static const char *const variants[] = {"communication_data_type=bf16",
                                           "communication_data_type=fp16 fp16.loss_scaling=on"};
    for (int i = 0; i < 2; i++) {
        struct outcome first = {0};
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

// fp16 from a scale at which gradients overflow: steps are skipped, then it trains, the same in every stage.
static void test_fp16(void **state) {
    (void)state;
    static const char *const variants[] = {
        "zero_optimization.stage=0",
        "zero_optimization.stage=1 zero_optimization.overlap_comm=false",
        "zero_optimization.stage=2 zero_optimization.reduce_bucket_size=1001",
        "zero_optimization.stage=3 zero_optimization.stage3_param_persistence_threshold=400",
    };
    struct outcome first = {0};
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

// A hundred and more tensors, each smaller than an alignment; and three units only, so that with whole layers
// a fourth rank owns nothing.
static void test_tiny_tensors_and_idle_ranks(void **state) {
    (void)state;
    for (int layers = 1; layers <= 9; layers += 8)
        for (int partition = 0; partition < N_PARTITIONS; partition++) {
            struct outcome first = {0};
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

// One step of AdamW without memory, or of plain SGD, shows the gradient: N ranks must have that of one.
static void test_the_update_shows_the_gradient(void **state) {
    (void)state;
    static const char *const optimizers[] = {
        "optimizer.type=sgd optimizer.momentum=0 optimizer.lr=1",
        "optimizer.betas=[0,0] optimizer.eps=1 optimizer.lr=1",
    };
    for (int i = 0; i < 2; i++) {
        const char *format = "%s optimizer.weight_decay=0 train.gradient_clipping=0 scheduler.type=constant "
                             "train.max_steps=1 train.train_batch_size=12 train.micro_batch_size=1 "
                             "zero_optimization.stage=%d";
        struct outcome alone = {0};
        if (comm->rank == 0) {
            struct comm *self;
            assert_int_equal(comm_open_self(&self), STATUS_OK);
            alone = train(self, format, optimizers[i], 0);
            assert_int_equal(comm_close(self, STATUS_OK), STATUS_OK);
        } else
            n_runs++; // its folder
        for (int stage = 0; stage <= 3; stage++) {
            struct outcome together = train(comm, format, optimizers[i], stage);
            double worst = 0;
            for (size_t k = 0; k < together.n_weights; k++)
                worst = fmax(worst, fabs((double)together.weights[k] - (double)alone.weights[k]));
            // Weights below 1 and gradients below 1: a few roundings of twelve shares.
            together_true(comm, comm->rank > 0 || (together.n_weights == alone.n_weights && worst < 2e-6));
            outcome_free(&together);
        }
        outcome_free(&alone);
    }
}

// A scale so large that gradients overflow until it has been halved often enough: those steps change nothing,
// and then the run is the one without scaling, to the bit, Adam's and the schedule's count of steps included.
static void test_overflows_are_skipped_everywhere(void **state) {
    (void)state;
    const char *format = "train.max_steps=%d train.train_batch_size=12 train.gradient_accumulation_steps=1 "
                         "train.overfit_one_batch=true train.gradient_clipping=0 scheduler.type=constant "
                         "scheduler.warmup_steps=4 zero_optimization.stage=%d %s";
    const char *scaled = "fp16.loss_scaling=on fp16.initial_scale_power=140 fp16.loss_scale_window=100";
    struct outcome plain = train(comm, format, 8, 0, ""), first = {0};
    for (int stage = 0; stage <= 3; stage++) {
        struct outcome outcome = train(comm, format, 30, stage, scaled);
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

// ---- parts of a run, without its loop

struct rig {
    struct config config;
    struct params params;
    struct parts parts;
    struct memory memory;
    struct device *device;
    struct stream stream;
};

static void rig_init(struct rig *rig, int stage, const char *partition, enum dtype type) {
    char json[512];
    *rig = (struct rig){0};
    snprintf(json, sizeof json,
             "{\"zero_optimization\": {\"stage\": %d, \"partition\": \"%s\"}, \"model\": {\"n_layer\": 3, "
             "\"n_head\": 1, \"n_embd\": 24, \"vocab_size\": 91, \"n_positions\": 8}, \"train\": "
             "{\"micro_batch_size\": 1}}",
             stage, partition);
    together_ok(comm, config_parse(&rig->config, json, strlen(json), "json"));
    together_ok(comm, config_resolve(&rig->config, comm->world));
    together_ok(comm, params_init(&rig->params, &(struct gpt_config){3, 1, 24, 91, 8}));
    together_ok(comm, device_open("cpu", 1, 0, &rig->device));
    rig->stream.device = rig->device;
    memory_init(&rig->memory, rig->device);
    const struct plan_request request = {.config = &rig->config,
                                         .params = &rig->params,
                                         .type = type,
                                         .device = rig->device,
                                         .rank = comm->rank,
                                         .world = comm->world,
                                         .local_world = comm->local_world};
    together_ok(comm, parts_plan(&rig->parts, &request, &rig->memory.table));
    together_ok(comm, memory_allocate(&rig->memory));
    together_ok(comm, comm_attach(comm, rig->device, true));
    together_ok(comm, parts_bind(&rig->parts, &rig->memory.table, &rig->stream, comm, rig->device));
}

static void rig_free(struct rig *rig) {
    parts_free(&rig->parts);
    comm_detach(comm);
    memory_free(&rig->memory);
    device_close(rig->device);
    params_free(&rig->params);
    config_free(&rig->config);
}

// ---- saving what was loaded

static float value_of(enum checkpoint_kind kind, int unit, size_t element) {
    return (float)sin(kind * 2.1 + unit * 0.7 + (double)element * 0.013);
}

static enum status read_values(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                               float *out) {
    (void)context;
    for (size_t i = begin; i < end; i++)
        out[i - begin] = value_of(kind, unit, i);
    return STATUS_OK;
}

static bool holds_values(const char *folder) {
    struct checkpoint *checkpoint;
    if (checkpoint_open_path(NULL, folder, &checkpoint) != STATUS_OK)
        return false;
    bool right = checkpoint->world == comm->world && checkpoint->n_kinds == 3;
    for (int unit = 0; unit < checkpoint->params.n_units; unit++)
        for (int kind = 0; kind < 3; kind++) {
            size_t n = checkpoint->params.units[unit].elements;
            float *values = malloc(n * sizeof *values);
            right = right && checkpoint_read_span(checkpoint, (enum checkpoint_kind)kind, unit, 0, n,
                                                  values) == STATUS_OK;
            for (size_t i = 0; i < n && right; i++)
                right = values[i] == value_of((enum checkpoint_kind)kind, unit, i);
            free(values);
        }
    checkpoint_close(checkpoint);
    return right;
}

static void test_saving_at_once_after_loading(void **state) {
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int partition = 0; partition < N_PARTITIONS; partition++) {
            struct rig rig;
            char folder[300];
            enum dtype type = (enum dtype)(partition % N_COMPUTE_DTYPES);
            rig_init(&rig, stage, partition_name((enum partition_kind)partition), type);
            struct state *states = &rig.parts.state;
            together_ok(
                comm, state_load(states, &rig.stream, &(struct checkpoint_source){NULL, read_values}, true));
            struct state_reader reader = {states, &rig.stream};
            const struct checkpoint_contents contents = {.comm = comm,
                                                         .partition = &states->partition,
                                                         .step = 7,
                                                         .config = &rig.config,
                                                         .params = &rig.params,
                                                         .compute = type,
                                                         .n_kinds = states->tiers.n_kinds,
                                                         .source = state_source(&reader)};
            temporary_path(&temporary, "saved", folder, sizeof folder);
            together_ok(comm, checkpoint_write(folder, &contents));
            together_true(comm, comm->rank > 0 || holds_values(folder));
            together_ok(comm, comm->rank > 0 ? STATUS_OK : file_remove_tree(folder));
            rig_free(&rig);
        }
}

// ---- gradients put in by hand

// What rank r adds at element i of the model.
static float gradient_of(int rank, size_t i) {
    return (float)sin((double)i * 0.37 + rank * 1.9) * (float)(1 << (i + (size_t)rank) % 9);
}

// The norm after one step of such gradients, `bad` at one place on the last rank.
static double norm_of(int stage, const char *partition, float bad) {
    struct rig rig;
    double norm = 0;
    rig_init(&rig, stage, partition, DTYPE_F32);
    const struct params *params = &rig.params;
    const struct state *states = &rig.parts.state;
    struct gradients *gradients = &rig.parts.state.gradients;
    together_ok(comm, gradients_begin(gradients, &rig.stream, 0, 1));
    for (int unit = params->n_units - 1; unit >= 0; unit--) {
        float *to;
        together_ok(comm, gradients_acquire(gradients, &rig.stream, unit, &to));
        for (size_t i = 0; i < params->units[unit].elements; i++)
            to[i] = gradient_of(comm->rank, params->units[unit].offset + i);
        if (unit == 1 && comm->rank == comm->world - 1 && bad != 0)
            to[5] = bad;
        together_ok(comm, gradients_ready(gradients, &rig.stream, unit));
    }
    together_ok(comm, gradients_finish(gradients, &rig.stream));
    bool right = true;
    for (int k = 0; k < states->owned.n && bad == 0; k++) {
        const struct stage_span *span = &states->owned.spans[k];
        const float *sums = gradients_at(gradients, span);
        for (size_t i = 0; i < span->end - span->begin; i++) {
            float sum = gradient_of(0, span->in_whole + i);
            for (int rank = 1; rank < comm->world; rank++)
                sum += gradient_of(rank, span->in_whole + i);
            right = right && sums[i] == sum;
        }
    }
    together_true(comm, right);
    together_ok(comm, optimizer_norm(&rig.parts.optimizer, &rig.stream, &norm));
    double of_rank_0 = norm;
    together_ok(comm, comm_broadcast(comm, &of_rank_0, sizeof of_rank_0, 0));
    together_true(comm, memcmp(&norm, &of_rank_0, sizeof norm) == 0); // the same bits everywhere
    rig_free(&rig);
    return norm;
}

static void test_the_norm_is_the_same_everywhere(void **state) {
    (void)state;
    for (int partition = 0; partition < N_PARTITIONS; partition++) {
        const char *name = partition_name((enum partition_kind)partition);
        double first = norm_of(0, name, 0);
        together_true(comm, isfinite(first) && first > 0);
        for (int stage = 1; stage <= 3; stage++)
            together_true(comm, norm_of(stage, name, 0) == first);
        for (int stage = 0; stage <= 3; stage++) { // bad numbers on one rank are bad for all
            together_true(comm, isnan(norm_of(stage, name, NAN)));
            together_true(comm, isinf(norm_of(stage, name, INFINITY)));
        }
    }
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
        shard[1024 + 2 * i] =
            (char)((random >> 24) % 61 * ((random >> 16) % 4) / 3); // uneven: there is much to learn
    }
    char path[300], json[1024];
    snprintf(json, sizeof json, config_json, temporary.folder);
    TRY(file_write_all(temporary_path(&temporary, "tokens.bin", path, sizeof path), shard, sizeof shard));
    return file_write_all(temporary_path(&temporary, "c.json", path, sizeof path), json, strlen(json));
}

static enum status set_up(void) {
    if (comm->rank == 0 && !temporary_init(&temporary))
        return FAIL(STATUS_FAILED, "cannot make a temporary folder");
    TRY(comm_broadcast(comm, &temporary, sizeof temporary, 0));
    TRY(comm->rank == 0 ? make_inputs() : STATUS_OK);
    log_set_level(LOG_ERROR);
    return comm_barrier(comm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages_buckets_and_overlap),
        cmocka_unit_test(test_accumulation),
        cmocka_unit_test(test_prefetch_and_persistence),
        cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_narrow_gradients),
        cmocka_unit_test(test_fp16),
        cmocka_unit_test(test_tiny_tensors_and_idle_ranks),
        cmocka_unit_test(test_the_update_shows_the_gradient),
        cmocka_unit_test(test_overflows_are_skipped_everywhere),
        cmocka_unit_test(test_saving_at_once_after_loading),
        cmocka_unit_test(test_the_norm_is_the_same_everywhere),
    };
    if (comm_open(&(struct comm_options){.shared_memory = true}, &comm) != STATUS_OK ||
        set_up() != STATUS_OK) {
        print_error("%s\n", status_message());
        return 1;
    }
    together_quiet(comm);
    char name[64];
    snprintf(name, sizeof name, "%d ranks", comm->world);
    int failed = cmocka_run_group_tests_name(name, tests, NULL, NULL);
    bool removed = comm->rank > 0 || temporary_free(&temporary);
    (void)comm_close(comm, STATUS_OK);
    return failed + !removed;
}
