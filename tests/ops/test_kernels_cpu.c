// Every operation of the CPU backend, with each instruction set that this processor has, against the
// reference; and the reference's own fp32 and bf16 against its double. The checks are in tests/support.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "tests/ops/op_check.h"

struct test_case {
    const char *device; // "ref" or an instruction set
    int n_threads;
    enum operation operation;
    void (*check)(struct op_bench *bench);
};

static struct device *open_or_skip(const char *name, int n_threads) {
    struct device *device = NULL;
    enum status status =
        strcmp(name, "ref") == 0 ? ref_device_open(&device) : cpu_device_open(name, n_threads, &device);
    if (status == STATUS_UNSUPPORTED) {
        print_message("skipped: %s\n", status_message());
        status_clear();
        skip();
    }
    if (status != STATUS_OK)
        fail_msg("%s", status_message());
    return device;
}

static void test_operation(void **state) {
    const struct test_case *test = *state;
    struct op_bench bench = {.device = open_or_skip(test->device, test->n_threads),
                             .reference = open_or_skip("ref", 1)};
    test->check(&bench);
    device_close(bench.device);
    device_close(bench.reference);
    if (bench.n_wrong > 0)
        fail_msg("%d findings on %s", bench.n_wrong, test->device);
    // What a check of another operation, or of none, would leave at 0.
    if (bench.n_calls[test->operation] == 0)
        fail_msg("%s was never called", operation_name(test->operation));
    print_message("%d calls, errors up to %.2f (fp32) and %.2f (bf16) of what is allowed\n",
                  bench.n_calls[test->operation], bench.worst_share[DTYPE_F32],
                  bench.worst_share[DTYPE_BF16]);
}

// The one sum that must not depend on the number of threads (kernels/ops.h): ranks compare its bits.
static void test_sum_squares_and_threads(void **state) {
    (void)state;
    enum { N = 5 * SUM_SQUARES_BLOCK + 4321, N_PARTIALS = 6 };
    float *x = malloc(N * sizeof *x);
    assert_non_null(x);
    for (int i = 0; i < N; i++)
        x[i] = (float)rng_normal(1, 1, (uint64_t)i);
    double partial[2][N_PARTIALS];
    for (int k = 0; k < 2; k++) {
        struct device *device = open_or_skip("portable", 1 + 2 * k);
        struct stream stream = {.device = device};
        struct sum_squares_args args = {.partial = partial[k], .x = x, .n = N, .type = DTYPE_F32};
        assert_int_equal(device->ops->sum_squares(&stream, &args), STATUS_OK);
        device_close(device);
    }
    assert_memory_equal(partial[0], partial[1], sizeof partial[0]);
    free(x);
}

#define CASE(device, n_threads, name)                                                                        \
    {device ": " #name, test_operation, NULL, NULL,                                                          \
     &(struct test_case){device, n_threads, OP_##name, check_##name}},
#define CASE_REF(name)      CASE("ref", 1, name)
#define CASE_PORTABLE(name) CASE("portable", 1, name)
#define CASE_AVX2(name)     CASE("avx2", 3, name)
#define CASE_AVX512(name)   CASE("avx512", 2, name)

// From the list of operations, so that none can be without a check.
static const struct CMUnitTest tests[] = {OPERATIONS(CASE_REF) OPERATIONS(CASE_PORTABLE) OPERATIONS(
    CASE_AVX2) OPERATIONS(CASE_AVX512) cmocka_unit_test(test_sum_squares_and_threads)};

int main(void) {
    return cmocka_run_group_tests_name("operations", tests, NULL, NULL);
}
