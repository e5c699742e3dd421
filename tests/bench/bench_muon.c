// Times Newton-Schulz iterations on the matrices of a model, in turn with a matrix product, in bf16. Of each
// shape among the matrices that Muon would update it prints their number, the time of one, FLOP/s (of the
// products as they are computed: with symmetric ones halved, where the device does so) and their median part
// of the FLOP/s of the device's GEMM, measured before and after.
// usage: bench_muon CONFIG [--device cuda] [--threads N] [--quick] [--json]
#include <stdint.h>
#include <stdio.h>

#include "base/args.h"
#include "base/clock.h"
#include "base/log.h"
#include "cli/bench/bench.h"
#include "kernels/ops.h"
#include "kernels/region_memory.h"
#include "options/config.h"
#include "trainer/plan/model_sizes.h"
#include "zero/optimizer/muon_rounds.h"
#include "zero/optimizer/rules/optimizer_groups.h"

enum { GEMM_ROWS = 4096, MOST_SHAPES = 16, MOST_ROUNDS = 15, BATCHES_AT_ONCE = 4 };
#define GEMM_SECONDS  0.15
#define SHAPE_SECONDS 0.15

// Matrices of one shape.
struct shape_bench {
    struct matrix_shape shape;
    int n; // in the model
    struct newton_schulz_batch batch;
    double seconds[MOST_ROUNDS], of_gemm[MOST_ROUNDS];
};

struct muon_bench {
    struct device *device;
    struct stream stream;
    struct region_memory memory;
    struct newton_schulz ns;
    void *matrices; // random, of the largest batch
    void *batch;    // a copy, which is orthogonalized
    int n_embd;
    struct shape_bench shapes[MOST_SHAPES];
    int n_shapes;
};

// ---- the matrices

static enum status count_matrix(struct muon_bench *bench, struct matrix_shape shape) {
    struct shape_bench *at = bench->shapes, *end = at + bench->n_shapes;
    while (at < end && (at->shape.rows != shape.rows || at->shape.columns != shape.columns))
        at++;
    if (at == bench->shapes + MOST_SHAPES)
        return FAIL(STATUS_UNSUPPORTED, "more than %d shapes of matrices", MOST_SHAPES);
    if (at == end)
        *at = (struct shape_bench){.shape = shape}, bench->n_shapes++;
    at->n++;
    return STATUS_OK;
}

static enum status list_matrices(struct muon_bench *bench, const struct config *config,
                                 const struct params *params) {
    struct optimizer_groups groups;
    enum status status = optimizer_groups_init(&groups, config, params);
    for (int i = 0; i < params->n_params && status == STATUS_OK; i++) {
        struct matrix_shape shapes[PARAM_PARTS_MOST];
        int64_t first_row[PARAM_PARTS_MOST];
        if (!optimizer_groups_orthogonalize(&groups, i))
            continue;
        const int n = muon_matrices(&params->params[i], shapes, first_row);
        for (int part = 0; part < n && status == STATUS_OK; part++)
            status = count_matrix(bench, shapes[part]);
    }
    optimizer_groups_free(&groups);
    return status;
}

static enum status read_model(struct muon_bench *bench, const char *config_path) {
    struct config config;
    struct params params = {0};
    enum status status = config_read(&config, config_path, 0, NULL);
    if (status == STATUS_OK) {
        const struct gpt_config sizes = config_model(&config);
        config.optimizer.type = CONFIG_OPTIMIZER_MUON;
        bench->n_embd = sizes.n_embd;
        status = params_init(&params, &sizes);
    }
    if (status == STATUS_OK)
        status = list_matrices(bench, &config, &params);
    if (status == STATUS_OK && bench->n_shapes == 0)
        status = FAIL(STATUS_INVALID, "%s: optimizer.groups leaves no matrix to Muon", config_path);
    params_free(&params);
    config_free(&config);
    return status;
}

// As many matrices as a batch has, or as the model has.
static enum status prepare_batch(struct muon_bench *bench, struct shape_bench *of) {
    const int most = newton_schulz_batch_size(bench->device, of->shape);
    of->batch = (struct newton_schulz_batch){.shape = of->shape,
                                             .n = of->n < most ? of->n : most,
                                             .distance = (size_t)(of->shape.rows * of->shape.columns)};
    return newton_schulz_prepare(&bench->ns, &of->batch);
}

static enum status prepare(struct muon_bench *bench) {
    const enum region_place place = bench->device->place;
    struct newton_schulz_batch kinds[MOST_SHAPES];
    int matrices, batch;
    for (int i = 0; i < bench->n_shapes; i++)
        kinds[i] = (struct newton_schulz_batch){.shape = bench->shapes[i].shape, .n = bench->shapes[i].n};
    struct region_table *table = &bench->memory.table;
    bench->ns = (struct newton_schulz){.device = bench->device, .type = DTYPE_BF16};
    TRY(newton_schulz_plan(&bench->ns, kinds, bench->n_shapes, table));
    const size_t most = bench->ns.most_elements;
    TRY(region_add(table, REGION_PARAMS, place, DTYPE_BF16, most, &matrices, "matrices"));
    TRY(region_add(table, REGION_PARAMS, place, DTYPE_BF16, most, &batch, "batch"));
    TRY(region_memory_allocate(&bench->memory));
    newton_schulz_bind(&bench->ns, table);
    for (int i = 0; i < bench->n_shapes; i++)
        TRY(prepare_batch(bench, &bench->shapes[i]));
    bench->matrices = region_data(table, matrices);
    bench->batch = region_data(table, batch);
    return device_fill_random(&bench->stream, bench->matrices, most * dtype_size(DTYPE_BF16), DTYPE_BF16);
}

// ---- measuring

static enum status gemm(const struct muon_bench *bench, double *flops_per_s) {
    struct gemm_rate rate;
    TRY(device_measure_gemm_rate(bench->device, GEMM_ROWS, bench->n_embd, DTYPE_BF16, GEMM_SECONDS, NULL,
                                 &rate));
    *flops_per_s = rate.mean;
    return STATUS_OK;
}

// So many batches; the later ones are of what the earlier ones' matrices became.
static enum status issue(struct muon_bench *bench, const struct newton_schulz_batch *batch, int n) {
    const size_t bytes = (size_t)batch->n * batch->distance * dtype_size(DTYPE_BF16);
    TRY(bench->device->copy(&bench->stream, bench->batch, bench->matrices, bytes));
    for (int i = 0; i < n; i++)
        TRY(newton_schulz_run(&bench->ns, &bench->stream, bench->batch, batch));
    return STATUS_OK;
}

static enum status capture(struct muon_bench *bench, const struct newton_schulz_batch *batch,
                           struct graph *graph) {
    TRY(issue(bench, batch, 1)); // finds the plans of products
    TRY(bench->device->synchronize(&bench->stream));
    TRY(graph_begin(&bench->stream));
    const enum status issued = issue(bench, batch, BATCHES_AT_ONCE), ended = graph_end(&bench->stream, graph);
    return issued == STATUS_OK ? ended : issued;
}

// Seconds of one matrix. On a GPU in a graph, as in a run whose update is one.
static enum status orthogonalize(struct muon_bench *bench, const struct newton_schulz_batch *batch,
                                 double *seconds) {
    struct graph graph = {0};
    enum status status = device_has_graphs(bench->device) ? capture(bench, batch, &graph) : STATUS_OK;
    const double began = clock_monotonic_s();
    for (int n = 0; status == STATUS_OK && (n == 0 || clock_monotonic_s() - began < SHAPE_SECONDS);) {
        status = graph.work ? graph_launch(&graph, &bench->stream) : issue(bench, batch, BATCHES_AT_ONCE);
        if (status == STATUS_OK)
            status = bench->device->synchronize(&bench->stream);
        n += batch->n * BATCHES_AT_ONCE;
        *seconds = (clock_monotonic_s() - began) / n;
    }
    graph_free(&graph);
    return status;
}

static double flops_of(const struct muon_bench *bench, struct matrix_shape shape) {
    return newton_schulz_flops(shape, bench->device->symmetric_strips[DTYPE_BF16]);
}

static enum status measure(struct muon_bench *bench, int n_rounds, double gemms[MOST_ROUNDS]) {
    for (int round = -1; round < n_rounds; round++) { // the first warms up
        const int at = round < 0 ? 0 : round;
        double before, after;
        TRY(gemm(bench, &before));
        for (int i = 0; i < bench->n_shapes; i++) {
            struct shape_bench *shape = &bench->shapes[i];
            TRY(orthogonalize(bench, &shape->batch, &shape->seconds[at]));
            TRY(gemm(bench, &after));
            shape->of_gemm[at] = flops_of(bench, shape->shape) / shape->seconds[at] / ((before + after) / 2);
            before = after;
        }
        gemms[at] = before;
    }
    return STATUS_OK;
}

static enum status report(struct muon_bench *bench, bool quick, bool as_json) {
    const int n_rounds = quick ? 3 : MOST_ROUNDS;
    double gemms[MOST_ROUNDS], all_s = 0;
    TRY(measure(bench, n_rounds, gemms));
    if (!as_json)
        printf("%s\nGEMM bf16 %.1f GFLOP/s; Newton-Schulz in turn with it, medians of one matrix:\n",
               bench->device->description, bench_median(gemms, n_rounds) / 1e9);
    for (int i = 0; i < bench->n_shapes; i++) {
        struct shape_bench *at = &bench->shapes[i];
        const double seconds = bench_median(at->seconds, n_rounds), flops = flops_of(bench, at->shape);
        const double of_gemm = bench_median(at->of_gemm, n_rounds);
        all_s += at->n * seconds;
        if (as_json)
            printf("{\"rows\": %lld, \"columns\": %lld, \"matrices\": %d, \"batch\": %d, \"seconds\": %.6g, "
                   "\"flops\": %.6g, \"of_gemm\": %.4g}\n",
                   (long long)at->shape.rows, (long long)at->shape.columns, at->n, at->batch.n, seconds,
                   flops, of_gemm);
        else
            printf("%4d of %5lld x %-5lld in batches of %-2d %9.3f ms %9.1f GFLOP/s %5.2f of GEMM\n", at->n,
                   (long long)at->shape.rows, (long long)at->shape.columns, at->batch.n, seconds * 1e3,
                   flops / seconds / 1e9, of_gemm);
    }
    if (!as_json)
        printf("all matrices of the model: %.1f ms\n", all_s * 1e3);
    return STATUS_OK;
}

static enum status run_on_device(struct muon_bench *bench, bool quick, bool as_json) {
    region_memory_init(&bench->memory, bench->device);
    enum status status = stream_init(&bench->stream, bench->device);
    if (status == STATUS_OK)
        status = prepare(bench);
    if (status == STATUS_OK)
        status = report(bench, quick, as_json);
    region_memory_free(&bench->memory);
    stream_free(&bench->stream);
    return status;
}

static enum status run(int n_args, char **args) {
    const char *device = "auto", *config = NULL;
    int64_t threads = 0;
    bool quick = false, as_json = false;
    const struct arg flags[] = {
        {"--device", ARG_STRING, &device, 0, 0, ""},
        {"--threads", ARG_INTEGER, &threads, 0, 4096, ""},
        {"--quick", ARG_FLAG, &quick, 0, 0, ""},
        {"--json", ARG_FLAG, &as_json, 0, 0, ""},
    };
    struct muon_bench bench = {0};
    int n_positional;
    TRY(args_parse("bench_muon", flags, sizeof flags / sizeof *flags, n_args, args, &config, 1,
                   &n_positional));
    if (n_positional != 1)
        return FAIL(STATUS_INVALID, "expected the configuration whose matrices are orthogonalized");
    TRY(read_model(&bench, config));
    TRY(device_open(device, (int)threads, 0, &bench.device));
    const enum status status = run_on_device(&bench, quick, as_json);
    device_close(bench.device);
    return status;
}

int main(int argc, char **argv) {
    const enum status status = run(argc - 1, argv + 1);
    if (status_exit_code(status) != 0)
        log_error("%s", status_message());
    return status_exit_code(status);
}
