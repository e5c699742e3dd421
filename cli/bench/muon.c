#include "cli/bench/muon.h"

#include <stdint.h>
#include <stdio.h>

#include "base/clock.h"
#include "cli/bench/median.h"
#include "configs/config.h"
#include "kernels/ops.h"
#include "kernels/region_memory.h"
#include "trainer/plan/model_sizes.h"
#include "zero/partition/optimizer_groups.h"
#include "zero/stages/muon_rounds.h"

enum { GEMM_ROWS = 4096, MOST_SHAPES = 16, MOST_ROUNDS = 15, MATRICES_AT_ONCE = 4 };
#define GEMM_SECONDS  0.15
#define SHAPE_SECONDS 0.15

// Matrices of one shape.
struct shape_bench {
    struct matrix_shape shape;
    int n;
    double seconds[MOST_ROUNDS], of_gemm[MOST_ROUNDS];
};

struct muon_bench {
    struct device *device;
    struct stream stream;
    struct region_memory memory;
    struct newton_schulz ns;
    void *matrix;         // random, of the largest shape
    void *orthogonalized; // copies, matrix_bytes apart, for as many as are orthogonalized side by side
    size_t matrix_bytes;
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
        return FAIL(STATUS_UNSUPPORTED, "bench --muon: more than %d shapes of matrices", MOST_SHAPES);
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
        if (optimizer_group_of(&groups, i)->traits.method != METHOD_MATRIX)
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
        const struct gpt_config sizes = model_sizes(&config);
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

static enum status prepare(struct muon_bench *bench) {
    const enum region_place place = bench->device->place;
    struct matrix_shape shapes[MOST_SHAPES];
    size_t most = 0;
    int matrix, orthogonalized;
    for (int i = 0; i < bench->n_shapes; i++) {
        shapes[i] = bench->shapes[i].shape;
        const size_t n = (size_t)(shapes[i].rows * shapes[i].columns);
        most = n > most ? n : most;
    }
    struct region_table *table = &bench->memory.table;
    TRY(newton_schulz_plan(&bench->ns, bench->device, DTYPE_BF16, shapes, bench->n_shapes, table));
    TRY(region_add(table, REGION_PARAMS, place, DTYPE_BF16, most, &matrix, "matrix"));
    bench->matrix_bytes = region_padded(most * dtype_size(DTYPE_BF16));
    TRY(region_add(table, REGION_PARAMS, place, DTYPE_U8, (size_t)bench->ns.n_lanes * bench->matrix_bytes,
                   &orthogonalized, "orthogonalized"));
    TRY(region_memory_allocate(&bench->memory));
    TRY(newton_schulz_bind(&bench->ns, table));
    bench->matrix = region_data(table, matrix);
    bench->orthogonalized = region_data(table, orthogonalized);
    return device_fill_random(&bench->stream, bench->matrix, most * dtype_size(DTYPE_BF16), DTYPE_BF16);
}

// ---- measuring

static enum status gemm(const struct muon_bench *bench, double *flops_per_s) {
    struct gemm_rate rate;
    TRY(device_measure_gemm_rate(bench->device, GEMM_ROWS, bench->n_embd, DTYPE_BF16, GEMM_SECONDS, &rate));
    *flops_per_s = rate.mean;
    return STATUS_OK;
}

// So many matrices of a shape on each lane; the later ones are those that the earlier ones became.
static enum status issue(struct muon_bench *bench, struct matrix_shape shape, int each) {
    const size_t bytes = (size_t)(shape.rows * shape.columns) * dtype_size(DTYPE_BF16);
    const int n_lanes = bench->ns.n_lanes;
    struct newton_schulz_matrix matrices[NEWTON_SCHULZ_MOST_LANES * MATRICES_AT_ONCE];
    for (int i = 0; i < n_lanes * each; i++) {
        char *copy = (char *)bench->orthogonalized + (size_t)(i % n_lanes) * bench->matrix_bytes;
        if (i < n_lanes)
            TRY(bench->device->copy(&bench->stream, copy, bench->matrix, bytes));
        matrices[i] = (struct newton_schulz_matrix){copy, shape};
    }
    return newton_schulz_run(&bench->ns, &bench->stream, matrices, n_lanes * each);
}

static enum status capture(struct muon_bench *bench, struct matrix_shape shape, struct graph *graph) {
    TRY(issue(bench, shape, 1)); // finds the plans of products
    TRY(bench->device->synchronize(&bench->stream));
    TRY(graph_begin(&bench->stream));
    const enum status issued = issue(bench, shape, MATRICES_AT_ONCE),
                      ended = graph_end(&bench->stream, graph);
    return issued == STATUS_OK ? ended : issued;
}

// Seconds of one matrix. On a GPU in a graph, as in a run whose update is one.
static enum status orthogonalize(struct muon_bench *bench, struct matrix_shape shape, double *seconds) {
    struct graph graph = {0};
    enum status status = device_has_graphs(bench->device) ? capture(bench, shape, &graph) : STATUS_OK;
    const double began = clock_monotonic_s();
    for (int n = 0; status == STATUS_OK && (n == 0 || clock_monotonic_s() - began < SHAPE_SECONDS);) {
        status = graph.work ? graph_launch(&graph, &bench->stream) : issue(bench, shape, MATRICES_AT_ONCE);
        if (status == STATUS_OK)
            status = bench->device->synchronize(&bench->stream);
        n += bench->ns.n_lanes * MATRICES_AT_ONCE;
        *seconds = (clock_monotonic_s() - began) / n;
    }
    graph_free(&graph);
    return status;
}

static double flops_of(const struct muon_bench *bench, struct matrix_shape shape) {
    return newton_schulz_flops(shape, bench->device->symmetric_strip);
}

static enum status measure(struct muon_bench *bench, int n_rounds, double gemms[MOST_ROUNDS]) {
    for (int round = -1; round < n_rounds; round++) { // the first warms up
        const int at = round < 0 ? 0 : round;
        double before, after;
        TRY(gemm(bench, &before));
        for (int i = 0; i < bench->n_shapes; i++) {
            struct shape_bench *shape = &bench->shapes[i];
            TRY(orthogonalize(bench, shape->shape, &shape->seconds[at]));
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
        printf("%s\nGEMM bf16 %.1f GFLOP/s; Newton-Schulz in turn with it, %d side by side, medians of one "
               "matrix:\n",
               bench->device->description, bench_median(gemms, n_rounds) / 1e9, bench->ns.n_lanes);
    for (int i = 0; i < bench->n_shapes; i++) {
        struct shape_bench *at = &bench->shapes[i];
        const double seconds = bench_median(at->seconds, n_rounds), flops = flops_of(bench, at->shape);
        const double of_gemm = bench_median(at->of_gemm, n_rounds);
        all_s += at->n * seconds;
        if (as_json)
            printf(
                "{\"rows\": %lld, \"columns\": %lld, \"matrices\": %d, \"seconds\": %.6g, \"flops\": %.6g, "
                "\"of_gemm\": %.4g}\n",
                (long long)at->shape.rows, (long long)at->shape.columns, at->n, seconds, flops, of_gemm);
        else
            printf("%4d of %5lld x %-5lld %9.3f ms %9.1f GFLOP/s %5.2f of GEMM\n", at->n,
                   (long long)at->shape.rows, (long long)at->shape.columns, seconds * 1e3,
                   flops / seconds / 1e9, of_gemm);
    }
    if (!as_json)
        printf("all matrices of the model: %.1f ms\n", all_s * 1e3);
    return STATUS_OK;
}

static enum status run(struct muon_bench *bench, bool quick, bool as_json) {
    region_memory_init(&bench->memory, bench->device);
    enum status status = stream_init(&bench->stream, bench->device);
    if (status == STATUS_OK)
        status = prepare(bench);
    if (status == STATUS_OK)
        status = report(bench, quick, as_json);
    newton_schulz_free(&bench->ns);
    region_memory_free(&bench->memory);
    stream_free(&bench->stream);
    return status;
}

enum status bench_muon(const char *config_path, const char *device_name, int n_threads, bool quick,
                       bool as_json) {
    struct muon_bench bench = {0};
    TRY(read_model(&bench, config_path));
    TRY(device_open(device_name, n_threads, 0, &bench.device));
    const enum status status = run(&bench, quick, as_json);
    device_close(bench.device);
    return status;
}
