// Linear layers on the CPU that are larger than a tile of kernels/cpu/matmul.c in each dimension, in every
// dtype and with both methods of multiplying bf16. The numbers are small integers, so that sums are exact: an
// element from the wrong tile, or a missing or extra term, changes the result.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "kernels/cpu/cpu.h"
#include "kernels/ops.h"
#include "tests/support/device.h"
#include "tests/support/expect.h"

// ---- tensors of small integers

struct integer_tensor {
    void *data;
    size_t n;
    enum dtype type;
};

static float get(const struct integer_tensor *tensor, size_t i) {
    if (tensor->type == DTYPE_F32)
        return ((const float *)tensor->data)[i];
    uint16_t bits = ((const uint16_t *)tensor->data)[i];
    return tensor->type == DTYPE_F16 ? f16_to_float(bits) : bf16_to_float(bits);
}

static void put(struct integer_tensor *tensor, size_t i, float value) {
    if (tensor->type == DTYPE_F32)
        ((float *)tensor->data)[i] = value;
    else
        ((uint16_t *)tensor->data)[i] =
            tensor->type == DTYPE_F16 ? f16_from_float(value) : bf16_from_float(value);
}

// -1, 0 and 1 in a sequence without a short period; `seed` distinguishes tensors.
static struct integer_tensor tensor_new(enum dtype type, size_t n, uint32_t seed) {
    struct integer_tensor tensor = {malloc(n * dtype_size(type)), n, type};
    assert_non_null(tensor.data);
    uint32_t x = seed * 2654435761u + 1;
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        put(&tensor, i, (float)((int)((x >> 16) % 3) - 1));
    }
    return tensor;
}

// ---- calls

struct linear_size {
    int N, IC, OC;
    enum dtype type;
};

// More than one tile in rows, columns and terms; more rows than skinny_gemm.c handles.
static const struct linear_size shapes[] = {{1030, 40, 70, 0}, {40, 24, 6200, 0}, {37, 9000, 70, 0}};
static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static void take_workspace(enum operation operation, const void *args) {
    EXPECT_OK(device->ops->workspace_bytes(device, operation, args, &stream.workspace_bytes));
    stream.workspace = aligned_alloc(256, stream.workspace_bytes + 256);
    assert_non_null(stream.workspace);
}

static void give_workspace(void) {
    free(stream.workspace);
    stream.workspace = NULL;
}

static void expect_element(const char *what, const struct linear_size *s, size_t i, float found,
                           float expected) {
    if (found != expected)
        fail_msg("%s, N %d IC %d OC %d %s: element %zu is %g, expected %g", what, s->N, s->IC, s->OC,
                 dtype_name(s->type), i, (double)found, (double)expected);
}

static float rounded(enum dtype type, float value) {
    return type == DTYPE_F32   ? value
           : type == DTYPE_F16 ? f16_to_float(f16_from_float(value))
                               : bf16_to_float(bf16_from_float(value));
}

// sum over k of a[i_a + k step_a] b[i_b + k step_b]
static float dot(const struct integer_tensor *a, size_t i_a, size_t step_a, const struct integer_tensor *b,
                 size_t i_b, size_t step_b, int n) {
    float sum = 0;
    for (int k = 0; k < n; k++)
        sum += get(a, i_a + (size_t)k * step_a) * get(b, i_b + (size_t)k * step_b);
    return sum;
}

static void check_forward(const struct linear_size *s, bool residual) {
    size_t N = (size_t)s->N, IC = (size_t)s->IC, OC = (size_t)s->OC;
    struct integer_tensor x = tensor_new(s->type, N * IC, 1), weight = tensor_new(s->type, OC * IC, 2);
    struct integer_tensor bias = tensor_new(s->type, OC, 3), out = tensor_new(s->type, N * OC, 4);
    struct integer_tensor added = tensor_new(s->type, N * OC, 5);
    struct linear_forward_args args = {.out = out.data,
                                       .x = x.data,
                                       .weight = weight.data,
                                       .bias = bias.data,
                                       .residual = residual ? added.data : NULL,
                                       .N = s->N,
                                       .IC = s->IC,
                                       .OC = s->OC,
                                       .out_stride = s->OC,
                                       .type = s->type,
                                       .out_type = s->type};
    take_workspace(OP_linear_forward, &args);
    EXPECT_OK(device->ops->linear_forward(&stream, &args));
    give_workspace();
    for (size_t i = 0; i < N * OC; i++) {
        float sum = dot(&x, i / OC * IC, 1, &weight, i % OC * IC, 1, s->IC) + get(&bias, i % OC);
        expect_element(residual ? "forward with residual" : "forward", s, i, get(&out, i),
                       rounded(s->type, sum + (residual ? get(&added, i) : 0)));
    }
    free(x.data), free(weight.data), free(bias.data), free(out.data), free(added.data);
}

// GELU and its gradient are compared with the operations that compute them alone, because this test is about
// addresses.
static void check_gelu(const struct linear_size *s) {
    size_t N = (size_t)s->N, IC = (size_t)s->IC, OC = (size_t)s->OC;
    struct integer_tensor x = tensor_new(s->type, N * IC, 1), weight = tensor_new(s->type, OC * IC, 2);
    struct integer_tensor pre = tensor_new(s->type, N * OC, 3), out = tensor_new(s->type, N * OC, 4);
    struct integer_tensor expected = tensor_new(s->type, N * OC, 5);
    struct linear_forward_args args = {.out = out.data,
                                       .pre_activation = pre.data,
                                       .x = x.data,
                                       .weight = weight.data,
                                       .N = s->N,
                                       .IC = s->IC,
                                       .OC = s->OC,
                                       .out_stride = s->OC,
                                       .activation = ACTIVATION_GELU,
                                       .type = s->type,
                                       .out_type = s->type};
    take_workspace(OP_linear_forward, &args);
    EXPECT_OK(device->ops->linear_forward(&stream, &args));
    give_workspace();
    EXPECT_OK(device->ops->gelu_forward(
        &stream,
        &(struct gelu_forward_args){.out = expected.data, .x = pre.data, .n = N * OC, .type = s->type}));
    for (size_t i = 0; i < N * OC; i++) {
        expect_element("before GELU", s, i, get(&pre, i),
                       rounded(s->type, dot(&x, i / OC * IC, 1, &weight, i % OC * IC, 1, s->IC)));
        expect_element("GELU", s, i, get(&out, i), get(&expected, i));
    }
    free(x.data), free(weight.data), free(pre.data), free(out.data), free(expected.data);
}

// dx of a layer of OC inputs and IC outputs, so that `s` is (rows, terms, columns) again.
static void check_dx(const struct linear_size *s, bool gelu) {
    size_t N = (size_t)s->N, K = (size_t)s->IC, n = (size_t)s->OC;
    struct integer_tensor dout = tensor_new(s->type, N * K, 1), weight = tensor_new(s->type, K * n, 2);
    struct integer_tensor dx = tensor_new(s->type, N * n, 3), pre = tensor_new(s->type, N * n, 4);
    struct integer_tensor expected = tensor_new(s->type, N * n, 5);
    struct linear_backward_args args = {.dx = dx.data,
                                        .dout = dout.data,
                                        .weight = weight.data,
                                        .pre_activation = gelu ? pre.data : NULL,
                                        .activation = ACTIVATION_GELU,
                                        .N = s->N,
                                        .IC = s->OC,
                                        .OC = s->IC,
                                        .dout_stride = s->IC,
                                        .type = s->type};
    take_workspace(OP_linear_backward, &args);
    EXPECT_OK(device->ops->linear_backward(&stream, &args));
    give_workspace();
    for (size_t i = 0; i < N * n; i++)
        put(&expected, i, dot(&dout, i / n * K, 1, &weight, i % n, n, s->IC));
    if (gelu)
        EXPECT_OK(device->ops->gelu_backward(
            &stream,
            &(struct gelu_backward_args){
                .dx = expected.data, .dout = expected.data, .x = pre.data, .n = N * n, .type = s->type}));
    for (size_t i = 0; i < N * n; i++)
        expect_element(gelu ? "dx of GELU" : "dx", s, i, get(&dx, i), get(&expected, i));
    free(dout.data), free(weight.data), free(dx.data), free(pre.data), free(expected.data);
}

static void check_dweight(const struct linear_size *s, bool beta_zero) {
    size_t N = (size_t)s->N, IC = (size_t)s->IC, OC = (size_t)s->OC;
    struct integer_tensor dout = tensor_new(s->type, N * OC, 1), x = tensor_new(s->type, N * IC, 2);
    struct integer_tensor dweight = tensor_new(DTYPE_F32, OC * IC, 3),
                          before = tensor_new(DTYPE_F32, OC * IC, 3);
    struct linear_backward_args args = {.dweight = dweight.data,
                                        .dout = dout.data,
                                        .x = x.data,
                                        .N = s->N,
                                        .IC = s->IC,
                                        .OC = s->OC,
                                        .dout_stride = s->OC,
                                        .beta_zero = beta_zero,
                                        .type = s->type};
    if (beta_zero)
        memset(dweight.data, 0xff, OC * IC * sizeof(float));
    take_workspace(OP_linear_backward, &args);
    EXPECT_OK(device->ops->linear_backward(&stream, &args));
    give_workspace();
    for (size_t i = 0; i < OC * IC; i++)
        expect_element("dweight", s, i, get(&dweight, i),
                       (beta_zero ? 0 : get(&before, i)) + dot(&dout, i / IC, OC, &x, i % IC, IC, s->N));
    free(dout.data), free(x.data), free(dweight.data), free(before.data);
}

static void check_all(enum dtype type) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct linear_size s = shapes[i];
        s.type = type;
        check_forward(&s, false);
        check_forward(&s, true);
        check_dx(&s, false);
        if (s.IC < 256) { // sums are exact in 8 bits
            check_gelu(&s);
            check_dx(&s, true);
        }
    }
    for (int beta_zero = 0; beta_zero < 2; beta_zero++) {
        check_dweight(&(struct linear_size){2100, 6, 6200, type}, beta_zero);
        check_dweight(&(struct linear_size){30, 3200, 24, type}, beta_zero);
        // Rows a multiple of 2 KiB apart in fp32, which are copied without AVX-512: of dout, and of both.
        check_dweight(&(struct linear_size){1100, 12, 1024, type}, beta_zero);
        check_dweight(&(struct linear_size){20, 512, 1536, type}, beta_zero);
    }
}

static void test_all_tiles(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        check_all(types[i]);
}

// Inverts fast_bf16, which otherwise depends on this processor.
static void test_all_tiles_by_the_other_bf16_method(void **state) {
    (void)state;
    device->fast_bf16 = !device->fast_bf16;
    check_all(DTYPE_BF16);
    device->fast_bf16 = !device->fast_bf16;
}

// More threads than processors, and than there are groups of columns: threads also divide the rows, and some
// are idle.
static void test_numbers_of_threads(void **state) {
    (void)state;
    static const int counts[] = {1, 3, 12};
    struct device *before = device;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        EXPECT_OK(cpu_device_open(NULL, counts[i], &device));
        stream.device = device;
        for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
            check_dx(&(struct linear_size){1030, 40, 40, types[k]}, false);
            check_forward(&(struct linear_size){1030, 40, 24, types[k]}, true);
            check_forward(&(struct linear_size){40, 24, 1000, types[k]}, false);
            check_dweight(&(struct linear_size){60, 900, 40, types[k]}, false);
        }
        device->close(device);
    }
    device = before;
    stream.device = device;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_tiles),
        cmocka_unit_test(test_numbers_of_threads),
        cmocka_unit_test(test_all_tiles_by_the_other_bf16_method),
    };
    return cmocka_run_group_tests_name("linear layers larger than a tile", tests, open_cpu, close_device);
}
