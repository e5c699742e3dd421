// Sources: NVIDIA's data sheets and architecture white papers. Data sheets state 16-bit figures with sparsity
// where they do not say "dense"; those are halved here. GeForce GPUs run 16-bit products with fp32 sums at
// half the rate that is stated for fp16 sums.
#include "kernels/dense_peak.h"

#include <fnmatch.h>
#include <string.h>

// The first row that matches counts. Names are shell patterns.
static const struct {
    const char *name;
    int capability;
    double peak_16_bit, peak_fp32; // TFLOP/s
} gpus[] = {
    {"NVIDIA A100*", 80, 312, 19.5},
    {"NVIDIA A800*", 80, 312, 19.5},
    {"NVIDIA A30", 80, 165, 10.3},
    {"NVIDIA A10", 86, 125, 31.2},
    {"NVIDIA A40", 86, 149.7, 37.4},
    {"NVIDIA RTX A6000", 86, 154.8, 38.7},
    {"NVIDIA GeForce RTX 3090", 86, 71, 35.6},
    {"NVIDIA GeForce RTX 3090 Ti", 86, 80, 40},
    {"NVIDIA L4", 89, 121, 30.3},
    {"NVIDIA L40", 89, 181, 90.5},
    {"NVIDIA L40S", 89, 362, 91.6},
    {"NVIDIA RTX 6000 Ada Generation", 89, 364.2, 91.1},
    {"NVIDIA GeForce RTX 4080", 89, 97.5, 48.7},
    {"NVIDIA GeForce RTX 4090", 89, 165.2, 82.6},
    {"NVIDIA H100 PCIe", 90, 756.5, 51.2},
    {"NVIDIA H100 NVL", 90, 835.5, 60},
    {"NVIDIA H100*", 90, 989.4, 66.9},
    {"NVIDIA H800 PCIe", 90, 756.5, 51.2},
    {"NVIDIA H800*", 90, 989.4, 66.9},
    {"NVIDIA H200 NVL", 90, 835.5, 60},
    {"NVIDIA H200*", 90, 989.4, 66.9},
    {"NVIDIA GH200*", 90, 989.4, 66.9},
    {"NVIDIA H20", 90, 148, 44},
    {"NVIDIA B200*", 100, 2250, 75},
    {"NVIDIA GB200*", 100, 2500, 80},
    {"NVIDIA GeForce RTX 5090", 120, 209.5, 104.8},
};

double gpu_dense_peak(const char *name, int capability, enum dtype type) {
    if (strstr(name, "MIG"))
        return 0;
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++)
        if (gpus[i].capability == capability && fnmatch(gpus[i].name, name, 0) == 0)
            return (type == DTYPE_F32 ? gpus[i].peak_fp32 : gpus[i].peak_16_bit) * 1e12;
    return 0;
}
