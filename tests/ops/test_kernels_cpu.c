// Every operation of the CPU backend, with each instruction set that this processor has, against the
// reference; and the reference's own fp32, bf16 and fp16 against its double. The checks are in op_check_*.c.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "tests/ops/op_case.h"

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
        struct device *device = op_device_or_skip("portable", 1 + 2 * k);
        struct stream stream = {.device = device};
        struct sum_squares_args args = {.partial = partial[k], .x = x, .n = N, .type = DTYPE_F32};
        assert_int_equal(device->ops->sum_squares(&stream, &args), STATUS_OK);
        device_close(device);
    }
    assert_memory_equal(partial[0], partial[1], sizeof partial[0]);
    free(x);
}

#define CASE_REF(name)      OP_CASE("ref", 1, name)
#define CASE_PORTABLE(name) OP_CASE("portable", 1, name)
#define CASE_AVX2(name)     OP_CASE("avx2", 3, name)
#define CASE_AVX512(name)   OP_CASE("avx512", 2, name)

// From the list of operations, so that none can be without a check.
static const struct CMUnitTest tests[] = {OPERATIONS(CASE_REF) OPERATIONS(CASE_PORTABLE) OPERATIONS(
    CASE_AVX2) OPERATIONS(CASE_AVX512) cmocka_unit_test(test_sum_squares_and_threads)};

int main(void) {
    return cmocka_run_group_tests_name("operations", tests, NULL, NULL);
}
