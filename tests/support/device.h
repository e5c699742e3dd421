// The device that all tests of a program use: opened before their group and closed after it.
#ifndef ZERO_TESTS_SUPPORT_DEVICE_H
#define ZERO_TESTS_SUPPORT_DEVICE_H

#include "kernels/device.h"
#include "tests/ref/ref.h"

static struct device *device;
static struct stream stream;

static inline int open_reference(void **state) {
    (void)state;
    return ref_device_open(&device) != STATUS_OK || stream_init(&stream, device) != STATUS_OK;
}

// Opens the CPU with two threads, and a stream.
static inline int open_cpu(void **state) {
    (void)state;
    return device_open("cpu", 2, 0, &device) != STATUS_OK || stream_init(&stream, device) != STATUS_OK;
}

static inline int close_device(void **state) {
    (void)state;
    stream_free(&stream);
    device_close(device);
    return 0;
}

#endif
