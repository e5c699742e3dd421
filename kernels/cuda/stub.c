// Replaces the CUDA backend in builds without nvcc.
#include <stdio.h>

#include "kernels/device.h"

enum status cuda_device_open(int index, struct device **out) {
    (void)index, (void)out;
    return FAIL(STATUS_UNSUPPORTED,
                "device \"cuda\": this ./train was built without the CUDA toolkit; install it (nvcc "
                "on PATH, or CUDA_HOME), run make again, or use device=cpu");
}

bool cuda_device_present(void) {
    return false;
}

const char *cuda_device_architectures(char *buffer, size_t size) {
    snprintf(buffer, size, "none: built without CUDA");
    return buffer;
}

const char *cuda_device_cublas(char *buffer, size_t size) {
    snprintf(buffer, size, "not used: built without CUDA");
    return buffer;
}

const char *cuda_device_cudnn(char *buffer, size_t size) {
    snprintf(buffer, size, "not used: built without CUDA");
    return buffer;
}
