// Every operation of the CUDA backend against the reference, on the simulated GPU of tests/cudasim or on a
// real one; skipped without either. Optimizer steps and sums of squares must be bitwise equal to the CPU
// backend, because a shard may be on either. Unsupported sizes are refused.
//
// usage: test_kernels_cuda [PATTERN]     only tests whose names match, such as "cuda: linear_*"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "tests/ops/op_case.h"
#include "tests/ops/op_check_optimizer.h"

#define EXPECT_OK(...) assert_int_equal((__VA_ARGS__), STATUS_OK)

// Compares with a CPU backend that has FMA; without FMA the bits may differ.
static void test_updates_are_bitwise_equal_to_the_cpu(void **state) {
    static const char *const instruction_sets[] = {"avx512", "avx2"};
    struct op_bench gpu = {.device = op_device_or_skip("cuda", 1)}, cpu = {0};
    int n_compared = 0;
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        if (cpu_device_open(instruction_sets[i], 1, &cpu.device) != STATUS_OK) {
            status_clear();
            continue;
        }
        op_check_same_steps(&gpu, &cpu);
        device_close(cpu.device);
        n_compared++;
    }
    device_close(gpu.device);
    if (n_compared == 0)
        skip();
}

static void sums_of_squares(struct device *device, const float *x, size_t n, double *partial,
                            size_t n_blocks) {
    struct stream stream;
    void *values, *sums;
    EXPECT_OK(stream_init(&stream, device));
    EXPECT_OK(device->memory_new(device, (n + 1) * sizeof *x, "tests", &values));
    EXPECT_OK(device->memory_new(device, n_blocks * sizeof *partial, "tests", &sums));
    for (size_t offset = 0; offset < 2; offset++) {
        float *at = (float *)values + offset;
        EXPECT_OK(device->copy(&stream, at, x, n * sizeof *x));
        struct sum_squares_args args = {.partial = sums, .x = at, .n = n, .type = DTYPE_F32};
        EXPECT_OK(device->ops->sum_squares(&stream, &args));
        EXPECT_OK(device->copy(&stream, partial + offset * n_blocks, sums, n_blocks * sizeof *partial));
    }
    EXPECT_OK(device->synchronize(&stream));
    device->memory_delete(device, values, (n + 1) * sizeof *x);
    device->memory_delete(device, sums, n_blocks * sizeof *partial);
    stream_free(&stream);
}

static void test_sums_of_squares_are_bitwise_equal_to_the_cpu(void **state) {
    (void)state;
    enum { N = 2 * SUM_SQUARES_BLOCK + 4321, N_BLOCKS = 3 };
    static const char *const names[] = {"cuda", "portable"};
    double partial[2][2 * N_BLOCKS];
    float *x = malloc(N * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < N; i++)
        x[i] = (float)rng_normal(32, 1, i);
    for (int i = 0; i < 2; i++) {
        struct device *device = op_device_or_skip(names[i], 1);
        sums_of_squares(device, x, N, partial[i], N_BLOCKS);
        device_close(device);
    }
    free(x);
    assert_memory_equal(partial[0], partial[1], sizeof partial[0]);
    assert_memory_equal(partial[0], partial[0] + N_BLOCKS, sizeof partial[0] / 2);
}

// Attention's sums must fit in registers. Unsupported sizes are refused before any launch.
static void test_heads_too_wide_or_many_are_refused(void **state) {
    (void)state;
    struct device *device = op_device_or_skip("cuda", 1);
    struct stream stream = {.device = device};
    struct attention_forward_args forward = {.B = 1, .T = 1, .S = 1, .H = 1, .D = 257};
    assert_int_equal(device->ops->attention_forward(&stream, &forward), STATUS_UNSUPPORTED);
    assert_non_null(strstr(status_message(), "heads of 257 elements are too wide, at most 256"));
    status_clear();
    struct attention_backward_args backward = {.B = 1, .T = 1, .H = 1, .D = 300};
    assert_int_equal(device->ops->attention_backward(&stream, &backward), STATUS_UNSUPPORTED);
    assert_non_null(strstr(status_message(), "heads of 300 elements are too wide, at most 256"));
    status_clear();
    struct attention_decode_args decode = {.B = 1, .H = 1, .D = 257, .n_keys = 1};
    assert_int_equal(device->ops->attention_decode(&stream, &decode), STATUS_UNSUPPORTED);
    assert_non_null(strstr(status_message(), "heads of 257 elements are too wide, at most 256"));
    status_clear();
    struct rope_forward_args rotated = {.B = 1, .T = 1, .H = 1, .D = 258};
    assert_int_equal(device->ops->rope_forward(&stream, &rotated), STATUS_UNSUPPORTED);
    assert_non_null(strstr(status_message(), "heads of 258 elements are too wide, at most 256"));
    status_clear();
    struct rope_backward_args gradients = {.B = 1 << 16, .T = 1 << 16, .H = 2, .K = 1, .D = 64};
    assert_int_equal(device->ops->rope_backward(&stream, &gradients), STATUS_UNSUPPORTED);
    assert_non_null(strstr(status_message(), "12884901888 heads at once, at most 2147483647"));
    status_clear();
    device_close(device);
}

// ---- attention by cuDNN

// cuDNN gets the same tensors in each build, and test_cudasim_cudnn calls it in each.
static void check_by_cudnn(enum operation operation, void (*check)(struct op_bench *bench)) {
    if (op_leaves_repeats()) {
        print_message("skipped: cuDNN: covered without sanitizers\n");
        skip();
    }
    const struct attention_shape shape = {.B = 1, .T = 64, .H = 2, .K = 2, .D = 64, .type = DTYPE_BF16};
    struct op_bench bench = {
        .device = op_device_or_skip("cuda", 1), .reference = op_device_or_skip("ref", 1), .by_cudnn = true};
    struct cudnn_support support;
    EXPECT_OK(bench.device->cudnn_support(bench.device, &shape, &support));
    if (support.usable)
        check(&bench);
    device_close(bench.device);
    device_close(bench.reference);
    if (!support.usable) {
        print_message("skipped: cuDNN: %s\n", support.reason);
        skip();
    }
    assert_int_equal(bench.n_wrong, 0);
    assert_true(bench.n_calls[operation] > 0);
    print_message("cuDNN %s: errors up to %.2f (bf16) %.2f (fp16) of the tolerance\n", support.version,
                  bench.worst_ratio[DTYPE_BF16], bench.worst_ratio[DTYPE_F16]);
}

static void test_attention_forward_by_cudnn(void **state) {
    (void)state;
    check_by_cudnn(OP_attention_forward, check_attention_forward);
}

static void test_attention_backward_by_cudnn(void **state) {
    (void)state;
    check_by_cudnn(OP_attention_backward, check_attention_backward);
}

#define CASE_CUDA(name) OP_CASE("cuda", 1, name)

static const struct CMUnitTest tests[] = {
    OPERATIONS(CASE_CUDA) cmocka_unit_test(test_updates_are_bitwise_equal_to_the_cpu),
    cmocka_unit_test(test_sums_of_squares_are_bitwise_equal_to_the_cpu),
    cmocka_unit_test(test_heads_too_wide_or_many_are_refused),
    cmocka_unit_test(test_attention_forward_by_cudnn), cmocka_unit_test(test_attention_backward_by_cudnn)};

// The only test, skipped, when there is no GPU.
static void test_operations_on_a_gpu(void **state) {
    (void)state;
    struct device *device = op_device_or_skip("cuda", 1);
    assert_int_equal(device->place, REGION_DEVICE);
    device_close(device);
}

int main(int n_args, char **args) {
    static const struct CMUnitTest without_a_gpu[] = {cmocka_unit_test(test_operations_on_a_gpu)};
    struct device *device = NULL;
    setenv("CUDASIM_CUDNN", "91900", 0); // the simulated machine has cuDNN
    if (cuda_device_open(0, &device) == STATUS_UNSUPPORTED) {
        status_clear();
        return cmocka_run_group_tests_name("operations on a GPU", without_a_gpu, NULL, NULL);
    }
    status_clear(); // each test reports other failures itself
    device_close(device);
    if (n_args > 1)
        cmocka_set_test_filter(args[1]);
    return cmocka_run_group_tests_name("operations on a GPU", tests, NULL, NULL);
}
