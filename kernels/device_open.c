// Opens a device by name. Not in device.c, because this file knows every backend, and every backend uses
// device.c.
#include <string.h>

#include "kernels/device.h"

static enum status open_cpu(int n_threads, int index, struct device **out) {
    TRY(cpu_device_open(NULL, n_threads, out));
    enum status status = cpu_device_bind_threads(*out, index);
    if (status != STATUS_OK)
        device_close(*out);
    return status;
}

enum status device_open(const char *name, int n_threads, int index, struct device **out) {
    if (strcmp(name, "cpu") == 0)
        return open_cpu(n_threads, index, out);
    if (strcmp(name, "cuda") == 0)
        return cuda_device_open(index, out);
    if (strcmp(name, "auto") != 0)
        return FAIL(STATUS_UNSUPPORTED, "unknown device \"%s\"; expected auto, cpu or cuda", name);
    enum status status = cuda_device_open(index, out);
    if (status != STATUS_UNSUPPORTED)
        return status;
    status_clear(); // no GPU: fall back to the CPU
    return open_cpu(n_threads, index, out);
}
