// Finds cuDNN (cudnn.h). Symbols already in the process come first, so the simulator, or a library that
// another component loaded, replaces the one on disk.
#include "kernels/cuda/cudnn/cudnn.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

// The library's soname has its major version. The toolkit's folder is for machines whose ld.so is not
// configured to look there.
static void *open_library(const char *library) {
    const char *const names[] = {"libcudnn.so.9", "/usr/local/cuda/lib64/libcudnn.so.9"};
    if (library)
        return dlopen(library, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *opened = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (opened)
            return opened;
    }
    (void)dlerror(); // report that the system has none, rather than the last path that was tried
    return dlopen(names[0], RTLD_NOW | RTLD_LOCAL);
}

static bool find_functions(void *library, struct cudnn *cudnn, char *reason, size_t size) {
#define CUDNN_FIND(result, name, parameters)                                                                 \
    *(void **)&cudnn->name = dlsym(library, "cudnn" #name);                                                  \
    if (!cudnn->name) {                                                                                      \
        snprintf(reason, size, "this libcudnn has no function cudnn" #name);                                 \
        return false;                                                                                        \
    }
    CUDNN_FUNCTIONS(CUDNN_FIND)
#undef CUDNN_FIND
    return true;
}

const char *cudnn_version_name(size_t version, char *buffer, size_t size) {
    snprintf(buffer, size, "%zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
    return buffer;
}

bool cudnn_load(const char *library, struct cudnn *cudnn, char *reason, size_t size) {
    char found[32], oldest[32];
    bool in_process = !library && dlsym(RTLD_DEFAULT, "cudnnBackendExecute");
    void *opened = in_process ? RTLD_DEFAULT : open_library(library);
    if (!opened && !in_process) {
        snprintf(reason, size, "%s was not found (%s)", library ? library : "libcudnn.so.9", dlerror());
        return false;
    }
    if (!find_functions(opened, cudnn, reason, size))
        return false;
    size_t version = cudnn->GetVersion();
    if (version >= CUDNN_OLDEST)
        return true;
    snprintf(reason, size, "it is cuDNN %s, and %s or newer is needed",
             version < 10000 ? "8 or older" : cudnn_version_name(version, found, sizeof found),
             cudnn_version_name(CUDNN_OLDEST, oldest, sizeof oldest));
    return false;
}
