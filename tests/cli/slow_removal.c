// Preloaded into a rank by tests/cli/test_ranks.py: removing a folder takes as long as removing a large one
// on a network file system.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#define SECONDS 6 // longer than failed ranks wait for each other

int unlinkat(int folder, const char *path, int flags) {
    int (*next)(int, const char *, int) = (int (*)(int, const char *, int))dlsym(RTLD_NEXT, "unlinkat");
    if (flags & AT_REMOVEDIR)
        sleep(SECONDS);
    return next(folder, path, flags);
}
