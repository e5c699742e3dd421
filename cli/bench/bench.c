// ./train bench: what this machine can do, and how near each operation comes to it. Every ratio is of two
// figures of the same run.
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/bench/generate.h"
#include "cli/bench/optimizer.h"
#include "cli/bench/requests.h"
#include "cli/commands.h"
#include "kernels/cost.h"
#include "kernels/memory.h"

static const char *device_name = "auto", *generate_config = NULL;
static int64_t threads = 0, optimizer_elements = 0;
static bool as_json = false, quick = false, gemm = false;

static const struct arg flags[] = {
    {"--json", ARG_FLAG, &as_json, 0, 0, "print one JSON object"},
    {"--quick", ARG_FLAG, &quick, 0, 0, "fewer repeats and smaller shapes: seconds, and noisier"},
    {"--device", ARG_STRING, &device_name, 0, 0, "auto, cpu or cuda (auto)"},
    {"--threads", ARG_INTEGER, &threads, 0, 4096, "CPU threads; 0: one a core (0)"},
    {"--generate", ARG_STRING, &generate_config, 0, 0,
     "steps of generation with a model of this configuration's sizes instead, on the CPU"},
    {"--gemm", ARG_FLAG, &gemm, 0, 0,
     "matrix products instead: a line of input is TYPE ROWS N_EMBD SECONDS, a line of output is their FLOP/s "
     "over so long (what scripts/bench_cpu.sh runs)"},
    {"--optimizer", ARG_INTEGER, &optimizer_elements, 0, 1e12,
     "optimizer steps on so many elements instead, on the CPU: a line of input names a case, a line of "
     "output is "
     "its seconds (what scripts/bench_optimizer.sh runs)"},
};

// A GPT-2 124M's sizes.
enum { C = 768, H = 12, V = 50257, LOGITS_STRIDE = 50304, LOGITS_ROWS = 256 };

#define GEMM_SECONDS 0.05
#define MOST_N_EMBD  (1 << 14) // 4 GiB of weights in fp32

struct bench {
    struct device *device;
    struct stream stream;
    struct memory memory;
    int B, T;
    enum dtype type;
    void *buffers[6];    // each of (B T, 4 C) fp32, or of the classifier's size where that is larger
    size_t buffer_bytes; // of each
    int32_t *tokens;     // (B T), 0 to T - 1 again and again
    double gemm_rate[N_COMPUTE_DTYPES]; // FLOP/s
    double bandwidth;                   // bytes/s
    bool dry_run;
    size_t workspace_bytes;
};

#define CALL(bench, name, ...)                                                                               \
    do {                                                                                                     \
        const struct name##_args args_ = {__VA_ARGS__};                                                      \
        size_t bytes_ = 0;                                                                                   \
        *work = cost_of_operation(OP_##name, &args_);                                                        \
        if (!(bench)->dry_run)                                                                               \
            return (bench)->device->ops->name(&(bench)->stream, &args_);                                     \
        TRY((bench)->device->ops->workspace_bytes((bench)->device, OP_##name, &args_, &bytes_));             \
        if (bytes_ > (bench)->workspace_bytes)                                                               \
            (bench)->workspace_bytes = bytes_;                                                               \
        return STATUS_OK;                                                                                    \
    } while (0)

static enum status linear_forward(struct bench *b, struct operation_cost *work) {
    CALL(b, linear_forward, .out = b->buffers[0], .x = b->buffers[1], .weight = b->buffers[2],
         .N = b->B * b->T, .IC = C, .OC = 4 * C, .out_stride = 4 * C, .type = b->type, .out_type = b->type);
}

static enum status linear_forward_gelu(struct bench *b, struct operation_cost *work) {
    CALL(b, linear_forward, .out = b->buffers[0], .pre_gelu = b->buffers[3], .x = b->buffers[1],
         .weight = b->buffers[2], .bias = b->buffers[4], .N = b->B * b->T, .IC = C, .OC = 4 * C,
         .out_stride = 4 * C, .gelu = true, .type = b->type, .out_type = b->type);
}

static enum status linear_backward(struct bench *b, struct operation_cost *work) {
    CALL(b, linear_backward, .dx = b->buffers[0], .dweight = b->buffers[3], .dbias = b->buffers[4],
         .dout = b->buffers[5], .x = b->buffers[1], .weight = b->buffers[2], .N = b->B * b->T, .IC = C,
         .OC = 4 * C, .dout_stride = 4 * C, .type = b->type);
}

static enum status attention_forward(struct bench *b, struct operation_cost *work) {
    size_t stride = 3 * (size_t)C, size = dtype_size(b->type);
    char *qkv = b->buffers[1];
    CALL(b, attention_forward, .out = b->buffers[0], .lse = b->buffers[3], .q = qkv, .k = qkv + C * size,
         .v = qkv + 2 * C * size, .q_stride = stride, .q_batch_stride = stride * (size_t)b->T,
         .kv_stride = stride, .kv_batch_stride = stride * (size_t)b->T, .B = b->B, .T = b->T, .S = b->T,
         .H = H, .D = C / H, .type = b->type);
}

static enum status attention_backward(struct bench *b, struct operation_cost *work) {
    size_t stride = 3 * (size_t)C, size = dtype_size(b->type);
    char *qkv = b->buffers[1], *dqkv = b->buffers[2];
    CALL(b, attention_backward, .dq = dqkv, .dk = dqkv + C * size, .dv = dqkv + 2 * C * size,
         .dout = b->buffers[4], .out = b->buffers[0], .lse = b->buffers[3], .q = qkv, .k = qkv + C * size,
         .v = qkv + 2 * C * size, .stride = stride, .batch_stride = stride * (size_t)b->T, .B = b->B,
         .T = b->T, .H = H, .D = C / H, .type = b->type);
}

static enum status layernorm_forward(struct bench *b, struct operation_cost *work) {
    CALL(b, layernorm_forward, .out = b->buffers[0], .mean = b->buffers[3], .rstd = b->buffers[4],
         .x = b->buffers[1], .weight = b->buffers[2], .bias = b->buffers[2], .N = b->B * b->T, .C = C,
         .epsilon = 1e-5f, .type = b->type);
}

static enum status layernorm_backward(struct bench *b, struct operation_cost *work) {
    float *sums = b->buffers[5];
    CALL(b, layernorm_backward, .dx = b->buffers[0], .dweight = sums, .dbias = sums + C,
         .dout = b->buffers[1], .dresidual = b->buffers[0], .x = b->buffers[2], .weight = b->buffers[3],
         .mean = b->buffers[4], .rstd = b->buffers[4], .N = b->B * b->T, .C = C, .type = b->type);
}

static enum status gelu_forward(struct bench *b, struct operation_cost *work) {
    size_t n = (size_t)b->B * (size_t)b->T * 4 * C;
    CALL(b, gelu_forward, .out = b->buffers[0], .x = b->buffers[1], .n = n, .type = b->type);
}

static enum status gelu_backward(struct bench *b, struct operation_cost *work) {
    size_t n = (size_t)b->B * (size_t)b->T * 4 * C;
    CALL(b, gelu_backward, .dx = b->buffers[0], .dout = b->buffers[2], .x = b->buffers[1], .n = n,
         .type = b->type);
}

static enum status embedding_forward(struct bench *b, struct operation_cost *work) {
    CALL(b, embedding_forward, .out = b->buffers[0], .wte = b->buffers[1], .wpe = b->buffers[2],
         .tokens = b->tokens, .B = b->B, .T = b->T, .C = C, .V = b->T, .type = b->type);
}

static enum status embedding_backward(struct bench *b, struct operation_cost *work) {
    CALL(b, embedding_backward, .dwte = b->buffers[1], .dwpe = b->buffers[2], .dout = b->buffers[0],
         .tokens = b->tokens, .B = b->B, .T = b->T, .C = C, .V = b->T, .type = b->type);
}

static enum status cross_entropy(struct bench *b, struct operation_cost *work) {
    CALL(b, cross_entropy, .losses = b->buffers[2], .dlogits = b->buffers[1], .logits = b->buffers[0],
         .targets = b->tokens, .N = LOGITS_ROWS, .V = V, .logits_stride = LOGITS_STRIDE,
         .dlogits_stride = LOGITS_STRIDE, .scale = 1, .type = b->type);
}

static enum status sample(struct bench *b, struct operation_cost *work) {
    CALL(b, sample, .tokens = b->buffers[1], .logits = b->buffers[0], .uniforms = b->buffers[2], .N = 1,
         .V = V, .logits_stride = V, .temperature = 1, .top_k = 50, .top_p = 1, .type = DTYPE_F32);
}

static enum status adamw(struct bench *b, struct operation_cost *work) {
    size_t n = (size_t)b->B * (size_t)b->T * 4 * C;
    bool narrow = b->type != DTYPE_F32;
    struct optimizer_state state = {.master = b->buffers[0], .m = b->buffers[1], .v = b->buffers[2]};
    CALL(b, optimizer_step, .rule = OPTIMIZER_ADAMW, .from = state, .to = state,
         .param = narrow ? b->buffers[4] : NULL, .grad = b->buffers[3], .n = n, .step = 1, .lr = 1e-4,
         .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .grad_scale = 1, .type = b->type);
}

// Adafactor's three passes over a (B T, 4 C) tensor.
static struct adafactor_span whole_tensor(const struct bench *b) {
    return (struct adafactor_span){.n = (size_t)b->B * (size_t)b->T * 4 * C, .columns = 4 * C};
}

static struct adafactor_direction direction_of(const struct bench *b) {
    return (struct adafactor_direction){.grad = b->buffers[0],
                                        .row_scales = b->buffers[2],
                                        .column_scales = b->buffers[3],
                                        .largest_scale = 1,
                                        .grad_scale = 1,
                                        .grad_type = DTYPE_F32};
}

static enum status adafactor_sums(struct bench *b, struct operation_cost *work) {
    CALL(b, adafactor_sums, .row_sums = b->buffers[2], .column_sums = b->buffers[3], .grad = b->buffers[0],
         .span = whole_tensor(b), .rows = b->B * b->T, .bound = 1, .grad_scale = 1, .type = DTYPE_F32,
         .grad_type = DTYPE_F32);
}

static enum status adafactor_norms(struct bench *b, struct operation_cost *work) {
    CALL(b, adafactor_norms, .sums = b->buffers[4], .master = b->buffers[1], .direction = direction_of(b),
         .span = whole_tensor(b), .elements = whole_tensor(b).n, .update_bound = 1, .type = DTYPE_F32);
}

static enum status adafactor_step(struct bench *b, struct operation_cost *work) {
    bool narrow = b->type != DTYPE_F32;
    CALL(b, adafactor_step, .param = narrow ? b->buffers[4] : NULL, .master = b->buffers[1],
         .direction = direction_of(b), .span = whole_tensor(b), .step_size = 1e-4, .decay = 1e-4,
         .type = b->type);
}

static enum status sum_squares(struct bench *b, struct operation_cost *work) {
    size_t n = (size_t)b->B * (size_t)b->T * 4 * C;
    CALL(b, sum_squares, .partial = b->buffers[1], .x = b->buffers[0], .n = n, .type = DTYPE_F32);
}

static enum status cast(struct bench *b, struct operation_cost *work) {
    size_t n = (size_t)b->B * (size_t)b->T * 4 * C;
    CALL(b, cast, .out = b->buffers[1], .x = b->buffers[0], .n = n, .type = DTYPE_F32,
         .out_type = b->type == DTYPE_F16 ? DTYPE_F16 : DTYPE_BF16);
}

static enum status add(struct bench *b, struct operation_cost *work) {
    size_t n = (size_t)b->B * (size_t)b->T * 4 * C;
    CALL(b, add, .out = b->buffers[0], .x = b->buffers[0], .y = b->buffers[1], .n = n, .type = b->type);
}

static const struct bench_case {
    const char *name;
    enum status (*run)(struct bench *bench, struct operation_cost *work);
} cases[] = {
    {"linear_forward", linear_forward},
    {"linear_forward + GELU", linear_forward_gelu},
    {"linear_backward", linear_backward},
    {"attention_forward", attention_forward},
    {"attention_backward", attention_backward},
    {"layernorm_forward", layernorm_forward},
    {"layernorm_backward", layernorm_backward},
    {"gelu_forward", gelu_forward},
    {"gelu_backward", gelu_backward},
    {"embedding_forward", embedding_forward},
    {"embedding_backward", embedding_backward},
    {"cross_entropy", cross_entropy},
    {"adamw", adamw},
    {"adafactor_sums", adafactor_sums},
    {"adafactor_norms", adafactor_norms},
    {"adafactor_step", adafactor_step},
    {"sum_squares", sum_squares},
    {"cast", cast},
    {"add", add},
    {"sample, top_k", sample},
};
enum { N_CASES = sizeof cases / sizeof *cases };

// ---- timing

// The best of a few runs after one that warms up.
static enum status time_case(struct bench *bench, const struct bench_case *one, struct operation_cost *work,
                             double *seconds) {
    // Zeros are a sensible value in every type: what another operation left is not.
    for (int i = 0; i < 6; i++)
        TRY(bench->device->ops->fill(&bench->stream,
                                     &(struct fill_args){.out = bench->buffers[i],
                                                         .n = bench->buffer_bytes / sizeof(float),
                                                         .type = DTYPE_F32}));
    *seconds = HUGE_VAL;
    for (int i = 0; i <= (quick ? 2 : 5); i++) {
        double began = clock_monotonic_s();
        TRY(one->run(bench, work));
        TRY(bench->device->synchronize(&bench->stream));
        double elapsed = clock_monotonic_s() - began;
        if (i > 0 && elapsed < *seconds)
            *seconds = elapsed;
    }
    return STATUS_OK;
}

// What the ratios are taken of.
static enum status measure_limits(struct bench *bench) {
    for (int type = 0; type < N_COMPUTE_DTYPES; type++) {
        struct gemm_rate rate;
        TRY(device_measure_gemm_rate(bench->device, bench->B * bench->T, C, (enum dtype)type, GEMM_SECONDS,
                                     &rate));
        bench->gemm_rate[type] = rate.best;
    }
    return device_measure_bandwidth(bench->device, &bench->bandwidth);
}

static enum status give_tokens(struct bench *bench) {
    size_t n = (size_t)bench->B * (size_t)bench->T;
    int32_t *tokens = malloc(n * sizeof *tokens);
    if (!tokens)
        return FAIL(STATUS_FAILED, "out of memory for %zu tokens", n);
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(i % (size_t)bench->T);
    enum status status = bench->device->copy(&bench->stream, bench->tokens, tokens, n * sizeof *tokens);
    if (status == STATUS_OK)
        status = bench->device->synchronize(&bench->stream);
    free(tokens);
    return status;
}

static enum status prepare(struct bench *bench) {
    size_t rows = (size_t)bench->B * (size_t)bench->T;
    size_t wide = rows * 4 * C * sizeof(float), logits = (size_t)LOGITS_ROWS * LOGITS_STRIDE * sizeof(float);
    size_t bytes = wide > logits ? wide : logits;
    bench->buffer_bytes = bytes;
    int regions[6], tokens, workspace;
    struct operation_cost work;
    struct region_table *table = &bench->memory.table;
    for (int i = 0; i < 6; i++)
        TRY(region_add(table, REGION_ACTIVATIONS, bench->device->place, DTYPE_U8, bytes, &regions[i],
                       "bench.%d", i));
    TRY(region_add(table, REGION_DATA, bench->device->place, DTYPE_I32, rows, &tokens, "tokens"));
    // Sizes only: the buffers are stood for by any address.
    for (int i = 0; i < 6; i++)
        bench->buffers[i] = (void *)(uintptr_t)REGION_ALIGNMENT;
    bench->tokens = (int32_t *)(uintptr_t)REGION_ALIGNMENT;
    bench->dry_run = true;
    for (int type = 0; type < N_COMPUTE_DTYPES; type++)
        for (int i = 0; i < N_CASES; i++) {
            bench->type = (enum dtype)type;
            TRY(cases[i].run(bench, &work));
        }
    bench->dry_run = false;
    TRY(region_add(table, REGION_WORKSPACE, bench->device->place, DTYPE_U8, bench->workspace_bytes,
                   &workspace, "operations"));
    TRY(memory_allocate(&bench->memory));
    for (int i = 0; i < 6; i++)
        bench->buffers[i] = region_data(table, regions[i]);
    bench->tokens = region_data(table, tokens);
    bench->stream.workspace = region_data(table, workspace);
    bench->stream.workspace_bytes = bench->workspace_bytes;
    return give_tokens(bench);
}

static void report_case(const struct bench *bench, const struct bench_case *one,
                        const struct operation_cost *work, double seconds, bool first) {
    const struct device_peak limits = {bench->gemm_rate[bench->type], bench->bandwidth};
    enum cost_limit limit;
    double least = cost_least_seconds(work, &limits, &limit);
    bool compute = limit == COST_LIMIT_GEMM;
    if (as_json)
        printf("%s\n    {\"operation\": \"%s\", \"type\": \"%s\", \"seconds\": %.6g, \"flops\": %.6g, "
               "\"bytes\": %.6g, \"limit\": \"%s\", \"of_limit\": %.4g}",
               first ? "" : ",", one->name, dtype_name(bench->type), seconds, work->flops, work->bytes,
               cost_limit_name(limit), least / seconds);
    else
        printf("%-22s %-5s %9.3f ms %9.1f %-7s %5.2f of %s\n", one->name, dtype_name(bench->type),
               seconds * 1e3, (compute ? work->flops : work->bytes) / seconds / 1e9,
               compute ? "GFLOP/s" : "GB/s", least / seconds, cost_limit_name(limit));
}

static enum status run_cases(struct bench *bench) {
    bool first = true;
    TRY(prepare(bench));
    TRY(measure_limits(bench));
    const double *rate = bench->gemm_rate;
    if (as_json)
        printf("{\n  \"device\": \"%s\",\n  \"gemm_fp32_flops_per_s\": %.6g,\n  \"gemm_bf16_flops_per_s\": "
               "%.6g,\n  \"gemm_fp16_flops_per_s\": %.6g,\n"
               "  \"bandwidth_bytes_per_s\": %.6g,\n  \"operations\": [",
               bench->device->description, rate[DTYPE_F32], rate[DTYPE_BF16], rate[DTYPE_F16],
               bench->bandwidth);
    else
        printf("%s\nGEMM fp32 %.1f GFLOP/s, bf16 %.1f, fp16 %.1f; memory, two reads and a write: %.1f GB/s\n"
               "operations at %d x %d tokens of %d channels:\n",
               bench->device->description, rate[DTYPE_F32] / 1e9, rate[DTYPE_BF16] / 1e9,
               rate[DTYPE_F16] / 1e9, bench->bandwidth / 1e9, bench->B, bench->T, C);
    for (int type = 0; type < N_COMPUTE_DTYPES; type++)
        for (int i = 0; i < N_CASES; i++) {
            struct operation_cost work;
            double seconds;
            bench->type = (enum dtype)type;
            TRY(time_case(bench, &cases[i], &work, &seconds));
            report_case(bench, &cases[i], &work, seconds, first);
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
                    "bench --gemm: expected TYPE ROWS N_EMBD SECONDS, as fp32 4096 768 5, not \"%s\"",
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

static enum status run_bench(int n_args, char **args) {
    int n_positional;
    TRY(args_parse("bench", flags, sizeof flags / sizeof *flags, n_args, args, NULL, 0, &n_positional));
    if (optimizer_elements > 0)
        return bench_optimizer((int)threads, (size_t)optimizer_elements);
    if (gemm)
        return bench_gemm();
    if (generate_config)
        return bench_generate(generate_config, (int)threads, quick, as_json);
    struct bench bench = {.B = quick ? 1 : 4, .T = quick ? 256 : 1024};
    TRY(device_open(device_name, (int)threads, 0, &bench.device));
    memory_init(&bench.memory, bench.device);
    enum status status = stream_init(&bench.stream, bench.device);
    if (status == STATUS_OK)
        status = run_cases(&bench);
    memory_free(&bench.memory);
    stream_free(&bench.stream);
    device_close(bench.device);
    return status;
}

const struct command command_bench = {
    .name = "bench",
    .synopsis = "[--quick] [--json]",
    .summary = "measure this machine: GEMM by type, memory bandwidth, each operation",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_bench,
};
