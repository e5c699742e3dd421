// A libcuda.so.1 for machines without NVIDIA's driver, so that cuDNN can be asked to build plans there: it
// accepts compiled kernels and attributes, and has no GPU. cuDNN compiles a plan's kernel and hands it to the
// driver; nothing is ever launched.
enum { SUCCESS = 0, NO_DEVICE = 100 };

#define REFUSES(name)                                                                                        \
    int name(void);                                                                                          \
    int name(void) {                                                                                         \
        return NO_DEVICE;                                                                                    \
    }
#define ACCEPTS(name)                                                                                        \
    int name(void);                                                                                          \
    int name(void) {                                                                                         \
        return SUCCESS;                                                                                      \
    }
// Gives out a handle through its first parameter.
#define GIVES_HANDLE(name)                                                                                   \
    int name(void **handle);                                                                                 \
    int name(void **handle) {                                                                                \
        static int target;                                                                                   \
        *handle = &target;                                                                                   \
        return SUCCESS;                                                                                      \
    }

GIVES_HANDLE(cuLibraryLoadData)
GIVES_HANDLE(cuLibraryGetKernel)
GIVES_HANDLE(cuKernelGetFunction)
ACCEPTS(cuKernelSetAttribute)
ACCEPTS(cuLibraryUnload)

int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device);
int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
    (void)attribute, (void)kernel, (void)device;
    *value = 0;
    return SUCCESS;
}

// What cuDNN looks up, and does not need for a plan.
#define REFUSED(F)                                                                                           \
    F(cuCtxGetCurrent)                                                                                       \
    F(cuCtxGetDevice)                                                                                        \
    F(cuCtxGetLimit)                                                                                         \
    F(cuCtxPopCurrent)                                                                                       \
    F(cuCtxPushCurrent)                                                                                      \
    F(cuDeviceGet)                                                                                           \
    F(cuDeviceGetAttribute)                                                                                  \
    F(cuDeviceGetCount)                                                                                      \
    F(cuDevicePrimaryCtxRelease)                                                                             \
    F(cuDevicePrimaryCtxReset)                                                                               \
    F(cuDevicePrimaryCtxRetain)                                                                              \
    F(cuDriverGetVersion)                                                                                    \
    F(cuFuncGetAttribute)                                                                                    \
    F(cuFuncSetAttribute)                                                                                    \
    F(cuGetErrorName)                                                                                        \
    F(cuGetErrorString)                                                                                      \
    F(cuInit)                                                                                                \
    F(cuLaunchCooperativeKernel)                                                                             \
    F(cuLaunchKernel)                                                                                        \
    F(cuLaunchKernelEx)                                                                                      \
    F(cuLibraryLoadFromFile)                                                                                 \
    F(cuLinkAddData)                                                                                         \
    F(cuLinkAddData_v2)                                                                                      \
    F(cuLinkAddFile_v2)                                                                                      \
    F(cuLinkComplete)                                                                                        \
    F(cuLinkCreate)                                                                                          \
    F(cuLinkCreate_v2)                                                                                       \
    F(cuLinkDestroy)                                                                                         \
    F(cuMemcpyDtoH_v2)                                                                                       \
    F(cuModuleGetFunction)                                                                                   \
    F(cuModuleGetGlobal_v2)                                                                                  \
    F(cuModuleLoadData)                                                                                      \
    F(cuModuleLoadDataEx)                                                                                    \
    F(cuModuleLoadFatBinary)                                                                                 \
    F(cuModuleUnload)                                                                                        \
    F(cuOccupancyMaxActiveBlocksPerMultiprocessor)                                                           \
    F(cuOccupancyMaxPotentialClusterSize)                                                                    \
    F(cuStreamGetCtx)                                                                                        \
    F(cuStreamSynchronize)                                                                                   \
    F(cuTensorMapEncodeIm2col)                                                                               \
    F(cuTensorMapEncodeTiled)
REFUSED(REFUSES)
