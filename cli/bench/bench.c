// ./train bench: measures the machine's limits (GEMM rate, memory bandwidth), and how close each operation
// comes to them. The limits and the times of operations are measured in the same run.
#include "cli/bench/bench.h"

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/parallel.h"
#include "cli/commands.h"
#include "cli/model_flags.h"
#include "kernels/cost.h"
#include "kernels/ops.h"
#include "kernels/region_memory.h"
#include "model/generate.h"
#include "model/unsharded.h"
#include "options/config.h"
#include "trainer/plan/model_sizes.h"

static const char *device_name = "auto", *generate_config = NULL;
static int64_t threads = 0;
static bool as_json = false, quick = false, gemm = false;

static const struct arg flags[] = {
    {"--json", ARG_FLAG, &as_json, 0, 0, "print one JSON object"},
    {"--quick", ARG_FLAG, &quick, 0, 0, "fewer repeats and smaller shapes: takes seconds, but is noisier"},
    DEVICE_FLAG(device_name),
    THREADS_FLAG(threads),
    {"--generate", ARG_STRING, &generate_config, 0, 0,
     "benchmark generation instead: a model of this configuration's sizes, on the CPU"},
    {"--gemm", ARG_FLAG, &gemm, 0, 0,
     "benchmark matrix products instead: reads lines TYPE ROWS N_EMBD SECONDS, and for each prints the "
     "FLOP/s, measured for SECONDS (used by scripts/bench_cpu.sh)"},
};

// Channels, heads and vocabulary size of GPT-2 124M. A row of logits has LOGITS_STRIDE elements, with
// padding. cross_entropy is measured on LOGITS_ROWS rows.
enum { C = 768, H = 12, V = 50257, LOGITS_STRIDE = 50304, LOGITS_ROWS = 256 };
enum { N_BUFFERS = 6 };

struct bench {
    struct device *device;
    struct stream stream;
    int B, T;
    enum dtype type;
    enum attention_kernel attention; // the attention kernel of the current case
    struct region_memory memory;
    void *buffers[N_BUFFERS]; // each has buffer_bytes
    size_t buffer_bytes;      // bytes of (B * T, 4 * C) fp32 elements or of a tile of fp32 logits, if more
    int32_t *tokens;          // (B, T) each row is 0, 1, ... T - 1
    bool dry_run;             // operations are not run; only the size of their workspace is determined
    size_t workspace_bytes;   // the largest workspace of the operations; set in the dry run
    double gemm_rate[N_COMPUTE_DTYPES]; // FLOP/s
    double bandwidth;                   // bytes/s of device memory
};

#define GEMM_SECONDS 0.05      // time for measuring the GEMM rate of each compute dtype
#define MOST_N_EMBD  (1 << 14) // largest N_EMBD that --gemm accepts

// ---- functions for all benchmarks

static int compare_numbers(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, compare_numbers);
    return values[n / 2];
}

enum status bench_answer_requests(const char *description, bench_measure *measure, void *context) {
    char request[128];
    double figure = 0;
    printf("ready %s\n", description);
    fflush(stdout);
    while (fgets(request, sizeof request, stdin)) {
        request[strcspn(request, "\n")] = '\0';
        TRY(measure(context, request, &figure));
        printf("%.9g\n", figure);
        fflush(stdout);
    }
    return STATUS_OK;
}

// ---- the operations that are benchmarked

struct operation_case {
    const char *name;
    // Runs the operation once (without waiting for it), and sets its FLOPs and bytes.
    enum status (*run)(struct bench *b, struct operation_cost *cost);
    bool multiplies; // multiplies matrices of the compute type: operands are random; false: they are zero
    enum attention_kernel attention; // the attention kernel, if the operation is attention
};

// Sets *cost and runs the operation; in a dry run, only raises b->workspace_bytes to what it needs. Returns
// from the enclosing function.
#define CALL(name, ...)                                                                                      \
    do {                                                                                                     \
        const struct name##_args args_ = {__VA_ARGS__};                                                      \
        size_t bytes_ = 0;                                                                                   \
        *cost = cost_of_operation(OP_##name, &args_);                                                        \
        if (!b->dry_run)                                                                                     \
            return b->device->ops->name(&b->stream, &args_);                                                 \
        TRY(b->device->ops->workspace_bytes(b->device, OP_##name, &args_, &bytes_));                         \
        if (bytes_ > b->workspace_bytes)                                                                     \
            b->workspace_bytes = bytes_;                                                                     \
        return STATUS_OK;                                                                                    \
    } while (0)

static struct attention_rope rope_in_place(const void *table, void *q, void *k, size_t stride) {
    return (struct attention_rope){
        .table = table, .rotated_q = q, .rotated_k = k, .q_stride = stride, .k_stride = stride};
}

// Runs attention forward, with q, k and v in one tensor of H query heads and K key-value heads.
//   window   length of the sliding window; 0: none
//   table    RoPE's angles; NULL: no RoPE
static enum status forward_of(struct bench *b, struct operation_cost *cost, int K, int window,
                              const void *table) {
    const size_t D = C / H, stride = C + 2 * (size_t)K * D, size = dtype_size(b->type);
    char *qkv = b->buffers[1];
    CALL(attention_forward, .out = b->buffers[0], .lse = b->buffers[3], .q = qkv, .k = qkv + C * size,
         .v = qkv + (stride - (size_t)K * D) * size, .q_stride = stride,
         .q_batch_stride = stride * (size_t)b->T, .k_stride = stride, .k_batch_stride = stride * (size_t)b->T,
         .v_stride = stride, .v_batch_stride = stride * (size_t)b->T, .B = b->B, .T = b->T, .S = b->T, .H = H,
         .K = K, .D = C / H, .window = window, .rope = rope_in_place(table, qkv, qkv + C * size, stride),
         .kernel = b->attention, .type = b->type);
}

static enum status backward_of(struct bench *b, struct operation_cost *cost, int K, int window,
                               const void *table) {
    const size_t D = C / H, stride = C + 2 * (size_t)K * D, size = dtype_size(b->type);
    const size_t k_at = C * size, v_at = (stride - (size_t)K * D) * size;
    char *qkv = b->buffers[1], *dqkv = b->buffers[2];
    struct attention_rope rope = rope_in_place(table, qkv, qkv + k_at, stride);
    rope.drotated_q = dqkv;
    rope.drotated_k = dqkv + k_at;
    CALL(attention_backward, .dq = dqkv, .dk = dqkv + k_at, .dv = dqkv + v_at, .dout = b->buffers[4],
         .out = b->buffers[0], .lse = b->buffers[3], .q = qkv, .k = qkv + k_at, .v = qkv + v_at,
         .q_stride = stride, .q_batch_stride = stride * (size_t)b->T, .k_stride = stride,
         .k_batch_stride = stride * (size_t)b->T, .v_stride = stride, .v_batch_stride = stride * (size_t)b->T,
         .B = b->B, .T = b->T, .H = H, .K = K, .D = C / H, .window = window, .rope = rope,
         .kernel = b->attention, .type = b->type);
}

// Runs attention for one new position of each of B sequences that almost fill the cache. The buffer of tokens
// (0, 1, ... T - 1) is also used as the list of sequences; elements T - B to T - 1 are their lengths.
static enum status decode_of(struct bench *b, struct operation_cost *cost, int K) {
    const size_t D = C / H, columns = (size_t)K * D, size = dtype_size(b->type);
    char *cache = b->buffers[1];
    size_t n_keys = 0;
    for (int i = 0; i < b->B; i++)
        n_keys += (size_t)(b->T - i);
    CALL(attention_decode, .out = b->buffers[0], .keys = cache, .values = cache + columns * size,
         .q = b->buffers[2], .k = b->buffers[3], .v = b->buffers[4], .sequences = b->tokens,
         .lengths = b->tokens + b->T - b->B, .q_stride = C, .k_stride = columns, .v_stride = columns,
         .cache_stride = 2 * columns, .cache_batch_stride = 2 * columns * (size_t)b->T, .n_keys = n_keys,
         .B = b->B, .H = H, .K = K, .D = C / H, .type = b->type);
}

// Runs AdamW with optimizer_spans, the operation that a training step uses on a GPU. Updates two spans: one
// like a bias (2 * C elements), and one like a matrix (the rest).
static enum status spans_step(struct bench *b, struct operation_cost *cost) {
    const size_t n = (size_t)b->B * (size_t)b->T * 4 * C;
    struct {
        struct optimizer_span spans[2];
        struct update_plan plan;
        struct update_result result;
    } inputs = {.plan = {.step = 1, .lr = 1e-4, .loss_scale = 1}, .result = {.grad_scale = 1}},
      *there = b->buffers[5];
    size_t n_tiles = 0;
    for (int i = 0; i < 2; i++) {
        const size_t begin = i == 0 ? 0 : 2 * C;
        struct optimizer_span *span = &inputs.spans[i];
        *span = (struct optimizer_span){.state = {.master = (float *)b->buffers[0] + begin,
                                                  .m = (float *)b->buffers[1] + begin,
                                                  .v = (float *)b->buffers[2] + begin},
                                        .grad = (float *)b->buffers[3] + begin,
                                        .n = i == 0 ? 2 * C : n - 2 * C,
                                        .first_tile = n_tiles,
                                        .lr_scale = 1,
                                        .weight_decay = i * 0.1,
                                        .group = i};
        if (b->type != DTYPE_F32)
            span->param = (char *)b->buffers[4] + begin * dtype_size(b->type);
        n_tiles += (span->n + OPTIMIZER_TILE - 1) / OPTIMIZER_TILE;
    }
    if (!b->dry_run)
        TRY(b->device->copy(&b->stream, there, &inputs, sizeof inputs));
    CALL(optimizer_spans, .rule = OPTIMIZER_ADAMW, .spans = there->spans, .n_spans = 2, .n_moments = 2,
         .has_param = b->type != DTYPE_F32, .n = n, .n_tiles = n_tiles, .plan = &there->plan,
         .result = &there->result, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .type = b->type);
}

static enum status orthogonal_step(struct bench *b, struct operation_cost *cost) {
    const struct {
        struct update_plan plan;
        struct update_result result;
    } inputs = {.plan = {.step = 1, .lr = 1e-2, .loss_scale = 1}, .result = {.grad_scale = 1}},
      *there = b->buffers[5];
    if (!b->dry_run)
        TRY(b->device->copy(&b->stream, b->buffers[5], &inputs, sizeof inputs));
    CALL(muon_step, .param = b->type == DTYPE_F32 ? NULL : b->buffers[0], .master = b->buffers[1],
         .update = b->buffers[2], .n = (size_t)b->B * (size_t)b->T * 4 * C, .scale = 0.2f,
         .plan = &there->plan, .result = &there->result, .type = b->type, .update_type = b->type);
}

#define BUFFER(i) (b->buffers[i])
#define BYTES(i)  ((char *)b->buffers[i])
#define FLOATS(i) ((float *)b->buffers[i])
#define ROWS      (b->B * b->T)
#define ROWS_C    ((size_t)b->B * (size_t)b->T * C)
#define SIDE      (ROWS < C ? ROWS : C)
#define FUNCTION(id, title, multiplies, attention, call)                                                     \
    static enum status run_##id(struct bench *b, struct operation_cost *cost) {                              \
        return call;                                                                                         \
    }
#define CASE(id, title, multiplies, operation, ...)                                                          \
    static enum status run_##id(struct bench *b, struct operation_cost *cost) {                              \
        CALL(operation, __VA_ARGS__);                                                                        \
    }
#include "cli/bench/operations.def"

static const struct operation_case cases[] = {
#define FUNCTION(id, title, multiplies, attention, call) {title, run_##id, multiplies, attention},
#define CASE(id, title, multiplies, operation, ...)      {title, run_##id, multiplies, ATTENTION_FLASH},
#include "cli/bench/operations.def"
};
enum { N_CASES = sizeof cases / sizeof *cases };

// Selects the attention kernel of the case.
//   runs   [out] false: the device does not have this kernel for bench->type, and the case is left out
static enum status begin_case(struct bench *bench, const struct operation_case *one, bool *runs) {
    const struct attention_shape shape = {
        .B = bench->B, .T = bench->T, .H = H, .K = H, .D = C / H, .type = bench->type};
    struct device *device = bench->device;
    struct cudnn_support support = {.usable = one->attention == ATTENTION_FLASH};
    if (!support.usable && device->cudnn_support)
        TRY(device->cudnn_support(device, &shape, &support));
    bench->attention = one->attention;
    *runs = support.usable;
    return STATUS_OK;
}

// ---- timing the operations

#define TOGETHER_SECONDS 1e-3 // minimum GPU time that one timing covers, so that launch latency is hidden
#define MOST_TOGETHER    256  // maximum number of runs that one timing covers

static enum status time_once(struct bench *bench, const struct operation_case *one, int n_together,
                             struct operation_cost *cost, double *seconds) {
    double began = clock_monotonic_s();
    for (int i = 0; i < n_together; i++)
        TRY(one->run(bench, cost));
    TRY(bench->device->synchronize(&bench->stream));
    *seconds = (clock_monotonic_s() - began) / n_together;
    return STATUS_OK;
}

// Measures the seconds of one run of a case: the fastest of a few timings, after a warm-up. On a GPU, a
// timing covers several runs of a short operation and gives their mean.
static enum status time_case(struct bench *bench, const struct operation_case *one,
                             struct operation_cost *cost, double *seconds) {
    struct device *device = bench->device;
    // Overwrite the results of the previous operation, which may be invalid as operands of this one. Zeros
    // are valid.
    for (int i = 0; i < N_BUFFERS && one->multiplies; i++)
        TRY(device_fill_random(&bench->stream, bench->buffers[i], bench->buffer_bytes, bench->type));
    for (int i = 0; i < N_BUFFERS && !one->multiplies; i++)
        TRY(device->ops->fill(&bench->stream, &(struct fill_args){.out = bench->buffers[i],
                                                                  .n = bench->buffer_bytes / sizeof(float),
                                                                  .type = DTYPE_F32}));
    *seconds = HUGE_VAL;
    int n_together = 1;
    for (int i = 0; i <= (quick ? 2 : 5); i++) {
        double elapsed;
        TRY(time_once(bench, one, n_together, cost, &elapsed));
        if (i > 0 && elapsed < *seconds)
            *seconds = elapsed;
        if (i == 1 && device->place == REGION_DEVICE)
            n_together = elapsed * MOST_TOGETHER < TOGETHER_SECONDS ? MOST_TOGETHER
                         : elapsed < TOGETHER_SECONDS               ? (int)ceil(TOGETHER_SECONDS / elapsed)
                                                                    : 1;
    }
    return STATUS_OK;
}

// Measures the GEMM rate and the memory bandwidth, to which the operations are compared.
static enum status measure_limits(struct bench *bench) {
    for (int type = 0; type < N_COMPUTE_DTYPES; type++) {
        struct gemm_rate rate;
        TRY(device_measure_gemm_rate(bench->device, bench->B * bench->T, C, (enum dtype)type, GEMM_SECONDS,
                                     NULL, &rate));
        bench->gemm_rate[type] = rate.best;
    }
    return device_measure_bandwidth(bench->device, &bench->bandwidth);
}

static enum status give_tokens(struct bench *bench) {
    size_t n = (size_t)bench->B * (size_t)bench->T;
    int32_t *tokens = allocate(n, sizeof *tokens);
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(i % (size_t)bench->T);
    enum status status = bench->device->copy(&bench->stream, bench->tokens, tokens, n * sizeof *tokens);
    if (status == STATUS_OK)
        status = bench->device->synchronize(&bench->stream);
    free(tokens);
    return status;
}

// Sizes the workspace for all cases by a dry run of each, with placeholder buffers.
static enum status size_workspace(struct bench *bench) {
    struct operation_cost cost;
    for (int i = 0; i < N_BUFFERS; i++)
        bench->buffers[i] = (void *)(uintptr_t)REGION_ALIGNMENT;
    bench->tokens = (int32_t *)(uintptr_t)REGION_ALIGNMENT;
    bench->dry_run = true;
    for (int type = 0; type < N_COMPUTE_DTYPES; type++)
        for (int i = 0; i < N_CASES; i++) {
            bool runs;
            bench->type = (enum dtype)type;
            TRY(begin_case(bench, &cases[i], &runs));
            if (runs)
                TRY(cases[i].run(bench, &cost));
        }
    bench->dry_run = false;
    return STATUS_OK;
}

static enum status prepare(struct bench *bench) {
    struct region_table *table = &bench->memory.table;
    enum region_place place = bench->device->place;
    size_t rows = (size_t)bench->B * (size_t)bench->T, wide = rows * 4 * C * sizeof(float);
    size_t logits = (size_t)LOGITS_ROWS * LOGITS_STRIDE * sizeof(float);
    int regions[N_BUFFERS], tokens, workspace;
    bench->buffer_bytes = wide > logits ? wide : logits;
    for (int i = 0; i < N_BUFFERS; i++)
        TRY(region_add(table, REGION_ACTIVATIONS, place, DTYPE_U8, bench->buffer_bytes, &regions[i],
                       "bench.%d", i));
    TRY(region_add(table, REGION_DATA, place, DTYPE_I32, rows, &tokens, "tokens"));
    TRY(size_workspace(bench));
    TRY(region_add(table, REGION_WORKSPACE, place, DTYPE_U8, bench->workspace_bytes, &workspace,
                   "operations"));
    TRY(region_memory_allocate(&bench->memory));
    for (int i = 0; i < N_BUFFERS; i++)
        bench->buffers[i] = region_data(table, regions[i]);
    bench->tokens = region_data(table, tokens);
    bench->stream.workspace = region_data(table, workspace);
    bench->stream.workspace_bytes = bench->workspace_bytes;
    return give_tokens(bench);
}

static void report_case(const struct bench *bench, const struct operation_case *one,
                        const struct operation_cost *cost, double seconds, bool first) {
    const struct device_peak limits = {bench->gemm_rate[bench->type], bench->bandwidth};
    enum cost_limit limit;
    double least = cost_least_seconds(cost, &limits, &limit);
    bool compute = limit == COST_LIMIT_GEMM;
    if (as_json)
        printf("%s\n    {\"operation\": \"%s\", \"type\": \"%s\", \"seconds\": %.6g, \"flops\": %.6g, "
               "\"bytes\": %.6g, \"limit\": \"%s\", \"of_limit\": %.4g}",
               first ? "" : ",", one->name, dtype_name(bench->type), seconds, cost->flops, cost->bytes,
               cost_limit_name(limit), least / seconds);
    else
        printf("%-26s %-5s %9.3f ms %9.1f %-7s %5.2f of %s\n", one->name, dtype_name(bench->type),
               seconds * 1e3, (compute ? cost->flops : cost->bytes) / seconds / 1e9,
               compute ? "GFLOP/s" : "GB/s", least / seconds, cost_limit_name(limit));
}

static enum status run_cases(struct bench *bench) {
    bool first = true;
    TRY(prepare(bench));
    TRY(measure_limits(bench));
    const double *rate = bench->gemm_rate, peak = bench->device->dense_peak[DTYPE_BF16];
    if (as_json)
        printf("{\n  \"device\": \"%s\",\n  \"gemm_fp32_flops_per_s\": %.6g,\n  \"gemm_bf16_flops_per_s\": "
               "%.6g,\n  \"gemm_fp16_flops_per_s\": %.6g,\n  \"dense_peak_bf16_flops_per_s\": %.6g,\n"
               "  \"bandwidth_bytes_per_s\": %.6g,\n  \"operations\": [",
               bench->device->description, rate[DTYPE_F32], rate[DTYPE_BF16], rate[DTYPE_F16], peak,
               bench->bandwidth);
    else
        printf("%s\nGEMM fp32 %.1f GFLOP/s, bf16 %.1f, fp16 %.1f; memory, two reads and a write: %.1f GB/s\n"
               "operations at %d x %d tokens of %d channels:\n",
               bench->device->description, rate[DTYPE_F32] / 1e9, rate[DTYPE_BF16] / 1e9,
               rate[DTYPE_F16] / 1e9, bench->bandwidth / 1e9, bench->B, bench->T, C);
    if (!as_json && peak > 0)
        printf("dense peak bf16 %.1f GFLOP/s, of which GEMM reaches %.0f %%\n", peak / 1e9,
               100 * rate[DTYPE_BF16] / peak);
    for (int type = 0; type < N_COMPUTE_DTYPES; type++)
        for (int i = 0; i < N_CASES; i++) {
            struct operation_cost cost;
            double seconds;
            bool runs;
            bench->type = (enum dtype)type;
            TRY(begin_case(bench, &cases[i], &runs));
            if (!runs)
                continue;
            TRY(time_case(bench, &cases[i], &cost, &seconds));
            report_case(bench, &cases[i], &cost, seconds, first);
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
    TRY(device_measure_gemm_rate(device, rows, n_embd, type, seconds, NULL, &rate));
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
    struct bench bench = {.B = quick ? 1 : 4, .T = quick ? 256 : 1024};
    TRY(device_open(device_name, (int)threads, 0, &bench.device));
    if (bench.device->place == REGION_DEVICE) { // operands larger than the GPU's cache, as in training
        bench.B = quick ? 16 : 32;
        bench.T = 1024;
    }
    region_memory_init(&bench.memory, bench.device);
    enum status status = stream_init(&bench.stream, bench.device);
    if (status == STATUS_OK)
        status = run_cases(&bench);
    region_memory_free(&bench.memory);
    stream_free(&bench.stream);
    device_close(bench.device);
    return status;
}

// ---- generation

// Times steps of generation, and compares them with memory bandwidth: a step reads every weight once,
// whatever the batch size, and little else. Runs on the CPU, with random weights of a configuration's sizes.
// For each compute dtype and several batch sizes, prints medians over several rounds:
// - seconds per step, with sampling
// - tokens per second
// - the rate in bytes/s at which the step reads weights, relative to that of a loop that only reads them
// The loop and the step alternate, so that both run under the same conditions.

enum { SEQUENCES = 32, CONTEXT = 64, POSITIONS = 256, MOST_ROUNDS = 15 };
static const int batches[] = {1, 2, 4, 8, 16, 32};
enum { N_BATCHES = sizeof batches / sizeof *batches };

struct generate_bench {
    struct device *device;
    struct stream stream;
    struct region_memory memory;
    struct params params;
    enum dtype type;
    int positions;
    char *span; // the weights of all units, in `type`
    struct unsharded unsharded;
    struct unit_hooks hooks; // hooks of `unsharded`
    struct generator *generator;
};

// ---- measuring steps

// Returns the bytes of weights that a step reads. Of the embeddings (unless tied to lm_head) it reads only a
// few rows.
static size_t step_bytes(const struct generate_bench *bench) {
    const struct params *params = &bench->params;
    const struct param *positions = params_tensor(params, 0, PARAM_WPE),
                       *tokens = params_tensor(params, 0, PARAM_WTE);
    size_t elements = params->n_weights - (positions ? positions->elements : 0);
    if (params->config.untied)
        elements -= tokens->elements;
    for (int i = 0; i < params->config.n_value_embeddings; i++)
        elements -=
            params_tensor(params, 1 + params->config.value_embeddings[i], PARAM_VALUE_EMBEDDING)->elements;
    return elements * dtype_size(bench->type);
}

struct weight_read {
    const struct generate_bench *bench;
    atomic_uint_least64_t *sink; // keeps the compiler from removing the reads
};

static void read_part(const void *context, int part, int n_parts) {
    enum { LINE = 64 / sizeof(uint64_t), AHEAD = 8192 / sizeof(uint64_t) };
    const struct weight_read *read = context;
    const uint64_t *words = (const uint64_t *)read->bench->span;
    uint64_t sums[LINE] = {0}, sum = 0;
    struct parallel_span lines =
        parallel_span_of(step_bytes(read->bench) / sizeof *words / LINE, 1, part, n_parts);
    for (size_t line = lines.begin; line < lines.end; line++) {
        __builtin_prefetch(words + line * LINE + AHEAD, 0, 2);
        for (size_t i = 0; i < LINE; i++)
            sums[i] += words[line * LINE + i];
    }
    for (size_t i = 0; i < LINE; i++)
        sum += sums[i];
    atomic_fetch_add(read->sink, sum);
}

// Reads step_bytes of the weights, by cache line and with prefetches. Returns the seconds that it took.
static double read_weights(const struct generate_bench *bench) {
    atomic_uint_least64_t sink = 0;
    double began = clock_monotonic_s();
    parallel_run(bench->device->n_threads, read_part, &(struct weight_read){bench, &sink});
    return clock_monotonic_s() - began;
}

static enum status generation_step(struct generate_bench *bench, int n, double *seconds) {
    struct sampling sampling[SEQUENCES];
    int sequences[SEQUENCES];
    int32_t tokens[SEQUENCES];
    uint64_t counters[SEQUENCES];
    for (int i = 0; i < n; i++) {
        sequences[i] = i;
        tokens[i] = i;
        counters[i] = (uint64_t)i;
        sampling[i] = (struct sampling){.temperature = 1, .top_p = 1, .seed = 1};
    }
    double began = clock_monotonic_s();
    TRY(generator_step(bench->generator, &bench->stream, &bench->hooks, sequences, tokens, n, NULL));
    TRY(generator_draw(bench->generator, &bench->stream, sampling, bench->params.config.vocab_size, counters,
                       n, tokens));
    *seconds = clock_monotonic_s() - began;
    return STATUS_OK;
}

// Returns the initial number of tokens of each context. It leaves room for one round, which adds N_BATCHES
// tokens to the first context: one for each batch size.
static int context_tokens(const struct generate_bench *bench) {
    int n = (bench->positions - N_BATCHES) / 2;
    return n < CONTEXT ? n : CONTEXT;
}

static enum status begin_contexts(struct generate_bench *bench) {
    int32_t tokens[CONTEXT];
    int n = context_tokens(bench);
    for (int i = 0; i < n; i++)
        tokens[i] = (int32_t)((unsigned)i * 997u % (unsigned)bench->params.config.vocab_size);
    for (int sequence = 0; sequence < SEQUENCES; sequence++) {
        generator_reset(bench->generator, sequence);
        if (n > 0)
            TRY(generator_append(bench->generator, &bench->stream, &bench->hooks, sequence, tokens, n));
    }
    return STATUS_OK;
}

// ---- making the model

static bool same_layout(const struct params *params, int a, int b) {
    const struct param_unit *x = &params->units[a], *y = &params->units[b];
    if (x->n_params != y->n_params || x->elements != y->elements ||
        memcmp(x->index, y->index, sizeof x->index) != 0)
        return false;
    for (int i = 0; i < x->n_params; i++)
        if (params->params[x->first_param + i].offset != params->params[y->first_param + i].offset)
            return false;
    return true;
}

static enum status initialize_unit(struct generate_bench *bench, int unit, char *to) {
    size_t n = bench->params.units[unit].elements;
    float *values = allocate(n, sizeof *values);
    params_init_span(&bench->params, 1, unit, 0, n, values);
    const struct cast_args cast = {
        .out = to, .x = values, .n = n, .type = DTYPE_F32, .out_type = bench->type};
    enum status status = bench->device->ops->cast(&bench->stream, &cast);
    free(values);
    return status;
}

// Fills the weights with random values. A block is copied from the first block with the same layout, because
// drawing random values takes far longer than copying.
static enum status make_weights(struct generate_bench *bench) {
    const struct params *params = &bench->params;
    size_t size = dtype_size(bench->type);
    for (int unit = 0; unit < params->n_units; unit++) {
        char *to = bench->span + params->units[unit].offset * size;
        int like = unit == params->n_units - 1 ? unit : 1;
        while (like < unit && !same_layout(params, like, unit))
            like++;
        if (like < unit)
            memcpy(to, bench->span + params->units[like].offset * size, params->units[unit].elements * size);
        else
            TRY(initialize_unit(bench, unit, to));
    }
    return STATUS_OK;
}

static enum status make_model(struct generate_bench *bench) {
    struct region_table *table = &bench->memory.table;
    const struct generator_options options = {
        .type = bench->type, .positions = bench->positions, .sequences = SEQUENCES};
    int span;
    TRY(region_add(table, REGION_PARAMS, bench->device->place, bench->type,
                   params_memory(&bench->params, bench->device->place), &span, "params"));
    TRY(generator_new(&bench->params, &options, bench->device, table, &bench->generator));
    TRY(region_memory_allocate(&bench->memory));
    bench->span = region_data(table, span);
    unsharded_init(&bench->unsharded, &bench->params, bench->type, bench->span, DTYPE_F32, NULL);
    bench->hooks = unsharded_hooks(&bench->unsharded);
    TRY(generator_bind(bench->generator, table, &bench->stream));
    return make_weights(bench);
}

// ---- printing the measurements of generation

static enum status measure_generation(struct generate_bench *bench) {
    static double seconds[N_BATCHES][MOST_ROUNDS], ratios[N_BATCHES][MOST_ROUNDS], loops[MOST_ROUNDS];
    int n_rounds = quick ? 3 : MOST_ROUNDS;
    double bytes = (double)step_bytes(bench);
    // Tokens of the longest context. Initially as if full, so that the first round calls begin_contexts.
    int length = bench->positions;
    for (int round = -1; round < n_rounds; round++) { // round -1 warms up
        int at = round < 0 ? 0 : round;
        if (length + N_BATCHES > bench->positions) {
            TRY(begin_contexts(bench));
            length = context_tokens(bench);
        }
        length += N_BATCHES;
        for (int i = 0; i < N_BATCHES; i++) {
            double before = read_weights(bench), took;
            TRY(generation_step(bench, batches[i], &took));
            loops[at] = (before + read_weights(bench)) / 2;
            seconds[i][at] = took;
            ratios[i][at] = loops[at] / took;
        }
    }
    double rate = bytes / bench_median(loops, n_rounds);
    for (int i = 0; i < N_BATCHES; i++) {
        double took = bench_median(seconds[i], n_rounds), ratio = bench_median(ratios[i], n_rounds);
        if (as_json)
            printf("{\"type\": \"%s\", \"batch\": %d, \"step_s\": %.6g, \"tokens_per_s\": %.6g, "
                   "\"read_bytes_per_s\": %.6g, \"of_bandwidth\": %.4g}\n",
                   dtype_name(bench->type), batches[i], took, batches[i] / took, rate, ratio);
        else
            printf(
                "%-5s %5d %9.2f ms %9.1f tokens/s %7.1f GB/s %6.2f of the rate of a read loop (%.1f GB/s)\n",
                dtype_name(bench->type), batches[i], took * 1e3, batches[i] / took, bytes / took / 1e9, ratio,
                rate / 1e9);
    }
    fflush(stdout);
    return STATUS_OK;
}

static enum status bench_type(struct generate_bench *bench) {
    region_memory_init(&bench->memory, bench->device);
    enum status status = stream_init(&bench->stream, bench->device);
    if (status == STATUS_OK)
        status = make_model(bench);
    if (status == STATUS_OK)
        status = measure_generation(bench);
    generator_delete(bench->generator);
    bench->generator = NULL;
    unsharded_free(&bench->unsharded);
    region_memory_free(&bench->memory);
    stream_free(&bench->stream);
    return status;
}

static enum status bench_types(struct generate_bench *bench) {
    int n_positions = bench->params.config.n_positions;
    bench->positions = n_positions < POSITIONS ? n_positions : POSITIONS;
    if (n_positions < N_BATCHES)
        return FAIL(STATUS_INVALID, "model.n_positions is %d, at least %d are needed to measure generation",
                    n_positions, N_BATCHES);
    if (!as_json)
        printf("%s\n%lld weights; medians of a step with sampling, from contexts of %d tokens:\n",
               bench->device->description, (long long)bench->params.n_weights, context_tokens(bench));
    for (int type = 0; type < N_COMPUTE_DTYPES; type++) {
        bench->type = (enum dtype)type;
        TRY(bench_type(bench));
    }
    return STATUS_OK;
}

static enum status bench_generate(const char *config_path, int n_threads) {
    struct config config;
    struct generate_bench bench = {0};
    enum status status = config_read(&config, config_path, 0, NULL);
    const struct gpt_config sizes = status == STATUS_OK ? config_model(&config) : (struct gpt_config){0};
    config_free(&config);
    TRY(status);
    TRY(params_init(&bench.params, &sizes));
    status = device_open("cpu", n_threads, 0, &bench.device);
    if (status == STATUS_OK) {
        status = bench_types(&bench);
        device_close(bench.device);
    }
    params_free(&bench.params);
    return status;
}

// ---- the command

static enum status run_bench(int n_args, char **args) {
    int n_positional;
    TRY(args_parse("bench", flags, sizeof flags / sizeof *flags, n_args, args, NULL, 0, &n_positional));
    if (gemm)
        return bench_gemm();
    if (generate_config)
        return bench_generate(generate_config, (int)threads);
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
