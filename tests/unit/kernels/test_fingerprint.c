// The fingerprint of a device does not depend on threads, and changes when an operation rounds otherwise.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "kernels/fingerprint.h"
#include "kernels/ops.h"
#include "tests/support/expect.h"

static void take(const char *isa, int n_threads, enum dtype type, char out[FINGERPRINT_BYTES]) {
    struct device *device;
    EXPECT_OK(cpu_device_open(isa, n_threads, &device));
    EXPECT_OK(device_fingerprint(device, type, NULL, out));
    assert_int_equal(strlen(out), FINGERPRINT_BYTES - 1);
    device_close(device);
}

static void test_threads_change_nothing(void **state) {
    (void)state;
    static const int threads[] = {1, 2, 3, 7};
    for (enum dtype type = DTYPE_F32; type < N_COMPUTE_DTYPES; type = (enum dtype)(type + 1)) {
        char first[FINGERPRINT_BYTES], other[FINGERPRINT_BYTES];
        take(NULL, 1, type, first);
        for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
            take(NULL, threads[i], type, other);
            assert_string_equal(other, first);
        }
    }
}

static void test_types_and_libraries_change_it(void **state) {
    (void)state;
    struct device *device;
    char all[N_COMPUTE_DTYPES + 2][FINGERPRINT_BYTES];
    int n = 0;
    EXPECT_OK(cpu_device_open(NULL, 1, &device));
    for (enum dtype type = DTYPE_F32; type < N_COMPUTE_DTYPES; type = (enum dtype)(type + 1))
        EXPECT_OK(device_fingerprint(device, type, NULL, all[n++]));
    EXPECT_OK(device_fingerprint(device, DTYPE_BF16, "9.19.0", all[n++]));
    EXPECT_OK(device_fingerprint(device, DTYPE_BF16, "9.20.0", all[n++]));
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            assert_string_not_equal(all[i], all[j]);
    device_close(device);
}

static void test_another_instruction_set(void **state) {
    (void)state;
    struct device *device;
    char portable[FINGERPRINT_BYTES], best[FINGERPRINT_BYTES];
    EXPECT_OK(cpu_device_open(NULL, 1, &device));
    const bool is_portable = strncmp(device->arithmetic, "portable", 8) == 0;
    device_close(device);
    take("portable", 1, DTYPE_F32, portable);
    take(NULL, 1, DTYPE_F32, best);
    assert_int_equal(strcmp(portable, best) == 0, is_portable);
}

// ---- each operation counts

// What changes a result of the operation by one bit, after it has run.
static const struct ops *real;
static void flip(void *result) {
    if (result)
        *(unsigned char *)result ^= 1;
}
#define CHANGED(OP)                                                                                          \
    OP(linear_forward, out)                                                                                  \
    OP(linear_backward, dx)                                                                                  \
    OP(matrix_product, out)                                                                                  \
    OP(layernorm_forward, out)                                                                               \
    OP(layernorm_backward, dx)                                                                               \
    OP(rmsnorm_forward, out)                                                                                 \
    OP(rmsnorm_backward, dx)                                                                                 \
    OP(gelu_forward, out)                                                                                    \
    OP(gelu_backward, dx)                                                                                    \
    OP(swiglu_forward, out)                                                                                  \
    OP(swiglu_backward, dx)                                                                                  \
    OP(attention_forward, out)                                                                               \
    OP(attention_backward, dq)                                                                               \
    OP(cross_entropy, losses)                                                                                \
    OP(optimizer_step, state.master)

#define CHANGED_OPERATION(name, result)                                                                      \
    static enum status changed_##name(struct stream *stream, const struct name##_args *args) {               \
        const enum status status = real->name(stream, args);                                                 \
        flip(args->result);                                                                                  \
        return status;                                                                                       \
    }
CHANGED(CHANGED_OPERATION)

static void test_each_operation_counts(void **state) {
    (void)state;
    struct device *device;
    char straight[FINGERPRINT_BYTES], changed[FINGERPRINT_BYTES];
    EXPECT_OK(cpu_device_open(NULL, 1, &device));
    real = device->ops;
    EXPECT_OK(device_fingerprint(device, DTYPE_F32, NULL, straight));
#define CHECK(name, result)                                                                                  \
    {                                                                                                        \
        struct ops ops = *real;                                                                              \
        ops.name = changed_##name;                                                                           \
        device->ops = &ops;                                                                                  \
        EXPECT_OK(device_fingerprint(device, DTYPE_F32, NULL, changed));                                     \
        assert_string_not_equal(changed, straight);                                                          \
    }
    CHANGED(CHECK)
    device->ops = real;
    const double began = clock_monotonic_s();
    EXPECT_OK(device_fingerprint(device, DTYPE_F32, NULL, changed));
    print_message("a fingerprint takes %.1f ms\n", 1e3 * (clock_monotonic_s() - began));
    assert_string_equal(changed, straight);
    device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_change_nothing),
        cmocka_unit_test(test_types_and_libraries_change_it),
        cmocka_unit_test(test_another_instruction_set),
        cmocka_unit_test(test_each_operation_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
