// Times attention by flash and by cuDNN on a device, as a training run calls it, and checks that cuDNN gives
// the same bits in every call. Where the model rotates queries and keys, that is timed too: flash saves a
// part of it.
#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/rng.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "kernels/rotation.h"

#define MEASURED_ROUNDS    3
#define MEASURED_TOGETHER  2e-3 // seconds of GPU work per timing, long enough to hide launch overhead
#define MOST_TOGETHER      256
#define TOLERATED_EPSILONS 8 // relative difference of cuDNN's and flash's results, in norm
#define PURPOSE            "tensors for measuring attention"

enum result { RESULT_OUT, RESULT_LSE, RESULT_GRADIENTS, N_RESULTS };

struct measured_attention {
    struct device *device;
    const struct attention_shape *shape;
    struct stream stream;
    size_t channels_bytes; // of a (B, T, H D) tensor
    size_t qkv_bytes;      // of q, k and v, or of their gradients
    size_t bytes[N_RESULTS];
    size_t table_bytes; // 0 without RoPE
    void *qkv, *dout, *table, *results[N_RESULTS];
    void *seen[N_RESULTS]; // host copies
    struct attention_forward_args forward;
    struct attention_backward_args backward;
    struct rope_forward_args rope;       // before forward, with a table
    struct rope_backward_args rope_back; // after backward, where that does not rotate
};

static enum status out_of_memory(void) {
    return FAIL(STATUS_FAILED, "out of host memory for measuring attention");
}

static void *after(void *base, size_t bytes) {
    return (char *)base + bytes;
}

static void describe_calls(struct measured_attention *m) {
    const struct attention_shape *shape = m->shape;
    const size_t D = (size_t)shape->D, stride = (size_t)(shape->H + 2 * shape->K) * D;
    const size_t batch_stride = (size_t)shape->T * stride, size = dtype_size(shape->type);
    const size_t at_k = (size_t)shape->H * D * size, at_v = at_k + (size_t)shape->K * D * size;
    void *k = after(m->qkv, at_k), *v = after(m->qkv, at_v);
    void *gradients = m->results[RESULT_GRADIENTS];
    m->forward = (struct attention_forward_args){.out = m->results[RESULT_OUT],
                                                 .lse = m->results[RESULT_LSE],
                                                 .q = m->qkv,
                                                 .k = k,
                                                 .v = v,
                                                 .q_stride = stride,
                                                 .q_batch_stride = batch_stride,
                                                 .k_stride = stride,
                                                 .v_stride = stride,
                                                 .k_batch_stride = batch_stride,
                                                 .v_batch_stride = batch_stride,
                                                 .B = shape->B,
                                                 .T = shape->T,
                                                 .S = shape->T,
                                                 .H = shape->H,
                                                 .K = shape->K,
                                                 .D = shape->D,
                                                 .window = shape->window,
                                                 .type = shape->type};
    m->backward = (struct attention_backward_args){.dq = gradients,
                                                   .dk = after(gradients, at_k),
                                                   .dv = after(gradients, at_v),
                                                   .dout = m->dout,
                                                   .out = m->results[RESULT_OUT],
                                                   .lse = m->results[RESULT_LSE],
                                                   .q = m->qkv,
                                                   .k = k,
                                                   .v = v,
                                                   .q_stride = stride,
                                                   .q_batch_stride = batch_stride,
                                                   .k_stride = stride,
                                                   .k_batch_stride = batch_stride,
                                                   .v_stride = stride,
                                                   .v_batch_stride = batch_stride,
                                                   .B = shape->B,
                                                   .T = shape->T,
                                                   .H = shape->H,
                                                   .K = shape->K,
                                                   .D = shape->D,
                                                   .window = shape->window,
                                                   .type = shape->type};
}

// Passes over queries and keys, which follow each other in a row, and over their gradients; or, where
// attention rotates the queries and both gradients, one over the keys.
static void describe_rotation(struct measured_attention *m) {
    const bool fused = device_attention_rotates(m->device, m->shape->type, m->shape->D);
    m->forward.table = m->backward.table = m->table;
    m->rope = rotation_of_queries(&m->forward);
    m->rope_back = rotation_of_gradients(&m->backward, 0);
    m->rope.K = m->rope_back.K = m->shape->K;
    if (fused) {
        m->rope.x = m->rope.out = (void *)m->forward.k;
        m->rope.H = 0;
    } else
        m->forward.table = m->backward.table = NULL;
}

// Copies values `times` times, one after another, and frees them.
static enum status upload(struct measured_attention *m, void *to, void *values, size_t bytes, size_t times) {
    enum status status = STATUS_OK;
    for (size_t i = 0; i < times && status == STATUS_OK; i++)
        status = m->device->copy(&m->stream, after(to, i * bytes), values, bytes);
    if (status == STATUS_OK)
        status = m->device->synchronize(&m->stream);
    free(values);
    return status;
}

// Angles of zero, cos 1 and sin 0: rotating in place once more changes nothing, and takes as long.
static enum status fill_table(struct measured_attention *m) {
    float *values = malloc(m->table_bytes);
    if (!values)
        return out_of_memory();
    for (size_t i = 0; i < m->table_bytes / sizeof *values; i++)
        values[i] = i % 2 == 0;
    return upload(m, m->table, values, m->table_bytes, 1);
}

// Random numbers in [-1, 1), the same in each sequence. Zeros would be computed faster.
static enum status fill_random(struct measured_attention *m, void *to, size_t bytes, uint64_t tensor) {
    const size_t n = (size_t)m->shape->B, sequence = bytes / n;
    uint16_t *values = malloc(sequence);
    if (!values)
        return out_of_memory();
    for (size_t i = 0; i < sequence / sizeof *values; i++) {
        float value = (float)(2 * rng_uniform(tensor, 0, i) - 1);
        values[i] = m->shape->type == DTYPE_F16 ? f16_from_float(value) : bf16_from_float(value);
    }
    return upload(m, to, values, sequence, n);
}

static void measured_free(struct measured_attention *m) {
    m->device->memory_delete(m->device, m->qkv, m->qkv_bytes);
    m->device->memory_delete(m->device, m->dout, m->channels_bytes);
    m->device->memory_delete(m->device, m->table, m->table_bytes);
    for (int i = 0; i < N_RESULTS; i++) {
        m->device->memory_delete(m->device, m->results[i], m->bytes[i]);
        free(m->seen[i]);
    }
    stream_free(&m->stream);
}

static enum status measured_init(struct measured_attention *m) {
    const struct attention_shape *shape = m->shape;
    const size_t rows = (size_t)shape->B * (size_t)shape->T * (size_t)shape->H;
    m->channels_bytes = rows * (size_t)shape->D * dtype_size(shape->type);
    m->qkv_bytes = m->channels_bytes / (size_t)shape->H * (size_t)(shape->H + 2 * shape->K);
    m->table_bytes = shape->rope ? (size_t)shape->T * (size_t)shape->D * sizeof(float) : 0;
    m->bytes[RESULT_OUT] = m->channels_bytes;
    m->bytes[RESULT_LSE] = rows * sizeof(float);
    m->bytes[RESULT_GRADIENTS] = m->qkv_bytes;
    TRY(stream_init(&m->stream, m->device));
    TRY(m->device->memory_new(m->device, m->qkv_bytes, PURPOSE, &m->qkv));
    TRY(m->device->memory_new(m->device, m->channels_bytes, PURPOSE, &m->dout));
    for (int i = 0; i < N_RESULTS; i++) {
        TRY(m->device->memory_new(m->device, m->bytes[i], PURPOSE, &m->results[i]));
        m->seen[i] = malloc(m->bytes[i]);
        if (!m->seen[i])
            return out_of_memory();
    }
    if (shape->rope) {
        TRY(m->device->memory_new(m->device, m->table_bytes, PURPOSE, &m->table));
        TRY(fill_table(m));
    }
    describe_calls(m);
    TRY(fill_random(m, m->qkv, m->qkv_bytes, 1));
    return fill_random(m, m->dout, m->channels_bytes, 2);
}

// ---- runs

static enum status run_together(struct measured_attention *m, int n, double *seconds) {
    const struct ops *ops = m->device->ops;
    double began = clock_monotonic_s();
    for (int i = 0; i < n; i++) {
        if (m->table)
            TRY(ops->rope_forward(&m->stream, &m->rope));
        TRY(ops->attention_forward(&m->stream, &m->forward));
        TRY(ops->attention_backward(&m->stream, &m->backward));
        if (m->table && !m->backward.table)
            TRY(ops->rope_backward(&m->stream, &m->rope_back));
    }
    TRY(m->device->synchronize(&m->stream));
    *seconds = (clock_monotonic_s() - began) / n;
    return STATUS_OK;
}

static enum status time_runs(struct measured_attention *m, double *best) {
    int n = 1;
    double seconds;
    TRY(run_together(m, n, best)); // warm-up: builds what is cached
    while (*best * n < MEASURED_TOGETHER && n < MOST_TOGETHER) {
        n *= 2;
        TRY(run_together(m, n, best));
    }
    for (int round = 0; round < MEASURED_ROUNDS; round++) {
        TRY(run_together(m, n, &seconds));
        *best = fmin(*best, seconds);
    }
    return STATUS_OK;
}

static enum status read_result(struct measured_attention *m, int i, void *out) {
    TRY(m->device->copy(&m->stream, out, m->results[i], m->bytes[i]));
    return m->device->synchronize(&m->stream);
}

static enum status remember_results(struct measured_attention *m) {
    for (int i = 0; i < N_RESULTS; i++)
        TRY(read_result(m, i, m->seen[i]));
    return STATUS_OK;
}

static double value_at(enum dtype type, const void *values, size_t i) {
    return type == DTYPE_F32   ? (double)((const float *)values)[i]
           : type == DTYPE_F16 ? (double)f16_to_float(((const uint16_t *)values)[i])
                               : (double)bf16_to_float(((const uint16_t *)values)[i]);
}

static bool is_close(const struct measured_attention *m, int result, const void *now) {
    const enum dtype type = result == RESULT_LSE ? DTYPE_F32 : m->shape->type;
    const double tolerance = TOLERATED_EPSILONS * dtype_epsilon(m->shape->type);
    double difference = 0, size = 0;
    for (size_t i = 0; i < m->bytes[result] / dtype_size(type); i++) {
        const double a = value_at(type, now, i), b = value_at(type, m->seen[result], i);
        difference += (a - b) * (a - b);
        size += b * b;
    }
    return difference <= tolerance * tolerance * size; // false for NaN
}

// Compares the results with those remembered: their bits, or their values.
static enum status compare_results(struct measured_attention *m, bool bits, bool *equal) {
    for (int i = 0; i < N_RESULTS && *equal; i++) {
        void *now = malloc(m->bytes[i]);
        if (!now)
            return out_of_memory();
        enum status status = read_result(m, i, now);
        if (status == STATUS_OK)
            *equal = bits ? memcmp(now, m->seen[i], m->bytes[i]) == 0 : is_close(m, i, now);
        free(now);
        TRY(status);
    }
    return STATUS_OK;
}

// One kernel, in a workspace of the size it wants.
static enum status with_kernel(struct measured_attention *m, enum attention_kernel kernel,
                               enum status (*body)(struct measured_attention *, struct attention_times *),
                               struct attention_times *out) {
    struct device *device = m->device;
    const enum attention_kernel before = device->attention;
    size_t forward = 0, backward = 0;
    device->attention = kernel;
    describe_rotation(m);
    enum status status = device->ops->workspace_bytes(device, OP_attention_forward, &m->forward, &forward);
    if (status == STATUS_OK)
        status = device->ops->workspace_bytes(device, OP_attention_backward, &m->backward, &backward);
    m->stream.workspace_bytes = forward > backward ? forward : backward;
    if (status == STATUS_OK)
        status = device->memory_new(device, m->stream.workspace_bytes, PURPOSE, &m->stream.workspace);
    if (status == STATUS_OK)
        status = body(m, out);
    device->attention = before;
    stream_drain(&m->stream);
    device->memory_delete(device, m->stream.workspace, m->stream.workspace_bytes);
    m->stream.workspace = NULL;
    return status;
}

static enum status measure_flash(struct measured_attention *m, struct attention_times *out) {
    TRY(time_runs(m, &out->flash_s));
    return remember_results(m);
}

static enum status measure_cudnn(struct measured_attention *m, struct attention_times *out) {
    double seconds;
    out->reproducible = true;
    TRY(run_together(m, 1, &seconds));
    TRY(compare_results(m, false, &out->reproducible));
    TRY(remember_results(m));
    TRY(time_runs(m, &out->cudnn_s));
    return compare_results(m, true, &out->reproducible);
}

enum status device_measure_attention(struct device *device, const struct attention_shape *shape,
                                     struct attention_times *out) {
    struct measured_attention m = {.device = device, .shape = shape};
    *out = (struct attention_times){0};
    enum status status = measured_init(&m);
    if (status == STATUS_OK)
        status = with_kernel(&m, ATTENTION_FLASH, measure_flash, out);
    if (status == STATUS_OK)
        status = with_kernel(&m, ATTENTION_CUDNN, measure_cudnn, out);
    measured_free(&m);
    return status;
}
