// gpu_dense_peak: known GPUs by name and capability, and what is not one of them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/device.h"

static void test_known_gpus(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int capability;
        double peak_16_bit, peak_fp32; // TFLOP/s
    } gpus[] = {
        {"NVIDIA A100-SXM4-80GB", 80, 312, 19.5},
        {"NVIDIA A100 80GB PCIe", 80, 312, 19.5},
        {"NVIDIA H100 80GB HBM3", 90, 989.4, 66.9},
        {"NVIDIA H100 PCIe", 90, 756.5, 51.2},
        {"NVIDIA H200", 90, 989.4, 66.9},
        {"NVIDIA H200 NVL", 90, 835.5, 60},
        {"NVIDIA L40S", 89, 362, 91.6},
        {"NVIDIA L40", 89, 181, 90.5},
        {"NVIDIA GeForce RTX 4090", 89, 165.2, 82.6},
    };
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++) {
        assert_true(gpu_dense_peak(gpus[i].name, gpus[i].capability, DTYPE_BF16) ==
                    gpus[i].peak_16_bit * 1e12);
        assert_true(gpu_dense_peak(gpus[i].name, gpus[i].capability, DTYPE_F16) ==
                    gpus[i].peak_16_bit * 1e12);
        assert_true(gpu_dense_peak(gpus[i].name, gpus[i].capability, DTYPE_F32) == gpus[i].peak_fp32 * 1e12);
    }
}

static void test_unknown_gpus(void **state) {
    (void)state;
    assert_true(gpu_dense_peak("simulated GPU", 90, DTYPE_BF16) == 0);
    assert_true(gpu_dense_peak("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 90, DTYPE_BF16) == 0); // a slice
    assert_true(gpu_dense_peak("NVIDIA GeForce RTX 4090 Laptop GPU", 89, DTYPE_BF16) == 0);
    assert_true(gpu_dense_peak("NVIDIA H100 80GB HBM3", 100, DTYPE_BF16) == 0); // another capability
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_known_gpus),
                                       cmocka_unit_test(test_unknown_gpus)};
    return cmocka_run_group_tests_name("dense peak of GPUs", tests, NULL, NULL);
}
