// Operations without checks yet.
#include "tests/ops/op_check.h"

#define PENDING(name)                                                                                        \
    void check_##name(struct op_bench *bench) {                                                              \
        (void)bench;                                                                                         \
    }
PENDING(rmsnorm_forward)
PENDING(rmsnorm_backward)
PENDING(relu_squared_forward)
PENDING(relu_squared_backward)
PENDING(swiglu_forward)
PENDING(swiglu_backward)
PENDING(rope_forward)
PENDING(rope_backward)
