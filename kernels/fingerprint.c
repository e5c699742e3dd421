// The inputs are ranges of random numbers, or results of operations before. All results stay in one piece of
// memory, which is zeroed at first and digested as a whole at the end.
//
// Shapes are small, so that the smallest run has the memory for them, but have what makes machines differ:
// sums of more terms than a library adds in one block, and attention over more keys than one tile.
#include "kernels/fingerprint.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "kernels/moments.h"
#include "kernels/ops.h"

enum {
    N_INPUTS = 45056,
    RESULT_BYTES = 320 << 10,
    LONG = 640, // terms of the long sums
    ROWS = 32,
    WIDTH = 64,
    POSITIONS = 96,
    HEADS = 2, // of queries, for one key-value head
    HEAD = 32,
    QKV = (HEADS + 2) * HEAD,
    UPDATED = 4096 // elements that the optimizer updates
};

struct work {
    struct device *device;
    struct stream stream;
    enum dtype type;
    void *inputs;    // (N_INPUTS) type
    int32_t *labels; // (ROWS), each in [0, WIDTH)
    char *results;   // (RESULT_BYTES)
    size_t n_result_bytes;
};

// Returns the inputs from number `first` on.
static const void *input(const struct work *work, size_t first) {
    return (const char *)work->inputs + first * dtype_size(work->type);
}

// Returns zeroed memory for n results.
static void *result(struct work *work, size_t n, enum dtype type) {
    char *place = work->results + work->n_result_bytes;
    work->n_result_bytes += region_padded(n * dtype_size(type));
    assert(work->n_result_bytes <= RESULT_BYTES);
    return place;
}

static enum status reserve(struct work *work, enum operation operation, const void *args) {
    struct device *device = work->device;
    struct stream *stream = &work->stream;
    size_t bytes;
    TRY(device->ops->workspace_bytes(device, operation, args, &bytes));
    if (bytes <= stream->workspace_bytes)
        return STATUS_OK;
    TRY(device->synchronize(stream));
    device->memory_delete(device, stream->workspace, stream->workspace_bytes);
    stream->workspace_bytes = 0;
    TRY(device->memory_new(device, bytes, "workspace of the fingerprint", &stream->workspace));
    stream->workspace_bytes = bytes;
    return STATUS_OK;
}

// Runs an operation with the members of its arguments.
#define RUN(work, operation, ...)                                                                            \
    do {                                                                                                     \
        const struct operation##_args args_ = {__VA_ARGS__};                                                 \
        TRY(reserve(work, OP_##operation, &args_));                                                          \
        TRY((work)->device->ops->operation(&(work)->stream, &args_));                                        \
    } while (0)

// Matrix products, each with long sums: a linear layer, the gradients of inputs and of weights, and a
// symmetric product.
//   out   [out] (ROWS, WIDTH) type
static enum status run_products(struct work *work, void **out) {
    const enum dtype type = work->type;
    *out = result(work, ROWS * WIDTH, type);
    RUN(work, linear_forward, .out = *out, .x = input(work, 0), .weight = input(work, 1000),
        .bias = input(work, 2000), .N = ROWS, .IC = LONG, .OC = WIDTH, .out_stride = WIDTH, .type = type,
        .out_type = type);
    RUN(work, linear_backward, .dx = result(work, ROWS * WIDTH, type), .dout = input(work, 3000),
        .weight = input(work, 1000), .N = ROWS, .IC = WIDTH, .OC = LONG, .dout_stride = LONG, .type = type);
    RUN(work, linear_backward, .dweight = result(work, WIDTH * ROWS, DTYPE_F32),
        .dbias = result(work, WIDTH, DTYPE_F32), .dout = input(work, 3000), .x = input(work, 0), .N = LONG,
        .IC = ROWS, .OC = WIDTH, .dout_stride = WIDTH, .beta_zero = true, .type = type);
    RUN(work, matrix_product, .out = result(work, WIDTH * WIDTH, type), .x = input(work, 0),
        .y = input(work, 0), .rows = WIDTH, .columns = WIDTH, .inner = LONG, .n_matrices = 1,
        .out_distance = WIDTH * WIDTH, .x_distance = WIDTH * LONG, .y_distance = WIDTH * LONG,
        .y_transposed = true, .strip = work->device->symmetric_strips[type], .alpha = 1, .type = type);
    return STATUS_OK;
}

static enum status run_norms(struct work *work, const void *x) {
    const enum dtype type = work->type;
    void *mean = result(work, ROWS, DTYPE_F32), *rstd = result(work, ROWS, DTYPE_F32),
         *rms = result(work, ROWS, DTYPE_F32);
    RUN(work, layernorm_forward, .out = result(work, ROWS * WIDTH, type), .mean = mean, .rstd = rstd, .x = x,
        .weight = input(work, 0), .bias = input(work, 200), .N = ROWS, .C = WIDTH, .epsilon = 1e-5f,
        .type = type);
    RUN(work, layernorm_backward, .dx = result(work, ROWS * WIDTH, type),
        .dweight = result(work, WIDTH, DTYPE_F32), .dbias = result(work, WIDTH, DTYPE_F32),
        .dout = input(work, 400), .x = x, .weight = input(work, 0), .mean = mean, .rstd = rstd, .N = ROWS,
        .C = WIDTH, .beta_zero = true, .type = type);
    RUN(work, rmsnorm_forward, .out = result(work, ROWS * WIDTH, type), .rstd = rms, .x = x,
        .weight = input(work, 0), .N = ROWS, .C = WIDTH, .epsilon = 1e-5f, .type = type);
    RUN(work, rmsnorm_backward, .dx = result(work, ROWS * WIDTH, type),
        .dweight = result(work, WIDTH, DTYPE_F32), .dout = input(work, 400), .x = x, .weight = input(work, 0),
        .rstd = rms, .N = ROWS, .C = WIDTH, .beta_zero = true, .type = type);
    return STATUS_OK;
}

static enum status run_activations(struct work *work, const void *x) {
    const enum dtype type = work->type;
    RUN(work, gelu_forward, .out = result(work, ROWS * WIDTH, type), .x = x, .n = ROWS * WIDTH, .type = type);
    RUN(work, gelu_backward, .dx = result(work, ROWS * WIDTH, type), .dout = input(work, 0), .x = x,
        .n = ROWS * WIDTH, .type = type);
    RUN(work, swiglu_forward, .out = result(work, ROWS * WIDTH / 2, type), .x = x, .N = ROWS, .F = WIDTH / 2,
        .type = type);
    RUN(work, swiglu_backward, .dx = result(work, ROWS * WIDTH, type), .dout = input(work, 0), .x = x,
        .N = ROWS, .F = WIDTH / 2, .type = type);
    return STATUS_OK;
}

static enum status run_attention(struct work *work) {
    const enum dtype type = work->type;
    const size_t size = dtype_size(type);
    const char *qkv = input(work, 0);
    char *gradient = result(work, POSITIONS * QKV, type);
    void *out = result(work, POSITIONS * HEADS * HEAD, type),
         *lse = result(work, POSITIONS * HEADS, DTYPE_F32);
    const size_t k = HEADS * HEAD * size, v = k + HEAD * size, all = POSITIONS * QKV;
    RUN(work, attention_forward, .out = out, .lse = lse, .q = qkv, .k = qkv + k, .v = qkv + v,
        .q_stride = QKV, .k_stride = QKV, .v_stride = QKV, .q_batch_stride = all, .k_batch_stride = all,
        .v_batch_stride = all, .B = 1, .T = POSITIONS, .S = POSITIONS, .H = HEADS, .D = HEAD, .K = 1,
        .kernel = ATTENTION_FLASH, .type = type);
    RUN(work, attention_backward, .dq = gradient, .dk = gradient + k, .dv = gradient + v,
        .dout = input(work, 20000), .out = out, .lse = lse, .q = qkv, .k = qkv + k, .v = qkv + v,
        .q_stride = QKV, .k_stride = QKV, .v_stride = QKV, .q_batch_stride = all, .k_batch_stride = all,
        .v_batch_stride = all, .B = 1, .T = POSITIONS, .H = HEADS, .D = HEAD, .K = 1,
        .kernel = ATTENTION_FLASH, .type = type);
    return STATUS_OK;
}

static enum status run_loss(struct work *work) {
    void *logits = result(work, ROWS * WIDTH, DTYPE_F32);
    RUN(work, linear_forward, .out = logits, .x = input(work, 0), .weight = input(work, 1000), .N = ROWS,
        .IC = LONG, .OC = WIDTH, .out_stride = WIDTH, .type = work->type, .out_type = DTYPE_F32);
    RUN(work, cross_entropy, .losses = result(work, ROWS, DTYPE_F32),
        .dlogits = result(work, ROWS * WIDTH, work->type), .logits = logits, .targets = work->labels,
        .N = ROWS, .V = WIDTH, .logits_stride = WIDTH, .dlogits_stride = WIDTH, .scale = 1.0f / ROWS,
        .soft_cap = 10, .type = work->type, .logits_type = DTYPE_F32);
    return STATUS_OK;
}

// Two updates by AdamW, the second with moments that are not zero.
static enum status run_updates(struct work *work, enum dtype state_type) {
    const struct optimizer_state state = {
        .master = result(work, UPDATED, DTYPE_F32),
        .m = result(work, UPDATED, state_type),
        .v = result(work, UPDATED, state_type),
        .m_scales = result(work, UPDATED / MOMENT_BLOCK, DTYPE_F32),
        .v_scales = result(work, UPDATED / MOMENT_BLOCK, DTYPE_F32),
    };
    void *param = work->type == DTYPE_F32 ? NULL : result(work, UPDATED, work->type);
    for (int step = 1; step <= 2; step++)
        RUN(work, optimizer_step, .rule = OPTIMIZER_ADAMW, .state = state, .param = param,
            .grad = input(work, (size_t)step * UPDATED), .n = UPDATED, .step = step, .lr = 1e-3, .beta1 = 0.9,
            .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .grad_scale = 0.7f, .type = work->type,
            .grad_type = work->type, .state_type = state_type);
    return STATUS_OK;
}

static enum status run_operations(struct work *work) {
    void *out;
    TRY(run_products(work, &out));
    TRY(run_norms(work, out));
    TRY(run_activations(work, out));
    TRY(run_attention(work));
    TRY(run_loss(work));
    TRY(run_updates(work, DTYPE_F32));
    return run_updates(work, DTYPE_I8);
}

static enum status work_init(struct work *work) {
    struct device *device = work->device;
    int32_t labels[ROWS];
    void *memory;
    for (int i = 0; i < ROWS; i++)
        labels[i] = 7 * i % WIDTH;
    TRY(stream_init(&work->stream, device));
    TRY(device->memory_new(device, N_INPUTS * dtype_size(work->type), "inputs of the fingerprint",
                           &work->inputs));
    TRY(device->memory_new(device, sizeof labels, "labels of the fingerprint", &memory));
    work->labels = memory;
    TRY(device->memory_new(device, RESULT_BYTES, "results of the fingerprint", &memory));
    work->results = memory;
    TRY(device->copy(&work->stream, work->labels, labels, sizeof labels));
    return device_fill_random(&work->stream, work->inputs, N_INPUTS * dtype_size(work->type), work->type);
}

static void work_free(struct work *work) {
    struct device *device = work->device;
    stream_drain(&work->stream);
    device->memory_delete(device, work->inputs, N_INPUTS * dtype_size(work->type));
    device->memory_delete(device, work->labels, ROWS * sizeof *work->labels);
    device->memory_delete(device, work->results, RESULT_BYTES);
    device->memory_delete(device, work->stream.workspace, work->stream.workspace_bytes);
    stream_free(&work->stream);
}

// Functions of the C library decide the bits of initial weights, learning rates and rotary tables.
enum { N_HOST_ARGUMENTS = 8, N_HOST_FUNCTIONS = 6 };
static void run_host_functions(double results[N_HOST_ARGUMENTS][N_HOST_FUNCTIONS]) {
    for (int i = 0; i < N_HOST_ARGUMENTS; i++) {
        const volatile double x = 0.37 + 1.61 * i; // volatile: not computed by the compiler
        const double values[N_HOST_FUNCTIONS] = {exp(-x), log(x), pow(x, 0.3), sin(x), cos(x), tanh(x)};
        memcpy(results[i], values, sizeof values);
    }
}

enum status device_fingerprint(struct device *device, enum dtype type, const char *library,
                               char out[FINGERPRINT_BYTES]) {
    struct work work = {.device = device, .type = type};
    double host[N_HOST_ARGUMENTS][N_HOST_FUNCTIONS];
    const size_t library_bytes = library ? strlen(library) : 0, after = sizeof host + library_bytes;
    char *bytes = allocate(1, after + RESULT_BYTES);
    enum status status = work_init(&work);
    if (status == STATUS_OK)
        status = run_operations(&work);
    if (status == STATUS_OK)
        status = device->copy(&work.stream, bytes + after, work.results, work.n_result_bytes);
    if (status == STATUS_OK)
        status = device->synchronize(&work.stream);
    work_free(&work);
    if (status == STATUS_OK) {
        run_host_functions(host);
        memcpy(bytes, host, sizeof host);
        memcpy(bytes + sizeof host, library ? library : "", library_bytes);
        XXH128_canonical_t digest;
        XXH128_canonicalFromHash(&digest, XXH3_128bits(bytes, after + work.n_result_bytes));
        for (size_t i = 0; i < sizeof digest.digest; i++)
            snprintf(out + 2 * i, 3, "%02x", digest.digest[i]);
    }
    free(bytes);
    return status;
}
