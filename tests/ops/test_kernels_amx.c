// Large bf16 products on a CPU's AMX, in several tiles of each dimension: each element is the sum of
// its products, and has the same bits whatever the number of threads, which decides the tiles.
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
enum { MOST_THREADS = 3 };

static uint16_t x[N * IC], weight[OC * IC], dout[N * OC], residual[N * OC];
static float before[OC * IC], wide[N * OC];

struct results {
    uint16_t out[N * OC], dx[N * IC];
    float logits[N * OC], dweight[OC * IC];
};

static void fill(struct stream *stream, void *to, size_t n, uint32_t seed) {
    for (size_t i = 0; i < n; i++)
        wide[i] = (float)rng_normal(91, seed, i);
    struct cast_args cast = {to, wide, n, DTYPE_F32, DTYPE_BF16};
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

static void forward(struct stream *stream, void *out, enum dtype out_type, const void *added) {
    struct linear_forward_args args = {.out = out,
                                       .x = x,
                                       .weight = weight,
                                       .residual = added,
                                       .N = N,
                                       .IC = IC,
                                       .OC = OC,
                                       .out_stride = OC,
                                       .type = DTYPE_BF16,
                                       .out_type = out_type};
    take_workspace(stream, OP_linear_forward, &args);
    EXPECT_OK(stream->device->ops->linear_forward(stream, &args));
    free(stream->workspace);
}

static void backward(struct stream *stream, struct results *results) {
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
                                        .type = DTYPE_BF16};
    take_workspace(stream, OP_linear_backward, &args);
    EXPECT_OK(stream->device->ops->linear_backward(stream, &args));
    free(stream->workspace);
}

// A sum of n products in fp32, and of `start`, rounded to a type with this epsilon.
static void expect_sum(double found, const uint16_t *a, size_t a_stride, const uint16_t *b, size_t b_stride,
                       int n, double start, double epsilon) {
    double sum = start, magnitude = fabs(start);
    for (int i = 0; i < n; i++) {
        const double term =
            (double)bf16_to_float(a[(size_t)i * a_stride]) * (double)bf16_to_float(b[(size_t)i * b_stride]);
        sum += term;
        magnitude += fabs(term);
    }
    const double off = (n + 2) * 0x1p-24 * magnitude, allowed = off + epsilon / 2 * (fabs(sum) + off);
    if (!(fabs(found - sum) <= allowed))
        fail_msg("%.9g instead of %.9g, allowed %.3g", found, sum, allowed);
}

static void check_sums(const struct results *results) {
    const double bf16 = dtype_epsilon(DTYPE_BF16), fp32 = dtype_epsilon(DTYPE_F32);
    for (uint32_t i = 0; i < SAMPLES; i++) {
        // The last ones are corners.
        const size_t row = i < 4 ? i % 2 * (N - 1) : (size_t)(rng_uniform(92, 1, i) * N),
                     in = i < 4 ? i / 2 * (IC - 1) : (size_t)(rng_uniform(92, 2, i) * IC),
                     output = i < 4 ? i / 2 * (OC - 1) : (size_t)(rng_uniform(92, 3, i) * OC);
        const uint16_t *inputs = x + row * IC, *weights = weight + output * IC;
        expect_sum((double)bf16_to_float(results->out[row * OC + output]), inputs, 1, weights, 1, IC,
                   (double)bf16_to_float(residual[row * OC + output]), bf16);
        expect_sum(results->logits[row * OC + output], inputs, 1, weights, 1, IC, 0, fp32);
        expect_sum((double)bf16_to_float(results->dx[row * IC + in]), dout + row * OC, 1, weight + in, IC, OC,
                   0, bf16);
        expect_sum(results->dweight[output * IC + in], dout + output, OC, x + in, IC, N,
                   before[output * IC + in], fp32);
    }
}

static void test_large_products(void **state) {
    (void)state;
    struct results *results[MOST_THREADS];
    for (int threads = 1; threads <= MOST_THREADS; threads++) {
        struct stream stream = {.device = op_device_or_skip("amx", threads)};
        struct results *mine = results[threads - 1] = malloc(sizeof *mine);
        assert_non_null(mine);
        if (threads == 1) {
            fill(&stream, x, N * IC, 1);
            fill(&stream, weight, OC * IC, 2);
            fill(&stream, dout, N * OC, 3);
            fill(&stream, residual, N * OC, 4);
            for (size_t i = 0; i < OC * IC; i++)
                before[i] = (float)rng_normal(91, 5, i);
        }
        forward(&stream, mine->out, DTYPE_BF16, residual);
        forward(&stream, mine->logits, DTYPE_F32, NULL);
        backward(&stream, mine);
        device_close(stream.device);
    }
    check_sums(results[0]);
    for (int i = 1; i < MOST_THREADS; i++)
        assert_memory_equal(results[i], results[0], sizeof *results[i]);
    for (int i = 0; i < MOST_THREADS; i++)
        free(results[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_large_products)};
    return cmocka_run_group_tests_name("amx", tests, NULL, NULL);
}
