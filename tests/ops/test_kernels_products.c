// Large products on a CPU, in several cells and tiles of each dimension: each element is the sum of its
// products, and has the same bits for any number of threads. The operations' own checks have smaller shapes.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "kernels/device.h"
#include "tests/ops/op_case.h"
#include "tests/support/expect.h"

// Dividing them leaves parts of tiles, panels and registers. Each product sums over another dimension.
enum { N = 901, IC = 770, OC = 1101, SAMPLES = 400 };
static const int thread_counts[] = {1, 2, 3, 7};
enum { N_THREAD_COUNTS = sizeof thread_counts / sizeof *thread_counts };

struct product_case {
    const char *instruction_set;
    enum dtype type;
};

// Elements of the case's type, or fp32.
static float x[N * IC], weight[OC * IC], dout[N * OC], residual[N * OC];
static float before[OC * IC], wide[N * OC];

struct results {
    float out[N * OC], dx[N * IC]; // elements of the case's type
    float logits[N * OC], dweight[OC * IC];
};

static void fill(struct stream *stream, void *to, size_t n, uint32_t seed, enum dtype type) {
    for (size_t i = 0; i < n; i++)
        wide[i] = (float)rng_normal(91, seed, i);
    struct cast_args cast = {.out = to, .x = wide, .n = n, .type = DTYPE_F32, .out_type = type};
    EXPECT_OK(stream->device->ops->cast(stream, &cast));
}

static void take_workspace(struct stream *stream, enum operation operation, const void *args) {
    size_t bytes;
    EXPECT_OK(stream->device->ops->workspace_bytes(stream->device, operation, args, &bytes));
    stream->workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);
    stream->workspace_bytes = bytes;
    assert_non_null(stream->workspace);
    memset(stream->workspace, 0xff, bytes); // NaN: nothing may be read before it is written
}

static void forward(struct stream *stream, void *out, enum dtype type, enum dtype out_type,
                    const void *added) {
    struct linear_forward_args args = {.out = out,
                                       .x = x,
                                       .weight = weight,
                                       .residual = added,
                                       .N = N,
                                       .IC = IC,
                                       .OC = OC,
                                       .out_stride = OC,
                                       .type = type,
                                       .out_type = out_type};
    take_workspace(stream, OP_linear_forward, &args);
    EXPECT_OK(stream->device->ops->linear_forward(stream, &args));
    free(stream->workspace);
}

static void backward(struct stream *stream, struct results *results, enum dtype type) {
    memcpy(results->dweight, before, sizeof before);
    struct linear_backward_args args = {.dx = results->dx,
                                        .dweight = results->dweight,
                                        .dout = dout,
                                        .x = x,
                                        .weight = weight,
                                        .N = N,
                                        .IC = IC,
                                        .OC = OC,
                                        .dout_stride = OC,
                                        .type = type};
    take_workspace(stream, OP_linear_backward, &args);
    EXPECT_OK(stream->device->ops->linear_backward(stream, &args));
    free(stream->workspace);
}

static double value(const void *tensor, enum dtype type, size_t i) {
    return type == DTYPE_F32    ? (double)((const float *)tensor)[i]
           : type == DTYPE_BF16 ? (double)bf16_to_float(((const uint16_t *)tensor)[i])
                                : (double)f16_to_float(((const uint16_t *)tensor)[i]);
}

// Every stride-th element of a tensor from `first` on.
struct vector {
    const void *tensor;
    size_t first, stride;
};

// A sum of n products in fp32, and of `start`, rounded to a type with this epsilon.
static void expect_sum(double found, enum dtype type, struct vector a, struct vector b, int n, double start,
                       double epsilon) {
    double sum = start, magnitude = fabs(start);
    for (size_t i = 0; i < (size_t)n; i++) {
        const double term =
            value(a.tensor, type, a.first + i * a.stride) * value(b.tensor, type, b.first + i * b.stride);
        sum += term;
        magnitude += fabs(term);
    }
    const double off = (n + 2) * 0x1p-24 * magnitude, allowed = off + epsilon / 2 * (fabs(sum) + off);
    if (!(fabs(found - sum) <= allowed))
        fail_msg("%.9g instead of %.9g, allowed %.3g", found, sum, allowed);
}

static void check_sums(const struct results *results, enum dtype type) {
    const double narrow = dtype_epsilon(type), fp32 = dtype_epsilon(DTYPE_F32);
    for (uint32_t i = 0; i < SAMPLES; i++) {
        // The last ones are corners.
        const size_t row = i < 4 ? i % 2 * (N - 1) : (size_t)(rng_uniform(92, 1, i) * N),
                     in = i < 4 ? i / 2 * (IC - 1) : (size_t)(rng_uniform(92, 2, i) * IC),
                     output = i < 4 ? i / 2 * (OC - 1) : (size_t)(rng_uniform(92, 3, i) * OC);
        const struct vector inputs = {x, row * IC, 1}, weights = {weight, output * IC, 1};
        expect_sum(value(results->out, type, row * OC + output), type, inputs, weights, IC,
                   value(residual, type, row * OC + output), narrow);
        expect_sum(results->logits[row * OC + output], type, inputs, weights, IC, 0, fp32);
        expect_sum(value(results->dx, type, row * IC + in), type, (struct vector){dout, row * OC, 1},
                   (struct vector){weight, in, IC}, OC, 0, narrow);
        expect_sum(results->dweight[output * IC + in], type, (struct vector){dout, output, OC},
                   (struct vector){x, in, IC}, N, before[output * IC + in], fp32);
    }
}

static void test_large_products(void **state) {
    const struct product_case *test = *state;
    struct results *results[N_THREAD_COUNTS];
    for (int k = 0; k < N_THREAD_COUNTS; k++) {
        struct stream stream = {.device = op_device_or_skip(test->instruction_set, thread_counts[k])};
        struct results *mine = results[k] = calloc(1, sizeof *mine);
        assert_non_null(mine);
        if (k == 0) {
            fill(&stream, x, N * IC, 1, test->type);
            fill(&stream, weight, OC * IC, 2, test->type);
            fill(&stream, dout, N * OC, 3, test->type);
            fill(&stream, residual, N * OC, 4, test->type);
            for (size_t i = 0; i < OC * IC; i++)
                before[i] = (float)rng_normal(91, 5, i);
        }
        forward(&stream, mine->out, test->type, test->type, residual);
        forward(&stream, mine->logits, test->type, DTYPE_F32, NULL);
        backward(&stream, mine, test->type);
        device_close(stream.device);
    }
    check_sums(results[0], test->type);
    for (int k = 1; k < N_THREAD_COUNTS; k++)
        assert_memory_equal(results[k], results[0], sizeof *results[k]);
    for (int k = 0; k < N_THREAD_COUNTS; k++)
        free(results[k]);
}

#define CASE(instruction_set, type)                                                                          \
    {                                                                                                        \
        instruction_set ": " #type, test_large_products, NULL, NULL, &(struct product_case) {                \
            instruction_set, type                                                                            \
        }                                                                                                    \
    }

// Which product is computed by which code: kernels/cpu/matmul.h.
int main(void) {
    const struct CMUnitTest tests[] = {
        CASE("portable", DTYPE_F32),     CASE("portable", DTYPE_BF16), CASE("avx2", DTYPE_F32),
        CASE("avx2", DTYPE_BF16),        CASE("avx2", DTYPE_F16),      CASE("avx512", DTYPE_BF16),
        CASE("avx512_bf16", DTYPE_BF16), CASE("amx", DTYPE_BF16),
    };
    return cmocka_run_group_tests_name("products", tests, NULL, NULL);
}
