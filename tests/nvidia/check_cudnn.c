// Compiles only where kernels/cuda/cudnn/cudnn.h agrees with NVIDIA's headers: every value, and the type of
// every function.
#include <cudnn.h>
#include <stddef.h>

#include "kernels/cuda/cudnn/cudnn.h"

#define CHECK_VALUE(name, value)                                                                             \
    _Static_assert((int)CUDNN_##name == (value), "CUDNN_" #name " has another value");
CUDNN_VALUES(CHECK_VALUE)

// An enum is compatible with the integer type that the compiler gave it, so these compare the enums too.
#define CHECK_FUNCTION(result, name, parameters)                                                             \
    _Static_assert(                                                                                          \
        __builtin_types_compatible_p(__typeof__(&cudnn##name), __typeof__(((struct cudnn *)0)->name)),       \
        "cudnn" #name " has another type");
CUDNN_FUNCTIONS(CHECK_FUNCTION)

_Static_assert(CUDNN_MAJOR == 9, "the declarations are those of cuDNN 9");
