// A cmocka test of one operation on one device. The test programs of the backends are lists of such tests.
#ifndef ZERO_TESTS_OPS_OP_CASE_H
#define ZERO_TESTS_OPS_OP_CASE_H

#include "tests/ops/op_check.h"

struct op_case {
    const char *device; // "ref", "cuda", or an instruction set of the CPU backend
    int n_threads;
    enum operation operation;
    void (*check)(struct op_bench *bench);
};

// Opens the device, or skips the test if this machine lacks it.
struct device *op_device_or_skip(const char *name, int n_threads);

// A cmocka test function; *state is the struct op_case.
void op_case_run(void **state);

// The entry of one operation in a list of tests. Used with OPERATIONS (kernels/ops.h), so that every
// operation has a check.
#define OP_CASE(device, n_threads, name)                                                                     \
    {device ": " #name, op_case_run, NULL, NULL,                                                             \
     &(struct op_case){device, n_threads, OP_##name, check_##name}},

#endif
