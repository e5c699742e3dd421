// Runs newton_schulz on a device without a model: its memory, matrices in that memory, and the error that
// fp32 allows. For tests that link zero/stages.
#ifndef ZERO_TESTS_SUPPORT_NEWTON_SCHULZ_BENCH_H
#define ZERO_TESTS_SUPPORT_NEWTON_SCHULZ_BENCH_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "kernels/region_memory.h"
#include "tests/ref/ref.h"
#include "tests/support/expect.h"
#include "zero/optimizer/rules/newton_schulz.h"

// Areas of device memory: the matrix, and the buffers of an optimizer step.
enum bench_area {
    BENCH_X,
    BENCH_GRAD,
    BENCH_MOMENTUM,
    BENCH_WEIGHT,
    BENCH_PLAN,
    BENCH_RESULT,
    N_BENCH_AREAS
};

struct bench {
    struct device *device;
    struct stream stream;
    struct region_memory memory;
    struct newton_schulz products;
    struct matrix_shape shape;
    size_t n;
    enum dtype type;
    int areas[N_BENCH_AREAS];
};

static inline struct device *bench_device(const char *name) {
    struct device *device;
    EXPECT_OK(strcmp(name, "ref") == 0 ? ref_device_open(&device) : device_open(name, 2, 0, &device));
    return device;
}

//   name        of a device: "ref", "cpu" or "cuda"
//   in_strips   symmetric products are computed in narrow strips, as for large matrices on GPUs and CPUs with
//   AMX
static inline void bench_open(struct bench *bench, const char *name, enum dtype type,
                              struct matrix_shape shape, bool in_strips) {
    const size_t n = (size_t)(shape.rows * shape.columns), bytes = n * dtype_size(type),
                 sizes[N_BENCH_AREAS] = {
                     bytes, bytes, bytes, bytes, sizeof(struct update_plan), sizeof(struct update_result)};
    *bench = (struct bench){.device = bench_device(name), .shape = shape, .n = n, .type = type};
    struct region_table *table = &bench->memory.table;
    if (in_strips)
        bench->device->symmetric_strips[type] = 96;
    EXPECT_OK(stream_init(&bench->stream, bench->device));
    region_memory_init(&bench->memory, bench->device);
    bench->products = (struct newton_schulz){.device = bench->device, .type = type};
    EXPECT_OK(newton_schulz_plan(&bench->products, &(struct newton_schulz_batch){.shape = shape, .n = 1}, 1,
                                 table));
    for (int i = 0; i < N_BENCH_AREAS; i++)
        EXPECT_OK(region_add(table, REGION_DATA, bench->device->place, DTYPE_U8, sizes[i], &bench->areas[i],
                             "tests: area %d", i));
    EXPECT_OK(region_memory_allocate(&bench->memory));
    newton_schulz_bind(&bench->products, table);
}

static inline void bench_close(struct bench *bench) {
    region_memory_free(&bench->memory);
    stream_free(&bench->stream);
    device_close(bench->device);
}

static inline void *bench_at(const struct bench *bench, enum bench_area area) {
    return region_data(&bench->memory.table, bench->areas[area]);
}

static inline void bench_write(struct bench *bench, enum bench_area area, const void *from, size_t bytes) {
    EXPECT_OK(bench->device->copy(&bench->stream, bench_at(bench, area), from, bytes));
    EXPECT_OK(bench->device->synchronize(&bench->stream));
}

// Writes numbers to a matrix, in the bench's type.
static inline void bench_put(struct bench *bench, enum bench_area area, const double *from) {
    void *host = calloc(bench->n, sizeof(double));
    assert_non_null(host);
    for (size_t i = 0; i < bench->n; i++)
        if (bench->type == DTYPE_F64)
            ((double *)host)[i] = from[i];
        else if (bench->type == DTYPE_F32)
            ((float *)host)[i] = (float)from[i];
        else
            ((uint16_t *)host)[i] = bf16_from_float((float)from[i]);
    bench_write(bench, area, host, bench->n * dtype_size(bench->type));
    free(host);
}

static inline void bench_get(struct bench *bench, enum bench_area area, double *to) {
    void *host = calloc(bench->n, sizeof(double));
    assert_non_null(host);
    EXPECT_OK(
        bench->device->copy(&bench->stream, host, bench_at(bench, area), bench->n * dtype_size(bench->type)));
    EXPECT_OK(bench->device->synchronize(&bench->stream));
    for (size_t i = 0; i < bench->n; i++)
        to[i] = bench->type == DTYPE_F64   ? ((double *)host)[i]
                : bench->type == DTYPE_F32 ? (double)((float *)host)[i]
                                           : (double)bf16_to_float(((uint16_t *)host)[i]);
    free(host);
}

static inline void bench_run(struct bench *bench) {
    const struct newton_schulz_batch batch = {.shape = bench->shape, .n = 1};
    EXPECT_OK(newton_schulz_run(&bench->products, &bench->stream, bench_at(bench, BENCH_X), &batch));
}

// Replaces x by the device's result.
static inline void bench_orthogonalize(struct bench *bench, double *x) {
    bench_put(bench, BENCH_X, x);
    bench_run(bench);
    bench_get(bench, BENCH_X, x);
}

// The tolerance of an element. In fp32, a step multiplies an error by at most 3.4445, its factor for small
// singular values. Its three products each add errors of at most (k + 2) roundings of matrices with norm
// about 1 (to first order). Singular values stay below 3.5, and the polynomial's coefficients add up to less
// than 11.
static inline double newton_schulz_tolerance(enum dtype type, struct matrix_shape shape) {
    const double k = (double)(shape.rows > shape.columns ? shape.rows : shape.columns);
    double grown = 0;
    for (int i = 0; i < NEWTON_SCHULZ_STEPS; i++)
        grown = 3.4445 * grown + (k + 2);
    return type == DTYPE_F64 ? 1e-10 : 0x1p-24 * grown;
}

#endif
