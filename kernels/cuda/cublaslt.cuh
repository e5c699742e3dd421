// cuBLASLt, found when the program runs and not when it is linked: so the program starts on a machine without
// it, and says what is missing once a GPU is asked for. Types and values are those of the library's header.
#ifndef ZERO_KERNELS_CUDA_CUBLASLT_CUH
#define ZERO_KERNELS_CUDA_CUBLASLT_CUH

#include <cublasLt.h>

#include "kernels/cuda/common.cuh"

// The functions that are used, without the prefix cublasLt.
#define CUBLASLT_FUNCTIONS(F)                                                                                \
    F(Create)                                                                                                \
    F(Destroy)                                                                                               \
    F(GetStatusString)                                                                                       \
    F(MatmulDescCreate)                                                                                      \
    F(MatmulDescDestroy)                                                                                     \
    F(MatmulDescSetAttribute)                                                                                \
    F(MatrixLayoutCreate)                                                                                    \
    F(MatrixLayoutDestroy)                                                                                   \
    F(MatmulPreferenceCreate)                                                                                \
    F(MatmulPreferenceDestroy)                                                                               \
    F(MatmulPreferenceSetAttribute)                                                                          \
    F(MatmulAlgoGetHeuristic)                                                                                \
    F(Matmul)

struct cublaslt {
#define CUBLASLT_FIELD(name) decltype(&cublasLt##name) name;
    CUBLASLT_FUNCTIONS(CUBLASLT_FIELD)
#undef CUBLASLT_FIELD
};

// STATUS_UNSUPPORTED, with what to install, when the library or one of the functions is not there. What was
// loaded stays until the process ends, as libraries of CUDA are made to.
enum status cublaslt_load(struct cublaslt *lt) MUST_CHECK;

// Leaves the current function with STATUS_FAILED unless the call of the library `lt` succeeds.
#define TRY_CUBLASLT(lt, call)                                                                               \
    do {                                                                                                     \
        cublasStatus_t error_ = (lt).call;                                                                   \
        if (error_ != CUBLAS_STATUS_SUCCESS)                                                                 \
            return FAIL(STATUS_FAILED, "cuBLASLt: %s: %s", #call, (lt).GetStatusString(error_));             \
    } while (0)

#endif
