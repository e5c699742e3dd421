// Operations that this backend does not have yet.
#include "kernels/cpu/cpu.h"

#define PENDING(name)                                                                                        \
    enum status CPU_OP(name)(struct stream * stream, const struct name##_args *args) {                       \
        (void)stream, (void)args;                                                                            \
        return FAIL(STATUS_UNSUPPORTED, #name " on the CPU");                                                \
    }
PENDING(rmsnorm_forward)
PENDING(rmsnorm_backward)
PENDING(relu_squared_forward)
PENDING(relu_squared_backward)
PENDING(swiglu_forward)
PENDING(swiglu_backward)
PENDING(rope_forward)
PENDING(rope_backward)
