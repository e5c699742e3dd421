// What is common to all devices: opening by name, and measuring which compute type is the faster one.
#include "kernels/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kernels/cpu/cpu.h"
#include "kernels/ops.h"

const char *operation_name(enum operation operation) {
#define OPERATION_TEXT(name) #name,
    static const char *const names[N_OPERATIONS] = {OPERATIONS(OPERATION_TEXT)};
#undef OPERATION_TEXT
    return names[operation];
}

enum status device_open(const char *name, int n_threads, struct device **out) {
    if (strcmp(name, "cpu") == 0 || strcmp(name, "auto") == 0)
        return cpu_device_open(NULL, n_threads, out);
    return FAIL(STATUS_UNSUPPORTED, "this build has no device \"%s\"; device is \"auto\" or \"cpu\"", name);
}

void device_close(struct device *device) {
    if (!device)
        return;
    if (strcmp(device->name, "cpu") == 0)
        cpu_device_close(device);
    else
        free(device); // ref: nothing but the struct
}

// ---- the faster compute type

#define MEASURED_FLOP     4e9 // of one product at most: about 20 ms at 200 GFLOP/s
#define MEASURED_WIDENING 4   // as an MLP's first half
#define MEASURED_REPEATS  4
#define BF16_MUST_GAIN    1.10

struct measured_product {
    struct linear_forward_args args;
    size_t x_bytes, weight_bytes, out_bytes;
    void *x, *weight, *out;
    struct stream stream;
};

static void measured_product_free(struct device *device, struct measured_product *product) {
    device->memory_delete(device, product->x, product->x_bytes);
    device->memory_delete(device, product->weight, product->weight_bytes);
    device->memory_delete(device, product->out, product->out_bytes);
    device->memory_delete(device, product->stream.workspace, product->stream.workspace_bytes);
}

static enum status measured_product_init(struct device *device, int rows, int n_embd, enum dtype type,
                                         struct measured_product *product) {
    int64_t size = (int64_t)dtype_size(type);
    int n_out = MEASURED_WIDENING * n_embd;
    product->x_bytes = (size_t)(size * rows * n_embd);
    product->out_bytes = (size_t)(size * rows * n_out);
    product->weight_bytes = (size_t)(size * n_out * n_embd);
    product->stream.device = device;
    TRY(device->memory_new(device, product->x_bytes, "the measured products", &product->x));
    TRY(device->memory_new(device, product->weight_bytes, "the measured products", &product->weight));
    TRY(device->memory_new(device, product->out_bytes, "the measured products", &product->out));
    product->args = (struct linear_forward_args){
        .out = product->out,
        .x = product->x,
        .weight = product->weight,
        .N = rows,
        .IC = n_embd,
        .OC = n_out,
        .out_stride = n_out,
        .type = type,
        .out_type = type,
    };
    TRY(device->ops->workspace_bytes(device, OP_linear_forward, &product->args,
                                     &product->stream.workspace_bytes));
    return device->memory_new(device, product->stream.workspace_bytes, "the measured products",
                              &product->stream.workspace);
}

// The best of a few runs, after one that builds what is built once.
static enum status time_product(struct device *device, int rows, int n_embd, enum dtype type,
                                double *seconds) {
    struct measured_product product = {0};
    enum status status = measured_product_init(device, rows, n_embd, type, &product);
    *seconds = HUGE_VAL;
    for (int i = 0; i <= MEASURED_REPEATS && status == STATUS_OK; i++) {
        double start = clock_monotonic_s();
        status = device->ops->linear_forward(&product.stream, &product.args);
        if (status == STATUS_OK)
            status = device->synchronize(&product.stream);
        double elapsed = clock_monotonic_s() - start;
        if (i > 0 && elapsed < *seconds)
            *seconds = elapsed;
    }
    measured_product_free(device, &product);
    return status;
}

// As many rows as take a few milliseconds, and enough for a full kernel.
static int measured_rows(int rows, int n_embd) {
    double flop_per_row = 2.0 * n_embd * MEASURED_WIDENING * n_embd;
    if (rows > MEASURED_FLOP / flop_per_row)
        rows = (int)(MEASURED_FLOP / flop_per_row);
    return rows < 64 ? 64 : rows;
}

enum status device_measure_gemm_rate(struct device *device, int rows, int n_embd, enum dtype type,
                                     double *flops_per_s) {
    double seconds = 0;
    rows = measured_rows(rows, n_embd);
    TRY(time_product(device, rows, n_embd, type, &seconds));
    *flops_per_s = 2.0 * rows * n_embd * MEASURED_WIDENING * n_embd / seconds;
    return STATUS_OK;
}

enum status device_measure_compute_type(struct device *device, int rows, int n_embd, enum dtype *out) {
    double fp32 = 0, bf16 = 0;
    TRY(device_measure_gemm_rate(device, rows, n_embd, DTYPE_F32, &fp32));
    TRY(device_measure_gemm_rate(device, rows, n_embd, DTYPE_BF16, &bf16));
    *out = bf16 > fp32 * BF16_MUST_GAIN ? DTYPE_BF16 : DTYPE_F32;
    return STATUS_OK;
}
