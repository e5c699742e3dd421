// Whole training runs on all ranks, for tests that compare them: each trains a small model with some
// overrides, and its losses, norms and weights must be bitwise those of the first. A program includes this
// once, and its main function ends with runs_main.
#ifndef ZERO_TESTS_MPI_TRAINING_RUNS_H
#define ZERO_TESTS_MPI_TRAINING_RUNS_H

#include <stdlib.h>
#include <string.h>

#include "tests/mpi/together.h"
#include "trainer/trainer.h"
#include "zero/checkpoint/checkpoint.h"

static struct comm *comm;
static struct temporary temporary;

#define MAX_STEPS     30
#define MAX_OVERRIDES 24

// The results of a run; empty on ranks other than 0.
struct run_outcome {
    char *curve; // the text of each step's loss and norm
    double losses[MAX_STEPS];
    int n_steps;
    float *weights; // master weights, moments and average, unit by unit, kind by kind
    size_t n_weights;
    bool has_average;
    bool as_planned; // bytes and calls of every step, and memory by kind
};

static void outcome_free(struct run_outcome *outcome) {
    free(outcome->curve);
    free(outcome->weights);
    *outcome = (struct run_outcome){0};
}

// Compares the two JSON objects of each session byte for byte.
static bool memory_is_as_planned(const char *run) {
    char path[512], *text, *rest;
    size_t bytes;
    int n = 0;
    bool same = true;
    snprintf(path, sizeof path, "%s/sessions.jsonl", run);
    if (file_read(path, 1 << 24, &text, &bytes) != STATUS_OK)
        return false;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        static const char as_planned[] = "\"model_memory_planned\": ", as_measured[] = "\"model_memory\": ";
        const char *planned = strstr(line, as_planned), *memory = strstr(line, as_measured);
        if (!planned || !memory)
            continue;
        planned += strlen(as_planned);
        memory += strlen(as_measured);
        same = same && strncmp(planned, memory, strcspn(memory, "}")) == 0;
        n++;
    }
    if (!same)
        print_error("not as planned: %s\n", path);
    free(text);
    return same && n > 0;
}

static void read_curve(const char *run, struct run_outcome *outcome) {
    char path[512], *text, *rest;
    size_t bytes;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    if (file_read(path, 1 << 24, &text, &bytes) != STATUS_OK)
        return;
    struct text curve = {0};
    outcome->as_planned = memory_is_as_planned(run);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *begin = strstr(line, "\"loss\":"), *end = strstr(line, ", \"lr\"");
        unsigned long long sent = 0, planned = 1, calls = 0, calls_planned = 1;
        if (!begin || !end)
            continue;
        outcome->losses[outcome->n_steps++] = strtod(begin + 7, NULL);
        text_add_bytes(&curve, begin, (size_t)(end - begin));
        text_add(&curve, "\n");
        sscanf(strstr(line, "\"comm_bytes\""), "\"comm_bytes\": %llu, \"comm_planned_bytes\": %llu", &sent,
               &planned);
        sscanf(strstr(line, "\"comm_calls\""), "\"comm_calls\": %llu, \"comm_planned_calls\": %llu", &calls,
               &calls_planned);
        if (sent != planned || calls != calls_planned)
            print_error("not as planned: %s\n", line);
        outcome->as_planned = outcome->as_planned && sent == planned && calls == calls_planned;
    }
    outcome->curve = curve.data;
    free(text);
}

static void read_weights(const char *run, struct run_outcome *outcome) {
    struct checkpoint *checkpoint;
    if (checkpoint_open_path(NULL, run, &checkpoint) != STATUS_OK)
        return;
    const int n_kinds = checkpoint->kinds.n + checkpoint->kinds.has_average;
    outcome->has_average = checkpoint->kinds.has_average;
    outcome->n_weights = checkpoint->params.n_elements * (size_t)n_kinds;
    outcome->weights = calloc(outcome->n_weights, sizeof(float));
    float *to = outcome->weights;
    for (int unit = 0; unit < checkpoint->params.n_units; unit++)
        for (int i = 0; i < n_kinds; i++) {
            size_t elements = checkpoint->params.units[unit].elements;
            const enum checkpoint_kind kind =
                i < checkpoint->kinds.n ? (enum checkpoint_kind)i : CHECKPOINT_AVERAGE;
            if (checkpoint_read_span(checkpoint, kind, unit, 0, elements, to) != STATUS_OK)
                outcome->n_weights = 0;
            to += elements;
        }
    checkpoint_close(checkpoint);
}

// Trains with these overrides (split at spaces) on all ranks of `with`. Rank 0 reads the results.
static int n_runs;

static inline struct run_outcome train(struct comm *with, const char *format, ...) {
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
static inline void expect_same(struct run_outcome *first, struct run_outcome outcome, const char *what) {
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

// Runs the tests, with a config and tokens in a temporary folder. Returns the exit code.
#define runs_main(tests) together_main(&comm, &temporary, make_inputs, (tests))

#endif
