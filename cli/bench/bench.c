// ./train bench: the machine's limits (GEMM rate, memory bandwidth), and how close each operation comes to
// them. Both figures of a ratio are from the same run.
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/bench/generate.h"
#include "cli/bench/operations.h"
#include "cli/bench/requests.h"
#include "cli/commands.h"
#include "kernels/cost.h"
#include "kernels/region_memory.h"

static const char *device_name = "auto", *generate_config = NULL;
static int64_t threads = 0;
static bool as_json = false, quick = false, gemm = false;

static const struct arg flags[] = {
    {"--json", ARG_FLAG, &as_json, 0, 0, "print one JSON object"},
    {"--quick", ARG_FLAG, &quick, 0, 0, "fewer repeats and smaller shapes: takes seconds, but is noisier"},
    {"--device", ARG_STRING, &device_name, 0, 0, "auto, cpu or cuda (auto)"},
    {"--threads", ARG_INTEGER, &threads, 0, 4096,
     "CPU threads; 0: OMP_NUM_THREADS if set, otherwise one per core (0)"},
    {"--generate", ARG_STRING, &generate_config, 0, 0,
     "benchmark generation instead: a model of this configuration's sizes, on the CPU"},
    {"--gemm", ARG_FLAG, &gemm, 0, 0,
     "benchmark matrix products instead: reads lines TYPE ROWS N_EMBD SECONDS, prints the FLOP/s over that "
     "time for each (used by scripts/bench_cpu.sh)"},
};

struct machine_bench {
    struct operation_bench operations;
    struct region_memory memory;
    size_t buffer_bytes;                // of each of operations.buffers
    double gemm_rate[N_COMPUTE_DTYPES]; // FLOP/s
    double bandwidth;                   // bytes/s
};

#define GEMM_SECONDS 0.05
#define MOST_N_EMBD  (1 << 14) // 4 GiB of weights in fp32

// ---- timing

#define TOGETHER_SECONDS 1e-3 // of GPU work per timing, long enough to hide the launches
#define MOST_TOGETHER    256

static enum status time_once(struct operation_bench *operations, const struct operation_case *one,
                             int n_together, struct operation_cost *cost, double *seconds) {
    double began = clock_monotonic_s();
    for (int i = 0; i < n_together; i++)
        TRY(one->run(operations, cost));
    TRY(operations->device->synchronize(&operations->stream));
    *seconds = (clock_monotonic_s() - began) / n_together;
    return STATUS_OK;
}

// The fastest of a few timings, after one to warm up; on a GPU of several runs each.
static enum status time_case(struct machine_bench *bench, const struct operation_case *one,
                             struct operation_cost *cost, double *seconds) {
    struct operation_bench *operations = &bench->operations;
    struct device *device = operations->device;
    // Zeros are valid in every type. What the previous operation left may not be.
    for (int i = 0; i < N_BENCH_BUFFERS && one->multiplies; i++)
        TRY(device_fill_random(&operations->stream, operations->buffers[i], bench->buffer_bytes,
                               operations->type));
    for (int i = 0; i < N_BENCH_BUFFERS && !one->multiplies; i++)
        TRY(device->ops->fill(&operations->stream,
                              &(struct fill_args){.out = operations->buffers[i],
                                                  .n = bench->buffer_bytes / sizeof(float),
                                                  .type = DTYPE_F32}));
    *seconds = HUGE_VAL;
    int n_together = 1;
    for (int i = 0; i <= (quick ? 2 : 5); i++) {
        double elapsed;
        TRY(time_once(operations, one, n_together, cost, &elapsed));
        if (i > 0 && elapsed < *seconds)
            *seconds = elapsed;
        if (i == 1 && device->place == REGION_DEVICE)
            n_together = elapsed * MOST_TOGETHER < TOGETHER_SECONDS ? MOST_TOGETHER
                         : elapsed < TOGETHER_SECONDS               ? (int)ceil(TOGETHER_SECONDS / elapsed)
                                                                    : 1;
    }
    return STATUS_OK;
}

// The machine's limits, to which operations are compared.
static enum status measure_limits(struct machine_bench *bench) {
    const struct operation_bench *operations = &bench->operations;
    for (int type = 0; type < N_COMPUTE_DTYPES; type++) {
        struct gemm_rate rate;
        TRY(device_measure_gemm_rate(operations->device, operations->B * operations->T, BENCH_C,
                                     (enum dtype)type, GEMM_SECONDS, &rate));
        bench->gemm_rate[type] = rate.best;
    }
    return device_measure_bandwidth(operations->device, &bench->bandwidth);
}

static enum status give_tokens(struct operation_bench *operations) {
    size_t n = (size_t)operations->B * (size_t)operations->T;
    int32_t *tokens = malloc(n * sizeof *tokens);
    if (!tokens)
        return FAIL(STATUS_FAILED, "out of memory for %zu tokens", n);
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(i % (size_t)operations->T);
    enum status status =
        operations->device->copy(&operations->stream, operations->tokens, tokens, n * sizeof *tokens);
    if (status == STATUS_OK)
        status = operations->device->synchronize(&operations->stream);
    free(tokens);
    return status;
}

// The workspace of all cases, by a dry run of each with stand-ins for the buffers.
static enum status size_workspace(struct operation_bench *operations) {
    struct operation_cost cost;
    for (int i = 0; i < N_BENCH_BUFFERS; i++)
        operations->buffers[i] = (void *)(uintptr_t)REGION_ALIGNMENT;
    operations->tokens = (int32_t *)(uintptr_t)REGION_ALIGNMENT;
    operations->dry_run = true;
    for (int type = 0; type < N_COMPUTE_DTYPES; type++)
        for (int i = 0; i < n_operation_cases; i++) {
            bool runs;
            operations->type = (enum dtype)type;
            TRY(operation_case_begin(operations, &operation_cases[i], &runs));
            if (runs)
                TRY(operation_cases[i].run(operations, &cost));
        }
    operations->dry_run = false;
    return STATUS_OK;
}

static enum status prepare(struct machine_bench *bench) {
    struct operation_bench *operations = &bench->operations;
    struct region_table *table = &bench->memory.table;
    enum region_place place = operations->device->place;
    size_t rows = (size_t)operations->B * (size_t)operations->T, wide = rows * 4 * BENCH_C * sizeof(float);
    size_t logits = (size_t)BENCH_LOGITS_ROWS * BENCH_LOGITS_STRIDE * sizeof(float);
    int regions[N_BENCH_BUFFERS], tokens, workspace;
    bench->buffer_bytes = wide > logits ? wide : logits;
    for (int i = 0; i < N_BENCH_BUFFERS; i++)
        TRY(region_add(table, REGION_ACTIVATIONS, place, DTYPE_U8, bench->buffer_bytes, &regions[i],
                       "bench.%d", i));
    TRY(region_add(table, REGION_DATA, place, DTYPE_I32, rows, &tokens, "tokens"));
    TRY(size_workspace(operations));
    TRY(region_add(table, REGION_WORKSPACE, place, DTYPE_U8, operations->workspace_bytes, &workspace,
                   "operations"));
    TRY(region_memory_allocate(&bench->memory));
    for (int i = 0; i < N_BENCH_BUFFERS; i++)
        operations->buffers[i] = region_data(table, regions[i]);
    operations->tokens = region_data(table, tokens);
    operations->stream.workspace = region_data(table, workspace);
    operations->stream.workspace_bytes = operations->workspace_bytes;
    return give_tokens(operations);
}

static void report_case(const struct machine_bench *bench, const struct operation_case *one,
                        const struct operation_cost *cost, double seconds, bool first) {
    const struct device_peak limits = {bench->gemm_rate[bench->operations.type], bench->bandwidth};
    enum cost_limit limit;
    double least = cost_least_seconds(cost, &limits, &limit);
    bool compute = limit == COST_LIMIT_GEMM;
    if (as_json)
        printf("%s\n    {\"operation\": \"%s\", \"type\": \"%s\", \"seconds\": %.6g, \"flops\": %.6g, "
               "\"bytes\": %.6g, \"limit\": \"%s\", \"of_limit\": %.4g}",
               first ? "" : ",", one->name, dtype_name(bench->operations.type), seconds, cost->flops,
               cost->bytes, cost_limit_name(limit), least / seconds);
    else
        printf("%-26s %-5s %9.3f ms %9.1f %-7s %5.2f of %s\n", one->name, dtype_name(bench->operations.type),
               seconds * 1e3, (compute ? cost->flops : cost->bytes) / seconds / 1e9,
               compute ? "GFLOP/s" : "GB/s", least / seconds, cost_limit_name(limit));
}

static enum status run_cases(struct machine_bench *bench) {
    const struct operation_bench *operations = &bench->operations;
    bool first = true;
    TRY(prepare(bench));
    TRY(measure_limits(bench));
    const double *rate = bench->gemm_rate, peak = operations->device->dense_peak[DTYPE_BF16];
    if (as_json)
        printf("{\n  \"device\": \"%s\",\n  \"gemm_fp32_flops_per_s\": %.6g,\n  \"gemm_bf16_flops_per_s\": "
               "%.6g,\n  \"gemm_fp16_flops_per_s\": %.6g,\n  \"dense_peak_bf16_flops_per_s\": %.6g,\n"
               "  \"bandwidth_bytes_per_s\": %.6g,\n  \"operations\": [",
               operations->device->description, rate[DTYPE_F32], rate[DTYPE_BF16], rate[DTYPE_F16], peak,
               bench->bandwidth);
    else
        printf("%s\nGEMM fp32 %.1f GFLOP/s, bf16 %.1f, fp16 %.1f; memory, two reads and a write: %.1f GB/s\n"
               "operations at %d x %d tokens of %d channels:\n",
               operations->device->description, rate[DTYPE_F32] / 1e9, rate[DTYPE_BF16] / 1e9,
               rate[DTYPE_F16] / 1e9, bench->bandwidth / 1e9, operations->B, operations->T, BENCH_C);
    if (!as_json && peak > 0)
        printf("dense peak bf16 %.1f GFLOP/s, of which GEMM reaches %.0f %%\n", peak / 1e9,
               100 * rate[DTYPE_BF16] / peak);
    for (int type = 0; type < N_COMPUTE_DTYPES; type++)
        for (int i = 0; i < n_operation_cases; i++) {
            struct operation_cost cost;
            double seconds;
            bool runs;
            bench->operations.type = (enum dtype)type;
            TRY(operation_case_begin(&bench->operations, &operation_cases[i], &runs));
            if (!runs)
                continue;
            TRY(time_case(bench, &operation_cases[i], &cost, &seconds));
            report_case(bench, &operation_cases[i], &cost, seconds, first);
            first = false;
        }
    if (as_json)
        printf("\n  ]\n}\n");
    return STATUS_OK;
}

static enum status measure_gemm(void *device, const char *request, double *flops_per_s) {
    char name[8];
    int rows, n_embd;
    double seconds;
    enum dtype type;
    struct gemm_rate rate;
    if (sscanf(request, "%7s %d %d %lf", name, &rows, &n_embd, &seconds) != 4 ||
        !dtype_from_name(name, &type) || rows < 1 || n_embd < 1 || n_embd > MOST_N_EMBD)
        return FAIL(STATUS_INVALID,
                    "bench --gemm: expected TYPE ROWS N_EMBD SECONDS, such as fp32 4096 768 5, got \"%s\"",
                    request);
    TRY(device_measure_gemm_rate(device, rows, n_embd, type, seconds, &rate));
    *flops_per_s = rate.mean;
    return STATUS_OK;
}

static enum status bench_gemm(void) {
    struct device *device;
    TRY(device_open(device_name, (int)threads, 0, &device));
    enum status status = bench_answer_requests(device->description, measure_gemm, device);
    device_close(device);
    return status;
}

static enum status bench_operations(void) {
    struct machine_bench bench = {.operations = {.B = quick ? 1 : 4, .T = quick ? 256 : 1024}};
    struct operation_bench *operations = &bench.operations;
    TRY(device_open(device_name, (int)threads, 0, &operations->device));
    if (operations->device->place == REGION_DEVICE) { // beyond its cache, as in training
        operations->B = quick ? 16 : 32;
        operations->T = 1024;
    }
    region_memory_init(&bench.memory, operations->device);
    enum status status = stream_init(&operations->stream, operations->device);
    if (status == STATUS_OK)
        status = run_cases(&bench);
    region_memory_free(&bench.memory);
    stream_free(&operations->stream);
    device_close(operations->device);
    return status;
}

static enum status run_bench(int n_args, char **args) {
    int n_positional;
    TRY(args_parse("bench", flags, sizeof flags / sizeof *flags, n_args, args, NULL, 0, &n_positional));
    if (gemm)
        return bench_gemm();
    if (generate_config)
        return bench_generate(generate_config, (int)threads, quick, as_json);
    return bench_operations();
}

const struct command command_bench = {
    .name = "bench",
    .synopsis = "[--quick] [--json]",
    .summary = "benchmark this machine: GEMM, memory bandwidth, every operation",
    .examples = "Compare every operation with this machine's own limits.\n"
                "./train bench --quick\n",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_bench,
};
