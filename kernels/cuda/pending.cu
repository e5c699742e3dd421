// Operations that this backend does not have yet.
#include "kernels/cuda/common.cuh"

#define PENDING(name)                                                                                        \
    extern "C" enum status cuda_##name(struct stream *stream, const struct name##_args *args) {              \
        (void)stream, (void)args;                                                                            \
        return FAIL(STATUS_UNSUPPORTED, #name " on GPUs");                                                   \
    }
PENDING(rmsnorm_forward)
PENDING(rmsnorm_backward)
PENDING(relu_squared_forward)
PENDING(relu_squared_backward)
PENDING(swiglu_forward)
PENDING(swiglu_backward)
PENDING(rope_forward)
PENDING(rope_backward)
