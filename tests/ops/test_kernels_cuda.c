// Every operation of the CUDA backend against the reference: on the simulated GPU of tests/cudasim, or on a
// real one. Skipped where there is neither. And what must be the same to the bit on the CPU, because a shard
// may be held on either: optimizer steps and sums of squares. And what the backend refuses.
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

// ---- a shard on a device, and what is done with it

enum { GRAD, MASTER, MOMENT, SQUARES, PARAM, N_TENSORS };

struct shard {
    size_t n;
    enum dtype type; // of the parameter
    const struct op_optimizer *optimizer;
    unsigned char *bytes[N_TENSORS];
};

// The parameter's elements take as many bytes as the others', so that one offset serves all.
static size_t shard_bytes(const struct shard *shard) {
    return (shard->n + 1) * sizeof(float);
}

// Values of ordinary size, tiny and subnormal ones; gradients that overflow nothing.
static void shard_init(struct shard *shard) {
    for (int k = 0; k < N_TENSORS; k++) {
        shard->bytes[k] = calloc(1, shard_bytes(shard));
        assert_non_null(shard->bytes[k]);
        float *values = (float *)shard->bytes[k];
        for (size_t i = 0; k < PARAM && i <= shard->n; i++) {
            double value = rng_normal(31, (uint32_t)k, i);
            value *= i % 11 == 3 ? 1e-20 : i % 11 == 5 ? 0x1p-130 : i % 11 == 7 ? 0 : 1;
            values[i] = (float)(k == SQUARES ? value * value : value);
        }
    }
}

static void shard_free(struct shard *shard) {
    for (int k = 0; k < N_TENSORS; k++)
        free(shard->bytes[k]);
}

// Two steps from element `offset` on: 1 takes from the GPU the accesses of 16 bytes.
static enum status run_steps(const struct shard *shard, size_t offset, struct stream *stream,
                             void *tensors[]) {
    const struct ops *ops = stream->device->ops;
    float *at[PARAM];
    for (int k = 0; k < PARAM; k++)
        at[k] = (float *)tensors[k] + offset;
    for (int step = 1; step <= 2; step++) {
        char *param = (char *)tensors[PARAM] + offset * dtype_size(shard->type);
        struct optimizer_step_args args =
            op_optimizer_args(shard->optimizer, &op_optimizer_settings[step - 1], shard->n);
        args.from = args.to = (struct optimizer_state){
            .master = at[MASTER], .m = shard->optimizer->n_moments > 0 ? at[MOMENT] : NULL, .v = at[SQUARES]};
        args.param = param;
        args.grad = at[GRAD];
        args.type = shard->type;
        TRY(ops->optimizer_step(stream, &args));
    }
    return STATUS_OK;
}

static void update(struct device *device, const struct shard *shard, size_t offset,
                   unsigned char *results[]) {
    struct stream stream;
    void *tensors[N_TENSORS];
    size_t bytes = shard_bytes(shard);
    EXPECT_OK(stream_init(&stream, device));
    for (int k = 0; k < N_TENSORS; k++) {
        EXPECT_OK(device->memory_new(device, bytes, "tests", &tensors[k]));
        EXPECT_OK(device->copy(&stream, tensors[k], shard->bytes[k], bytes));
    }
    EXPECT_OK(run_steps(shard, offset, &stream, tensors));
    for (int k = 0; k < N_TENSORS; k++) {
        results[k] = calloc(1, bytes);
        assert_non_null(results[k]);
        EXPECT_OK(device->copy(&stream, results[k], tensors[k], bytes));
    }
    EXPECT_OK(device->synchronize(&stream));
    for (int k = 0; k < N_TENSORS; k++)
        device->memory_delete(device, tensors[k], bytes);
    stream_free(&stream);
}

static void compare_updates(struct device *gpu, struct device *cpu, struct shard *shard) {
    shard_init(shard);
    for (size_t offset = 0; offset < 2; offset++) {
        unsigned char *on_gpu[N_TENSORS], *on_cpu[N_TENSORS];
        update(gpu, shard, offset, on_gpu);
        update(cpu, shard, offset, on_cpu);
        for (int k = 0; k < N_TENSORS; k++) {
            if (memcmp(on_gpu[k], on_cpu[k], shard_bytes(shard)) != 0)
                fail_msg("%s, parameters %s, n %zu, offset %zu: tensor %d has other bits than on the CPU",
                         shard->optimizer->name, dtype_name(shard->type), shard->n, offset, k);
            free(on_gpu[k]), free(on_cpu[k]);
        }
    }
    shard_free(shard);
}

// With fused multiply-add: what the portable CPU code has no promise of.
static void test_updates_have_the_bits_of_the_cpu(void **state) {
    static const char *const instruction_sets[] = {"avx512", "avx2"};
    static const size_t lengths[] = {1, 7, 257, 5003};
    struct device *gpu = op_device_or_skip("cuda", 1), *cpu = NULL;
    int n_compared = 0;
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        if (cpu_device_open(instruction_sets[i], 1, &cpu) != STATUS_OK) {
            status_clear();
            continue;
        }
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
            FOR_EACH_TYPE(type)
        for (int rule = 0; rule < N_OP_OPTIMIZERS; rule++)
            compare_updates(
                gpu, cpu, &(struct shard){.n = lengths[k], .type = type, .optimizer = &op_optimizers[rule]});
        device_close(cpu);
        n_compared++;
    }
    device_close(gpu);
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

static void test_sums_of_squares_have_the_bits_of_the_cpu(void **state) {
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

// Attention's sums must fit in registers. What is refused is refused before anything is launched.
static void test_wide_heads_are_refused(void **state) {
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
    device_close(device);
}

#define CASE_CUDA(name) OP_CASE("cuda", 1, name)

static const struct CMUnitTest tests[] = {OPERATIONS(CASE_CUDA)
                                              cmocka_unit_test(test_updates_have_the_bits_of_the_cpu),
                                          cmocka_unit_test(test_sums_of_squares_have_the_bits_of_the_cpu),
                                          cmocka_unit_test(test_wide_heads_are_refused)};

// One line for all where there is no GPU.
static void test_operations_on_a_gpu(void **state) {
    (void)state;
    device_close(op_device_or_skip("cuda", 1));
}

int main(void) {
    static const struct CMUnitTest without_a_gpu[] = {cmocka_unit_test(test_operations_on_a_gpu)};
    struct device *device = NULL;
    if (cuda_device_open(0, &device) == STATUS_UNSUPPORTED) {
        status_clear();
        return cmocka_run_group_tests_name("operations on a GPU", without_a_gpu, NULL, NULL);
    }
    status_clear(); // another failure is each test's to tell
    device_close(device);
    return cmocka_run_group_tests_name("operations on a GPU", tests, NULL, NULL);
}
