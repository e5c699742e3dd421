// What is common to all devices: opening by name. kernels/measure.c times them.
#include "kernels/device.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/ops.h"

const char *operation_name(enum operation operation) {
#define OPERATION_TEXT(name) #name,
    static const char *const names[N_OPERATIONS] = {OPERATIONS(OPERATION_TEXT)};
#undef OPERATION_TEXT
    return names[operation];
}

enum status device_open(const char *name, int n_threads, struct device **out) {
    if (strcmp(name, "cpu") == 0 || strcmp(name, "auto") == 0)
        return cpu_device_open(NULL, n_threads, out);
    return FAIL(STATUS_UNSUPPORTED, "this build has no device \"%s\"; device is \"auto\" or \"cpu\"", name);
}

void device_close(struct device *device) {
    if (!device)
        return;
    if (strcmp(device->name, "cpu") == 0)
        cpu_device_close(device);
    else
        free(device); // ref: nothing but the struct
}
