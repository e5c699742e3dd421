// The part of NCCL's interface that zero.c uses. It is declared here so that the program builds without
// nccl.h. tests/nvidia/check_nccl.c compares it with NVIDIA's header at compile time.
#ifndef ZERO_ZERO_COMM_NCCL_API_H
#define ZERO_ZERO_COMM_NCCL_API_H

#include <stddef.h>

#define NCCL_SO          "libnccl.so.2"
#define NCCL_OLDEST      21400 // the oldest supported version, 2.14: has ncclGetLastError and ncclInProgress
#define NCCL_ID_BYTES    128
#define NCCL_SUCCESS     0 // ncclResult_t
#define NCCL_IN_PROGRESS 7

enum nccl_type { NCCL_UINT8 = 1, NCCL_FLOAT16 = 6, NCCL_FLOAT32 = 7, NCCL_BFLOAT16 = 9 };

typedef struct ncclComm *nccl_comm;
typedef struct CUstream_st *nccl_stream;
typedef struct {
    char bytes[NCCL_ID_BYTES];
} nccl_id;

// F(name without the prefix nccl, type of the result, parameters). NCCL's enums are ints here.
#define NCCL_FUNCTIONS(F, result, comm, id, type, stream)                                                    \
    F(GetVersion, result, (int *))                                                                           \
    F(GetUniqueId, result, (id *))                                                                           \
    F(CommInitRank, result, (comm *, int, id, int))                                                          \
    F(CommDestroy, result, (comm))                                                                           \
    F(CommAbort, result, (comm))                                                                             \
    F(CommGetAsyncError, result, (comm, result *))                                                           \
    F(GetErrorString, const char *, (result))                                                                \
    F(GetLastError, const char *, (comm))                                                                    \
    F(GroupStart, result, (void))                                                                            \
    F(GroupEnd, result, (void))                                                                              \
    F(Send, result, (const void *, size_t, type, int, comm, stream))                                         \
    F(Recv, result, (void *, size_t, type, int, comm, stream))                                               \
    F(AllGather, result, (const void *, void *, size_t, type, comm, stream))

// The library's functions, as nccl_load finds them.
struct nccl_api {
#define NCCL_FIELD(name, result, parameters) result(*name) parameters;
    NCCL_FUNCTIONS(NCCL_FIELD, int, nccl_comm, nccl_id, int, nccl_stream)
#undef NCCL_FIELD
};

#endif
