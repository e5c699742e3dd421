// Measures a device: the FLOP/s of matrix products, which utilization refers to, and memory bandwidth.
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/processors.h"
#include "base/rng.h"
#include "kernels/cost.h"
#include "kernels/device.h"

#define MEASURED_CPU_RATE 200e9 // estimated FLOP/s of a CPU, to choose the number of rows
#define MEASURED_TOGETHER 1e-3  // minimum seconds of GPU work per timing, to hide launch overhead
#define MOST_N_EMBD       4096  // wider products have the same rate, but may not fit into memory
#define MEASURED_WIDENING 4     // output columns per input column, as in the first layer of an MLP
#define MEASURED_RUNS     12    // minimum number of timings, so that one of them is hardly disturbed
#define MOST_TOGETHER     1024  // maximum number of products per timing
#define LEAST_ROWS        64

// ---- random numbers

#define RANDOM_PERIOD 65521 // elements until the numbers repeat: a prime, so that rows of a matrix differ
#define RANDOM_SEED   1

static void random_pattern(enum dtype type, char *pattern) {
    for (uint32_t i = 0; i < RANDOM_PERIOD; i++) {
        uint32_t words[4];
        rng_block(RANDOM_SEED, RNG_STREAM_SAMPLE, i, words);
        const float value = (float)(words[0] >> 8) * 0x1p-23F - 1; // in [-1, 1)
        const uint16_t half = type == DTYPE_BF16 ? bf16_from_float(value) : f16_from_float(value);
        if (type == DTYPE_F32)
            memcpy(pattern + sizeof value * i, &value, sizeof value);
        else
            memcpy(pattern + sizeof half * i, &half, sizeof half);
    }
}

enum status device_fill_random(struct stream *stream, void *memory, size_t bytes, enum dtype type) {
    const size_t period = RANDOM_PERIOD * dtype_size(type);
    char *pattern = allocate(period, 1);
    random_pattern(type, pattern);
    size_t filled = bytes < period ? bytes : period;
    enum status status = stream->device->copy(stream, memory, pattern, filled);
    while (filled < bytes && status == STATUS_OK) {
        const size_t next = filled < bytes - filled ? filled : bytes - filled;
        status = stream->device->copy(stream, (char *)memory + filled, memory, next);
        filled += next;
    }
    free(pattern);
    return status;
}

// ---- the rate of matrix products

struct measured_product {
    struct linear_forward_args args;
    size_t x_bytes, weight_bytes, out_bytes;
    void *x, *weight, *out;
    struct stream stream;
    int n_together; // products per timing
    bool is_lent;   // the memory belongs to the caller, who passed a struct gemm_memory
};

static void measured_product_free(struct device *device, struct measured_product *product) {
    stream_drain(&product->stream); // after a failure, copies may still be in flight
    if (!product->is_lent) {
        device->memory_delete(device, product->x, product->x_bytes);
        device->memory_delete(device, product->weight, product->weight_bytes);
        device->memory_delete(device, product->out, product->out_bytes);
        device->memory_delete(device, product->stream.workspace, product->stream.workspace_bytes);
    }
    stream_free(&product->stream);
}

// Takes memory from the arena that the caller lent, or allocates it.
static enum status take(struct device *device, const struct measured_product *product, struct arena *lent,
                        size_t bytes, void **out) {
    if (!product->is_lent)
        return device->memory_new(device, bytes, "matrices for measuring the GEMM rate", out);
    if (lent->bytes < bytes)
        return FAIL(STATUS_FAILED, "the memory lent for measuring the GEMM rate is too small");
    const size_t taken = region_padded(bytes) < lent->bytes ? region_padded(bytes) : lent->bytes;
    *out = lent->data;
    lent->data = (char *)lent->data + taken;
    lent->bytes -= taken;
    return STATUS_OK;
}

static enum status measured_product_init(struct device *device, int rows, int n_embd, enum dtype type,
                                         const struct gemm_memory *memory, struct measured_product *product) {
    struct gemm_memory lent = memory ? *memory : (struct gemm_memory){0};
    int64_t size = (int64_t)dtype_size(type);
    int n_out = MEASURED_WIDENING * n_embd;
    product->x_bytes = (size_t)(size * rows * n_embd);
    product->out_bytes = (size_t)(size * rows * n_out);
    product->weight_bytes = (size_t)(size * n_out * n_embd);
    TRY(stream_init(&product->stream, device));
    product->is_lent = memory != NULL;
    TRY(take(device, product, &lent.matrices, product->x_bytes, &product->x));
    TRY(take(device, product, &lent.matrices, product->out_bytes, &product->out));
    TRY(take(device, product, &lent.weights, product->weight_bytes, &product->weight));
    TRY(device_fill_random(&product->stream, product->x, product->x_bytes, type));
    if (!memory)
        TRY(device_fill_random(&product->stream, product->weight, product->weight_bytes, type));
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
    return take(device, product, &lent.workspace, product->stream.workspace_bytes,
                &product->stream.workspace);
}

static enum status run_product(struct device *device, struct measured_product *product, double *seconds) {
    double start = clock_monotonic_s();
    for (int i = 0; i < product->n_together; i++)
        TRY(device->ops->linear_forward(&product->stream, &product->args));
    TRY(device->synchronize(&product->stream));
    *seconds = (clock_monotonic_s() - start) / product->n_together;
    return STATUS_OK;
}

// On a GPU, raises n_together until one timing hides the launch overhead; on the CPU it stays 1.
static enum status choose_together(struct device *device, struct measured_product *product) {
    double seconds;
    product->n_together = 1;
    TRY(run_product(device, product, &seconds)); // warm-up: fills caches
    while (device->place == REGION_DEVICE && product->n_together < MOST_TOGETHER) {
        TRY(run_product(device, product, &seconds));
        if (seconds * product->n_together >= MEASURED_TOGETHER)
            break;
        product->n_together *= 2;
    }
    return STATUS_OK;
}

// Times products of `flops` FLOPs each: at least MEASURED_RUNS times and for at least `at_least` seconds.
static enum status time_products(struct device *device, struct measured_product *product, double flops,
                                 double at_least, struct gemm_rate *rate) {
    double seconds, sum = 0;
    int n_runs = 0;
    rate->best = 0;
    TRY(choose_together(device, product));
    for (double began = clock_monotonic_s(); n_runs < MEASURED_RUNS || clock_monotonic_s() - began < at_least;
         n_runs++) {
        TRY(run_product(device, product, &seconds));
        sum += seconds;
        if (flops / seconds > rate->best)
            rate->best = flops / seconds;
    }
    rate->mean = flops * n_runs / sum;
    return STATUS_OK;
}

// The number of rows to multiply. On the CPU, MEASURED_RUNS products should fit into `seconds`. At least
// LEAST_ROWS, to fill the GEMM kernel.
static int measured_rows(const struct device *device, int rows, int n_embd, double seconds) {
    double flop_per_row = 2.0 * n_embd * MEASURED_WIDENING * n_embd;
    double fitting = MEASURED_CPU_RATE * seconds / MEASURED_RUNS / flop_per_row;
    if (device->place == REGION_HOST && rows > fitting)
        rows = (int)fitting;
    return rows < LEAST_ROWS ? LEAST_ROWS : rows;
}

enum status device_measure_gemm_rate(struct device *device, int rows, int n_embd, enum dtype type,
                                     double seconds, const struct gemm_memory *memory,
                                     struct gemm_rate *rate) {
    n_embd = n_embd < MOST_N_EMBD ? n_embd : MOST_N_EMBD;
    rows = measured_rows(device, rows, n_embd, seconds);
    struct measured_product product = {0};
    enum status status = measured_product_init(device, rows, n_embd, type, memory, &product);
    if (status == STATUS_OK)
        status =
            time_products(device, &product, 2.0 * rows * n_embd * MEASURED_WIDENING * n_embd, seconds, rate);
    measured_product_free(device, &product);
    return status;
}

// ---- memory bandwidth

#define MEASURED_CACHES       4 // both arrays together have this many times the size of the caches
#define LEAST_MEASURED        ((size_t)64 << 20)
#define MOST_MEASURED         ((size_t)2 << 30)
#define MEASURED_ON_DEVICE    ((size_t)1 << 30) // bytes of both arrays on a GPU; several times its cache
#define MEASURED_OF_AVAILABLE 8                 // use at most 1/8 of the available memory
#define MEASURED_PASSES       4

// Total bytes of the two arrays.
static enum status measured_bytes(struct device *device, size_t *bytes) {
    size_t available = memory_available_bytes(), wanted = MEASURED_CACHES * processors_cache_bytes();
    if (device->place == REGION_DEVICE) {
        TRY(device_memory_available(device, &available));
        wanted = MEASURED_ON_DEVICE;
    }
    wanted = wanted < LEAST_MEASURED ? LEAST_MEASURED : wanted > MOST_MEASURED ? MOST_MEASURED : wanted;
    *bytes = wanted < available / MEASURED_OF_AVAILABLE ? wanted : available / MEASURED_OF_AVAILABLE;
    return STATUS_OK;
}

// Allocates an array and writes to it: pages that were never written would all be read from one page of
// zeros.
static enum status new_array(struct stream *stream, size_t n, void **array) {
    struct device *device = stream->device;
    TRY(device->memory_new(device, n * sizeof(float), "arrays for measuring memory bandwidth", array));
    return device->ops->fill(stream, &(struct fill_args){.out = *array, .n = n, .type = DTYPE_F32});
}

// Sets *seconds to the time of the fastest pass; the first pass is a warm-up and does not count. A pass is a
// step of SGD without momentum, which adds a multiple of the gradients to the weights: two reads, a write,
// and almost no arithmetic.
static enum status time_passes(struct stream *stream, const struct optimizer_step_args *pass,
                               double *seconds) {
    *seconds = HUGE_VAL;
    for (int i = 0; i <= MEASURED_PASSES; i++) {
        double began = clock_monotonic_s();
        TRY(stream->device->ops->optimizer_step(stream, pass));
        TRY(stream->device->synchronize(stream));
        double elapsed = clock_monotonic_s() - began;
        if (i > 0 && elapsed < *seconds)
            *seconds = elapsed;
    }
    return STATUS_OK;
}

enum status device_measure_bandwidth(struct device *device, double *bytes_per_s) {
    struct stream stream;
    void *arrays[2] = {NULL, NULL};
    size_t bytes, n;
    double seconds = 1;
    TRY(measured_bytes(device, &bytes));
    n = bytes / (2 * sizeof(float));
    TRY(stream_init(&stream, device));
    enum status status = STATUS_OK;
    for (int i = 0; i < 2 && status == STATUS_OK; i++)
        status = new_array(&stream, n, &arrays[i]);
    struct optimizer_step_args pass = {.rule = OPTIMIZER_SGD,
                                       .state = {.master = arrays[0]},
                                       .grad = arrays[1],
                                       .n = n,
                                       .step = 1,
                                       .lr = 1e-9,
                                       .grad_scale = 1,
                                       .type = DTYPE_F32};
    if (status == STATUS_OK)
        status = time_passes(&stream, &pass, &seconds);
    *bytes_per_s = cost_of_operation(OP_optimizer_step, &pass).bytes / seconds;
    for (int i = 0; i < 2; i++)
        device->memory_delete(device, arrays[i], n * sizeof(float));
    stream_free(&stream);
    return status;
}

// ---- dense peaks of GPUs, from the vendor's figures

// Sources: NVIDIA's data sheets and architecture white papers. Data sheets state 16-bit figures with sparsity
// where they do not say "dense"; such figures are halved here. GeForce GPUs run 16-bit products with fp32
// sums at half the rate that is stated for fp16 sums.
// Names are shell patterns. The first row whose name and capability match applies.
static const struct {
    const char *name;
    int capability;
    double peak_16_bit, peak_fp32; // TFLOP/s
} gpus[] = {
    {"NVIDIA A100*", 80, 312, 19.5},
    {"NVIDIA A800*", 80, 312, 19.5},
    {"NVIDIA A30", 80, 165, 10.3},
    {"NVIDIA A10", 86, 125, 31.2},
    {"NVIDIA A40", 86, 149.7, 37.4},
    {"NVIDIA RTX A6000", 86, 154.8, 38.7},
    {"NVIDIA GeForce RTX 3090", 86, 71, 35.6},
    {"NVIDIA GeForce RTX 3090 Ti", 86, 80, 40},
    {"NVIDIA L4", 89, 121, 30.3},
    {"NVIDIA L40", 89, 181, 90.5},
    {"NVIDIA L40S", 89, 362, 91.6},
    {"NVIDIA RTX 6000 Ada Generation", 89, 364.2, 91.1},
    {"NVIDIA GeForce RTX 4080", 89, 97.5, 48.7},
    {"NVIDIA GeForce RTX 4090", 89, 165.2, 82.6},
    {"NVIDIA H100 PCIe", 90, 756.5, 51.2},
    {"NVIDIA H100 NVL", 90, 835.5, 60},
    {"NVIDIA H100*", 90, 989.4, 66.9},
    {"NVIDIA H800 PCIe", 90, 756.5, 51.2},
    {"NVIDIA H800*", 90, 989.4, 66.9},
    {"NVIDIA H200 NVL", 90, 835.5, 60},
    {"NVIDIA H200*", 90, 989.4, 66.9},
    {"NVIDIA GH200*", 90, 989.4, 66.9},
    {"NVIDIA H20", 90, 148, 44},
    {"NVIDIA B200*", 100, 2250, 75},
    {"NVIDIA GB200*", 100, 2500, 80},
    {"NVIDIA GeForce RTX 5090", 120, 209.5, 104.8},
};

double gpu_dense_peak(const char *name, int capability, enum dtype type) {
    if (strstr(name, "MIG"))
        return 0;
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++)
        if (gpus[i].capability == capability && fnmatch(gpus[i].name, name, 0) == 0)
            return (type == DTYPE_F32 ? gpus[i].peak_fp32 : gpus[i].peak_16_bit) * 1e12;
    return 0;
}
