// See zero/comm/nccl/load.h.
#include "zero/comm/nccl/load.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static enum status find_function(void *library, const char *name, void *out, size_t bytes) {
    void *symbol = dlsym(library, name);
    if (!symbol)
        return FAIL(STATUS_UNSUPPORTED, "this %s has no function %s; install NCCL 2.14 or newer", NCCL_SO,
                    name);
    memcpy(out, &symbol, bytes); // ISO C cannot convert a data pointer to a function pointer
    return STATUS_OK;
}

const char *nccl_version_text(int version, char buffer[NCCL_VERSION_TEXT_BYTES]) {
    const unsigned v = (unsigned)version % 1000000;
    // NCCL encodes versions up to 2.8 as 2804, later ones as 20906.
    if (v < 10000)
        snprintf(buffer, NCCL_VERSION_TEXT_BYTES, "%u.%u.%u", v / 1000, v / 100 % 10, v % 100);
    else
        snprintf(buffer, NCCL_VERSION_TEXT_BYTES, "%u.%u.%u", v / 10000, v / 100 % 100, v % 100);
    return buffer;
}

enum status nccl_load(struct nccl_api *api, int *version) {
    void *library = RTLD_DEFAULT;
    char text[NCCL_VERSION_TEXT_BYTES];
    if (!dlsym(library, "ncclGetVersion") && !(library = dlopen(NCCL_SO, RTLD_NOW | RTLD_LOCAL)))
        return FAIL(STATUS_UNSUPPORTED,
                    "%s was not found (%s); install NCCL (package libnccl2), or name its folder in "
                    "LD_LIBRARY_PATH",
                    NCCL_SO, dlerror());
#define NCCL_FIND(name, result, parameters)                                                                  \
    TRY(find_function(library, "nccl" #name, &api->name, sizeof api->name));
    NCCL_FUNCTIONS(NCCL_FIND, int, nccl_comm, nccl_id, int, nccl_stream)
#undef NCCL_FIND
    const int result = api->GetVersion(version);
    if (result != NCCL_SUCCESS)
        return FAIL(STATUS_UNSUPPORTED, "%s does not start: %s", NCCL_SO, api->GetErrorString(result));
    if (*version < NCCL_OLDEST)
        return FAIL(STATUS_UNSUPPORTED, "NCCL is version %s, expected 2.14 or newer; install a newer one",
                    nccl_version_text(*version, text));
    return STATUS_OK;
}

const char *nccl_found_version(char buffer[NCCL_VERSION_TEXT_BYTES]) {
    struct nccl_api api;
    int version;
    if (nccl_load(&api, &version) == STATUS_OK)
        return nccl_version_text(version, buffer);
    status_clear();
    snprintf(buffer, NCCL_VERSION_TEXT_BYTES, "not found");
    return buffer;
}
