// Compiles only where zero/comm/nccl/api.h agrees with NVIDIA's nccl.h. Each function is declared once more,
// with NVIDIA's types in the places of ours, which must have their sizes.
#include <nccl.h>

#include "zero/comm/nccl/api.h"

#define CHECK(name, result, parameters)                                                                      \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&nccl##name), result(*) parameters),              \
                   "nccl" #name " has other parameters");
NCCL_FUNCTIONS(CHECK, ncclResult_t, ncclComm_t, ncclUniqueId, ncclDataType_t, cudaStream_t)

_Static_assert(sizeof(ncclResult_t) == sizeof(int), "ncclResult_t");
_Static_assert(sizeof(ncclDataType_t) == sizeof(int), "ncclDataType_t");
_Static_assert(sizeof(ncclUniqueId) == sizeof(nccl_id), "ncclUniqueId");
_Static_assert(NCCL_UNIQUE_ID_BYTES == NCCL_ID_BYTES, "ncclUniqueId");
_Static_assert(__builtin_types_compatible_p(ncclComm_t, nccl_comm), "ncclComm_t");
_Static_assert(__builtin_types_compatible_p(cudaStream_t, nccl_stream), "cudaStream_t");
_Static_assert((int)ncclSuccess == NCCL_SUCCESS && (int)ncclInProgress == NCCL_IN_PROGRESS, "ncclResult_t");
_Static_assert((int)ncclUint8 == NCCL_UINT8 && (int)ncclFloat16 == NCCL_FLOAT16 &&
                   (int)ncclFloat32 == NCCL_FLOAT32 && (int)ncclBfloat16 == NCCL_BFLOAT16,
               "ncclDataType_t");
