// cuBLASLt, loaded at run time instead of linked: the program starts on machines without it, and reports that
// it is missing only when a GPU is requested. Types and values are those of the library's header.
#ifndef ZERO_KERNELS_CUDA_CUBLASLT_CUH
#define ZERO_KERNELS_CUDA_CUBLASLT_CUH

#include <cublasLt.h>

#include "kernels/cuda/common.cuh"

// The functions of cuBLASLt that are used. Their names lack the prefix cublasLt.
#define CUBLASLT_FUNCTIONS(F)                                                                                \
    F(Create)                                                                                                \
    F(Destroy)                                                                                               \
    F(GetProperty)                                                                                           \
    F(GetStatusString)                                                                                       \
    F(MatmulDescCreate)                                                                                      \
    F(MatmulDescDestroy)                                                                                     \
    F(MatmulDescSetAttribute)                                                                                \
    F(MatrixLayoutCreate)                                                                                    \
    F(MatrixLayoutDestroy)                                                                                   \
    F(MatrixLayoutSetAttribute)                                                                              \
    F(MatmulPreferenceCreate)                                                                                \
    F(MatmulPreferenceDestroy)                                                                               \
    F(MatmulPreferenceSetAttribute)                                                                          \
    F(MatmulAlgoGetHeuristic)                                                                                \
    F(MatmulAlgoCheck)                                                                                       \
    F(Matmul)

struct cublaslt {
#define CUBLASLT_FIELD(name) decltype(&cublasLt##name) name;
    CUBLASLT_FUNCTIONS(CUBLASLT_FIELD)
#undef CUBLASLT_FIELD
};

// Loads the library and finds its functions. The library is never unloaded, since CUDA's libraries do not
// support that.
// Errors: STATUS_UNSUPPORTED if the library or a function is missing; the message names what to install.
enum status cublaslt_load(struct cublaslt *lt) MUST_CHECK;

// Returns STATUS_FAILED from the current function unless the call of the library `lt` succeeds.
#define TRY_CUBLASLT(lt, call)                                                                               \
    do {                                                                                                     \
        cublasStatus_t error_ = (lt).call;                                                                   \
        if (error_ != CUBLAS_STATUS_SUCCESS)                                                                 \
            return FAIL(STATUS_FAILED, "cuBLASLt: %s: %s", #call, (lt).GetStatusString(error_));             \
    } while (0)

#endif
