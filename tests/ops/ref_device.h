// The reference as a device, for test programs: `device`, `stream`, and RUN for one operation.
#ifndef ZERO_TESTS_OPS_REF_DEVICE_H
#define ZERO_TESTS_OPS_REF_DEVICE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/ops.h"
#include "tests/ops/finite_differences.h"
#include "tests/ref/ref.h"
#include "tests/support/expect.h"

static struct device *device;
static struct stream stream;
static bool is_run[N_OPERATIONS]; // by RUN

#define RUN(name, ...)                                                                                       \
    do {                                                                                                     \
        is_run[OP_##name] = true;                                                                            \
        EXPECT_OK(device->ops->name(&stream, &(struct name##_args){__VA_ARGS__}));                           \
    } while (0)

static int open_device(void **state) {
    (void)state;
    if (ref_device_open(&device) != STATUS_OK)
        return -1;
    stream = (struct stream){.device = device, .workspace_bytes = 1 << 16};
    return device->memory_new(device, stream.workspace_bytes, "tests", &stream.workspace) == STATUS_OK ? 0
                                                                                                       : -1;
}

static int close_device(void **state) {
    (void)state;
    device->memory_delete(device, stream.workspace, stream.workspace_bytes);
    device_close(device);
    return 0;
}

#endif
