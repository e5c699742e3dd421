// cuDNN's backend API, declared here and loaded at run time: the program builds without cuDNN's headers and
// starts without the library. Names are cuDNN's, but functions drop the prefix "cudnn", and values have
// CUDNN9_ in place of CUDNN_. So a test can include NVIDIA's headers together with this one and compare
// them (tests/nvidia/check_cudnn.c). Values and signatures are those of cuDNN 9; its minor versions add to
// them but change none.
//
//   cudnn.h                      the library's API
//   graph.h, graph.c             loading the library; descriptors: tensors, operations, the plan of a graph
//   attention.h, attention.c     attention as graphs of these operations
//   device.cu                    plans and calls on a GPU
#ifndef ZERO_KERNELS_CUDA_CUDNN_H
#define ZERO_KERNELS_CUDA_CUDNN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct cudnnContext; // cuDNN's handle
struct CUstream_st;  // CUDA's stream

// Calls F(result, name, parameters) for each function that is used. cuDNN's enums are unsigned int here.
#define CUDNN_FUNCTIONS(F)                                                                                   \
    F(size_t, GetVersion, (void))                                                                            \
    F(const char *, GetErrorString, (unsigned error))                                                        \
    F(void, GetLastErrorString, (char *message, size_t size))                                                \
    F(unsigned, Create, (struct cudnnContext * *handle))                                                     \
    F(unsigned, Destroy, (struct cudnnContext * handle))                                                     \
    F(unsigned, SetStream, (struct cudnnContext * handle, struct CUstream_st * stream))                      \
    F(unsigned, BackendCreateDescriptor, (unsigned type, void **descriptor))                                 \
    F(unsigned, BackendDestroyDescriptor, (void *descriptor))                                                \
    F(unsigned, BackendFinalize, (void *descriptor))                                                         \
    F(unsigned, BackendSetAttribute,                                                                         \
      (void *descriptor, unsigned name, unsigned type, int64_t count, const void *elements))                 \
    F(unsigned, BackendGetAttribute,                                                                         \
      (void *descriptor, unsigned name, unsigned type, int64_t room, int64_t *count, void *elements))        \
    F(unsigned, BackendExecute, (struct cudnnContext * handle, void *plan, void *variant_pack))

// Calls V(name, value) for each of cuDNN's constants CUDNN_name that is used.
#define CUDNN_VALUES(V)                                                                                      \
    V(STATUS_SUCCESS, 0)                                                                                     \
    V(DATA_FLOAT, 0)                                                                                         \
    V(DATA_HALF, 2)                                                                                          \
    V(DATA_INT32, 4)                                                                                         \
    V(DATA_BFLOAT16, 9)                                                                                      \
    V(DATA_BOOLEAN, 11)                                                                                      \
    V(TYPE_HANDLE, 0)                                                                                        \
    V(TYPE_DATA_TYPE, 1)                                                                                     \
    V(TYPE_BOOLEAN, 2)                                                                                       \
    V(TYPE_INT64, 3)                                                                                         \
    V(TYPE_VOID_PTR, 6)                                                                                      \
    V(TYPE_HEUR_MODE, 8)                                                                                     \
    V(TYPE_NUMERICAL_NOTE, 11)                                                                               \
    V(TYPE_POINTWISE_MODE, 14)                                                                               \
    V(TYPE_BACKEND_DESCRIPTOR, 15)                                                                           \
    V(TYPE_REDUCTION_OPERATOR_TYPE, 18)                                                                      \
    V(TYPE_CHAR, 24)                                                                                         \
    V(POINTWISE_ADD, 0)                                                                                      \
    V(POINTWISE_MUL, 1)                                                                                      \
    V(POINTWISE_DIV, 6)                                                                                      \
    V(POINTWISE_SUB, 9)                                                                                      \
    V(POINTWISE_EXP, 13)                                                                                     \
    V(POINTWISE_LOG, 15)                                                                                     \
    V(POINTWISE_CMP_GT, 302)                                                                                 \
    V(POINTWISE_CMP_GE, 303)                                                                                 \
    V(POINTWISE_GEN_INDEX, 501)                                                                              \
    V(POINTWISE_BINARY_SELECT, 601)                                                                          \
    V(REDUCE_TENSOR_ADD, 0)                                                                                  \
    V(REDUCE_TENSOR_MAX, 3)                                                                                  \
    V(HEUR_MODE_FALLBACK, 2)                                                                                 \
    V(HEUR_MODE_A, 3)                                                                                        \
    V(NUMERICAL_NOTE_NONDETERMINISTIC, 4)                                                                    \
    V(BACKEND_POINTWISE_DESCRIPTOR, 0)                                                                       \
    V(BACKEND_ENGINE_DESCRIPTOR, 2)                                                                          \
    V(BACKEND_ENGINECFG_DESCRIPTOR, 3)                                                                       \
    V(BACKEND_ENGINEHEUR_DESCRIPTOR, 4)                                                                      \
    V(BACKEND_EXECUTION_PLAN_DESCRIPTOR, 5)                                                                  \
    V(BACKEND_OPERATION_POINTWISE_DESCRIPTOR, 13)                                                            \
    V(BACKEND_OPERATIONGRAPH_DESCRIPTOR, 15)                                                                 \
    V(BACKEND_VARIANT_PACK_DESCRIPTOR, 16)                                                                   \
    V(BACKEND_TENSOR_DESCRIPTOR, 17)                                                                         \
    V(BACKEND_MATMUL_DESCRIPTOR, 18)                                                                         \
    V(BACKEND_OPERATION_MATMUL_DESCRIPTOR, 19)                                                               \
    V(BACKEND_REDUCTION_DESCRIPTOR, 21)                                                                      \
    V(BACKEND_OPERATION_REDUCTION_DESCRIPTOR, 22)                                                            \
    V(BACKEND_OPERATION_RESHAPE_DESCRIPTOR, 31)                                                              \
    V(BACKEND_DEVICEPROP_DESCRIPTOR, 38)                                                                     \
    V(ATTR_POINTWISE_MODE, 0)                                                                                \
    V(ATTR_POINTWISE_MATH_PREC, 1)                                                                           \
    V(ATTR_POINTWISE_AXIS, 9)                                                                                \
    V(ATTR_ENGINEHEUR_MODE, 200)                                                                             \
    V(ATTR_ENGINEHEUR_OPERATION_GRAPH, 201)                                                                  \
    V(ATTR_ENGINEHEUR_RESULTS, 202)                                                                          \
    V(ATTR_ENGINEHEUR_DEVICEPROP, 204)                                                                       \
    V(ATTR_ENGINECFG_ENGINE, 300)                                                                            \
    V(ATTR_EXECUTION_PLAN_HANDLE, 400)                                                                       \
    V(ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 401)                                                                \
    V(ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 402)                                                               \
    V(ATTR_EXECUTION_PLAN_DEVICEPROP, 407)                                                                   \
    V(ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 750)                                                           \
    V(ATTR_OPERATION_POINTWISE_XDESC, 751)                                                                   \
    V(ATTR_OPERATION_POINTWISE_BDESC, 752)                                                                   \
    V(ATTR_OPERATION_POINTWISE_YDESC, 753)                                                                   \
    V(ATTR_OPERATION_POINTWISE_TDESC, 758)                                                                   \
    V(ATTR_OPERATIONGRAPH_HANDLE, 800)                                                                       \
    V(ATTR_OPERATIONGRAPH_OPS, 801)                                                                          \
    V(ATTR_TENSOR_BYTE_ALIGNMENT, 900)                                                                       \
    V(ATTR_TENSOR_DATA_TYPE, 901)                                                                            \
    V(ATTR_TENSOR_DIMENSIONS, 902)                                                                           \
    V(ATTR_TENSOR_STRIDES, 903)                                                                              \
    V(ATTR_TENSOR_UNIQUE_ID, 906)                                                                            \
    V(ATTR_TENSOR_IS_VIRTUAL, 907)                                                                           \
    V(ATTR_TENSOR_IS_BY_VALUE, 908)                                                                          \
    V(ATTR_VARIANT_PACK_UNIQUE_IDS, 1000)                                                                    \
    V(ATTR_VARIANT_PACK_DATA_POINTERS, 1001)                                                                 \
    V(ATTR_VARIANT_PACK_WORKSPACE, 1003)                                                                     \
    V(ATTR_ENGINE_NUMERICAL_NOTE, 1303)                                                                      \
    V(ATTR_MATMUL_COMP_TYPE, 1500)                                                                           \
    V(ATTR_OPERATION_MATMUL_ADESC, 1520)                                                                     \
    V(ATTR_OPERATION_MATMUL_BDESC, 1521)                                                                     \
    V(ATTR_OPERATION_MATMUL_CDESC, 1522)                                                                     \
    V(ATTR_OPERATION_MATMUL_DESC, 1523)                                                                      \
    V(ATTR_REDUCTION_OPERATOR, 1600)                                                                         \
    V(ATTR_REDUCTION_COMP_TYPE, 1601)                                                                        \
    V(ATTR_OPERATION_REDUCTION_XDESC, 1610)                                                                  \
    V(ATTR_OPERATION_REDUCTION_YDESC, 1611)                                                                  \
    V(ATTR_OPERATION_REDUCTION_DESC, 1612)                                                                   \
    V(ATTR_OPERATION_RESHAPE_XDESC, 2200)                                                                    \
    V(ATTR_OPERATION_RESHAPE_YDESC, 2201)                                                                    \
    V(ATTR_DEVICEPROP_JSON_REPRESENTATION, 2702)

#define CUDNN_VALUE(name, value) CUDNN9_##name = value,
enum cudnn_value { CUDNN_VALUES(CUDNN_VALUE) };
#undef CUDNN_VALUE

struct cudnn {
#define CUDNN_FIELD(result, name, parameters) result(*name) parameters;
    CUDNN_FUNCTIONS(CUDNN_FIELD)
#undef CUDNN_FIELD
};

// The oldest version of cuDNN that is used, 9.12.0: the first one for CUDA 13, and the oldest one on which
// the graphs of attention were tested (tests/nvidia/judge_cudnn.c).
#define CUDNN_OLDEST 91200

// Loads the library and finds its functions.
//   library  path or name. NULL: the library already in the process (the simulator), otherwise libcudnn.so.9
//            from the system's folders or the CUDA toolkit's
//   reason   [out] why it cannot be used, to be put in a sentence: "libcudnn.so.9 was not found (...)"
// Returns false if the library is missing, older than CUDNN_OLDEST, or lacks a function. The library is
// never unloaded, since CUDA's libraries do not support that.
bool cudnn_load(const char *library, struct cudnn *cudnn, char *reason, size_t size);

// "9.19.0" for 91900. Returns the buffer.
const char *cudnn_version_name(size_t version, char *buffer, size_t size);

#endif
