// Loads cuBLASLt (cublaslt.cuh). Symbols already in the process come first, so the simulator, or a library
// that another component loaded, replaces the one on disk.
#include "kernels/cuda/cublaslt/cublaslt.cuh"

#include <dlfcn.h>
#include <stdio.h>

namespace {

constexpr int TOOLKIT_MAJOR = CUDART_VERSION / 1000;

// The library's structs may change between major versions, so only the one the program was built with is
// loaded. The second path is where the toolkit installs it when ld.so is not configured to find it.
void *open_library() {
    char name[64];
    const char *const formats[] = {"libcublasLt.so.%d", "/usr/local/cuda/lib64/libcublasLt.so.%d"};
    for (const char *format : formats) {
        snprintf(name, sizeof name, format, TOOLKIT_MAJOR);
        if (void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL))
            return library;
    }
    return dlopen("libcublasLt.so", RTLD_NOW | RTLD_LOCAL);
}

} // namespace

enum status cublaslt_load(struct cublaslt *lt) {
    void *library = RTLD_DEFAULT;
    if (!dlsym(library, "cublasLtCreate") && !(library = open_library()))
        return FAIL(
            STATUS_UNSUPPORTED,
            "device \"cuda\": libcublasLt.so.%d was not found (%s); install cuBLAS of CUDA %d (package "
            "libcublas-%d-0 or newer, or the whole toolkit), name its folder in LD_LIBRARY_PATH, or "
            "use device=cpu",
            TOOLKIT_MAJOR, dlerror(), TOOLKIT_MAJOR, TOOLKIT_MAJOR);
#define CUBLASLT_FIND(name)                                                                                  \
    lt->name = reinterpret_cast<decltype(lt->name)>(dlsym(library, "cublasLt" #name));                       \
    if (!lt->name)                                                                                           \
        return FAIL(STATUS_UNSUPPORTED,                                                                      \
                    "device \"cuda\": this libcublasLt has no function cublasLt" #name                       \
                    "; install cuBLAS of CUDA %d, or use device=cpu",                                        \
                    TOOLKIT_MAJOR);
    CUBLASLT_FUNCTIONS(CUBLASLT_FIND)
#undef CUBLASLT_FIND
    return STATUS_OK;
}
