// Stands in for the CUDA backend where it was not built: there was no nvcc.
#include "kernels/device.h"

enum status cuda_device_open(int index, struct device **out) {
    (void)index, (void)out;
    return FAIL(STATUS_UNSUPPORTED,
                "device \"cuda\": this ./train was built without the CUDA toolkit; install it (nvcc "
                "on PATH, or CUDA_HOME), run make again, or use device=cpu");
}
