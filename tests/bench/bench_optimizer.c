// Times optimizer steps on the CPU on request (cli/bench/bench.h), so that a script can alternate them
// with other programs under the same conditions. A request names a case, which runs once; the answer is its
// seconds. Each array is an allocation of its own, with huge pages where the system has them. Besides
// optimizer steps there are plain loops, whose bandwidth is the limit for the steps, and the separate passes
// that a step fuses.
// usage: bench_optimizer --elements N [--threads N]
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/args.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/parallel.h"
#include "cli/bench/bench.h"
#include "kernels/moments.h"
#include "kernels/ops.h"

enum { MASTER, M, V, GRAD, PARAM, M_SCALES, V_SCALES, N_ARRAYS };

struct optimizer_bench {
    struct device *device;
    struct stream stream;
    size_t n;
    void *arrays[N_ARRAYS];
    enum dtype kept; // the type that the moments currently hold
    int64_t step;
};

static size_t array_bytes(size_t n, int array) {
    if (array == PARAM)
        return n * sizeof(uint16_t);
    return (array < PARAM ? n : (n + MOMENT_BLOCK - 1) / MOMENT_BLOCK) * sizeof(float);
}

// ---- cases

// Plain loops at memory bandwidth: by cache lines, with the same prefetches as the steps.
enum { LINE = 64 / sizeof(float), AHEAD = 2048 / sizeof(float) };
enum loop { ADD, TRIAD, SCALE };

// `loop` is a compile-time constant at every call.
static inline __attribute__((always_inline)) void over_lines(const struct optimizer_bench *bench,
                                                             enum loop loop, size_t first, size_t end) {
    float *restrict to = bench->arrays[GRAD];
    const float *restrict a = bench->arrays[MASTER], *restrict b = bench->arrays[M];
    for (size_t i = first * LINE; i < end * LINE; i += LINE) {
        __builtin_prefetch(to + i + AHEAD);
        if (loop != SCALE)
            __builtin_prefetch(a + i + AHEAD);
        if (loop == TRIAD)
            __builtin_prefetch(b + i + AHEAD);
        for (size_t k = i; k < i + LINE; k++)
            to[k] = loop == ADD ? to[k] + a[k] : loop == TRIAD ? a[k] + 0.5f * b[k] : to[k] * 0.999f;
    }
}

struct loop_call {
    const struct optimizer_bench *bench;
    enum loop loop;
};

static void loop_part(const void *context, int part, int n_parts) {
    const struct loop_call *call = context;
    struct parallel_span lines = parallel_span_of(call->bench->n / LINE, 1, part, n_parts);
    if (call->loop == ADD)
        over_lines(call->bench, ADD, lines.begin, lines.end);
    else if (call->loop == TRIAD)
        over_lines(call->bench, TRIAD, lines.begin, lines.end);
    else
        over_lines(call->bench, SCALE, lines.begin, lines.end);
}

static enum status run_loop(const struct optimizer_bench *bench, enum loop loop) {
    parallel_run(bench->device->n_threads, loop_part, &(struct loop_call){bench, loop});
    return STATUS_OK;
}

static enum status add(struct optimizer_bench *bench) {
    return run_loop(bench, ADD);
}

static enum status triad(struct optimizer_bench *bench) {
    return run_loop(bench, TRIAD);
}

// Also the first of the three passes: unscales and clips gradients.
static enum status scale(struct optimizer_bench *bench) {
    return run_loop(bench, SCALE);
}

// Writes PARAM where `type` is bf16 or fp16.
static enum status step(struct optimizer_bench *bench, enum optimizer_rule rule, enum dtype state_type,
                        enum dtype grad_type, enum dtype type) {
    void **arrays = bench->arrays;
    struct optimizer_state state = {arrays[MASTER], arrays[M], arrays[V], arrays[M_SCALES], arrays[V_SCALES]};
    return bench->device->ops->optimizer_step(
        &bench->stream, &(struct optimizer_step_args){.rule = rule,
                                                      .state = state,
                                                      .param = type == DTYPE_F32 ? NULL : arrays[PARAM],
                                                      .grad = arrays[GRAD],
                                                      .n = bench->n,
                                                      .step = ++bench->step,
                                                      .lr = 1e-5,
                                                      .beta1 = 0.9,
                                                      .beta2 = 0.999,
                                                      .epsilon = 1e-8,
                                                      .weight_decay = 0.01,
                                                      .grad_scale = 0.5f,
                                                      .type = type,
                                                      .grad_type = grad_type,
                                                      .state_type = state_type});
}

static enum status three_passes(struct optimizer_bench *bench) {
    TRY(scale(bench));
    TRY(step(bench, OPTIMIZER_ADAMW, DTYPE_F32, DTYPE_F32, DTYPE_F32));
    return bench->device->ops->cast(&bench->stream, &(struct cast_args){.out = bench->arrays[PARAM],
                                                                        .x = bench->arrays[MASTER],
                                                                        .n = bench->n,
                                                                        .type = DTYPE_F32,
                                                                        .out_type = DTYPE_BF16});
}

// run: a loop or separate passes; NULL: an optimizer step with the settings that follow.
static const struct optimizer_case {
    const char *name;
    enum status (*run)(struct optimizer_bench *bench);
    enum optimizer_rule rule;
    enum dtype state_type, grad_type, type;
} cases[] = {
    {"add", add, 0, 0, 0, 0},
    {"triad", triad, 0, 0, 0, 0},
    {"scale", scale, 0, 0, 0, 0},
    {"three passes", three_passes, 0, 0, 0, 0},
    {"adamw", NULL, OPTIMIZER_ADAMW, DTYPE_F32, DTYPE_F32, DTYPE_F32},
    {"adamw, one pass", NULL, OPTIMIZER_ADAMW, DTYPE_F32, DTYPE_F32, DTYPE_BF16},
    {"adamw, one pass, bf16 gradients", NULL, OPTIMIZER_ADAMW, DTYPE_F32, DTYPE_BF16, DTYPE_BF16},
    {"adamw, bf16 state", NULL, OPTIMIZER_ADAMW, DTYPE_BF16, DTYPE_F32, DTYPE_F32},
    {"adamw, int8 state", NULL, OPTIMIZER_ADAMW, DTYPE_I8, DTYPE_F32, DTYPE_F32},
    {"adam", NULL, OPTIMIZER_ADAM, DTYPE_F32, DTYPE_F32, DTYPE_F32},
    {"sgd", NULL, OPTIMIZER_SGD, DTYPE_F32, DTYPE_F32, DTYPE_F32},
    {"lion", NULL, OPTIMIZER_LION, DTYPE_F32, DTYPE_F32, DTYPE_F32},
    {"lion, int8 state", NULL, OPTIMIZER_LION, DTYPE_I8, DTYPE_F32, DTYPE_F32},
};
enum { N_CASES = sizeof cases / sizeof *cases };

// ---- requests

static enum status fill(struct optimizer_bench *bench, int array, float value) {
    size_t n = array_bytes(bench->n, array) / sizeof(float);
    return bench->device->ops->fill(
        &bench->stream,
        &(struct fill_args){.out = bench->arrays[array], .n = n, .value = value, .type = DTYPE_F32});
}

// Moments left by another case are cleared when the type changes: in the new type they could be NaN or
// subnormal, and subnormals are slow.
static enum status prepare(struct optimizer_bench *bench, const struct optimizer_case *one) {
    TRY(fill(bench, GRAD, moment_float(0x3c003c00u))); // two bf16 of about the same value
    if (one->state_type == bench->kept)
        return STATUS_OK;
    for (int array = 0; array < N_ARRAYS; array++)
        if (array == M || array == V || array >= M_SCALES)
            TRY(fill(bench, array, 0));
    bench->kept = one->state_type;
    return STATUS_OK;
}

static enum status measure_case(void *context, const char *name, double *seconds) {
    struct optimizer_bench *bench = context;
    for (int i = 0; i < N_CASES; i++) {
        const struct optimizer_case *one = &cases[i];
        if (strcmp(name, one->name) != 0)
            continue;
        TRY(prepare(bench, one));
        double began = clock_monotonic_s();
        TRY(one->run ? one->run(bench) : step(bench, one->rule, one->state_type, one->grad_type, one->type));
        TRY(bench->device->synchronize(&bench->stream));
        *seconds = clock_monotonic_s() - began;
        return STATUS_OK;
    }
    char names[512] = "";
    for (int i = 0; i < N_CASES; i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? "; " : "", cases[i].name);
    return FAIL(STATUS_INVALID, "there is no case \"%s\"; there are: %s", name, names);
}

static enum status make_arrays(struct optimizer_bench *bench) {
    for (int array = 0; array < N_ARRAYS; array++)
        TRY(bench->device->memory_new(bench->device, array_bytes(bench->n, array), "optimizer benchmark",
                                      &bench->arrays[array]));
    // Touches all pages before anything is timed.
    for (int array = 0; array < N_ARRAYS; array++)
        TRY(fill(bench, array, array == MASTER ? 0x1p-6f : 0));
    return STATUS_OK;
}

static enum status run(int n_args, char **args) {
    int64_t elements = 0, threads = 0;
    const struct arg flags[] = {
        {"--elements", ARG_INTEGER, &elements, 1, 1e12, ""},
        {"--threads", ARG_INTEGER, &threads, 0, 4096, ""},
    };
    int n_positional;
    TRY(args_parse("bench_optimizer", flags, sizeof flags / sizeof *flags, n_args, args, NULL, 0,
                   &n_positional));
    // Whole cache lines.
    struct optimizer_bench bench = {.n = ((size_t)elements + LINE - 1) / LINE * LINE, .kept = DTYPE_F32};
    if (bench.n == 0)
        return FAIL(STATUS_INVALID, "expected --elements N");
    TRY(device_open("cpu", (int)threads, 0, &bench.device));
    enum status status = stream_init(&bench.stream, bench.device);
    if (status == STATUS_OK)
        status = make_arrays(&bench);
    if (status == STATUS_OK)
        status = bench_answer_requests(bench.device->description, measure_case, &bench);
    for (int array = 0; array < N_ARRAYS; array++)
        if (bench.arrays[array])
            bench.device->memory_delete(bench.device, bench.arrays[array], array_bytes(bench.n, array));
    stream_free(&bench.stream);
    device_close(bench.device);
    return status;
}

int main(int argc, char **argv) {
    const enum status status = run(argc - 1, argv + 1);
    if (status_exit_code(status) != 0)
        log_error("%s", status_message());
    return status_exit_code(status);
}
