// device_fill_random: numbers in [-1, 1) of every compute type, to the last element, of both signs and all
// magnitudes.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/device.h"
#include "tests/support/expect.h"

static float value_at(const void *memory, size_t i, enum dtype type) {
    if (type == DTYPE_F32)
        return ((const float *)memory)[i];
    const uint16_t half = ((const uint16_t *)memory)[i];
    return type == DTYPE_BF16 ? bf16_to_float(half) : f16_to_float(half);
}

static void check_fill(struct device *device, enum dtype type, size_t n) {
    const size_t bytes = n * dtype_size(type);
    struct stream stream;
    void *memory;
    EXPECT_OK(stream_init(&stream, device));
    EXPECT_OK(device->memory_new(device, bytes + 2, "the test", &memory));
    EXPECT_OK(device_fill_random(&stream, memory, bytes, type));
    EXPECT_OK(device->synchronize(&stream));
    double sum = 0, squares = 0;
    size_t n_zeros = 0;
    for (size_t i = 0; i < n; i++) {
        const double value = (double)value_at(memory, i, type);
        assert_true(value >= -1 && value <= 1); // 1 by rounding to 16 bits
        n_zeros += value == 0;
        sum += value;
        squares += value * value;
    }
    assert_true(n_zeros <= 1 + n / 1000);
    assert_int_equal(((const char *)memory)[bytes], 0); // nothing beyond
    if (n > 1000) { // uniform: mean 0, mean square 1/3; within six deviations
        assert_true(fabs(sum / (double)n) < 6 / sqrt(3 * 1000.0));
        assert_true(fabs(squares / (double)n - 1.0 / 3) < 6 * sqrt(4.0 / 45 / 1000));
    }
    device->memory_delete(device, memory, bytes + 2);
    stream_free(&stream);
}

static void test_every_type_and_length(void **state) {
    (void)state;
    static const size_t lengths[] = {1, 2, 1001, 65521, 65522, 131043, 400000};
    struct device *device;
    EXPECT_OK(device_open("cpu", 1, 0, &device));
    for (enum dtype type = DTYPE_F32; type < N_COMPUTE_DTYPES; type = (enum dtype)(type + 1))
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            check_fill(device, type, lengths[i]);
    device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_type_and_length)};
    return cmocka_run_group_tests_name("random numbers for measuring", tests, NULL, NULL);
}
