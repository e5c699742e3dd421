// For the test programs that check the reference's gradients. test_kernels_ref_llama.c checks those of
// Llama's layers, test_kernels_mixing.c those of weighted sums and dropout, test_kernels_ref_gradients.c all
// others.
#ifndef ZERO_TESTS_OPS_REF_GRADIENTS_H
#define ZERO_TESTS_OPS_REF_GRADIENTS_H

#include "tests/ops/ref_device.h"

enum gradients_program { GRADIENTS_OF_GPT2, GRADIENTS_OF_LLAMA, GRADIENTS_OF_MIXING };

static enum gradients_program program_of(const char *name) {
    static const struct {
        const char *prefix;
        enum gradients_program program;
    } others[] = {{"rmsnorm", GRADIENTS_OF_LLAMA}, {"rope", GRADIENTS_OF_LLAMA},
                  {"qkv", GRADIENTS_OF_LLAMA},     {"relu_squared", GRADIENTS_OF_LLAMA},
                  {"swiglu", GRADIENTS_OF_LLAMA},  {"mix", GRADIENTS_OF_MIXING},
                  {"dropout", GRADIENTS_OF_MIXING}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strncmp(name, others[i].prefix, strlen(others[i].prefix)) == 0)
            return others[i].program;
    return GRADIENTS_OF_GPT2;
}

// Fails unless all operations of this program were called.
static void expect_all_checked(enum gradients_program program) {
#define EXPECT_CHECKED(name)                                                                                 \
    if (!is_run[OP_##name] && strstr(#name, "ward") && program_of(#name) == program)                         \
        fail_msg("no finite differences were computed for " #name);
    OPERATIONS(EXPECT_CHECKED)
#undef EXPECT_CHECKED
}

#endif
