// Preloaded by tests/cli/test_any_ranks.py: MEMORY_LEFT KiB of this machine's memory are available.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

FILE *fopen(const char *path, const char *mode) {
    static char text[64];
    FILE *(*open_file)(const char *, const char *);
    const char *left = getenv("MEMORY_LEFT");
    *(void **)&open_file = dlsym(RTLD_NEXT, "fopen");
    if (!left || strcmp(path, "/proc/meminfo") != 0)
        return open_file(path, mode);
    snprintf(text, sizeof text, "MemAvailable: %s kB\n", left);
    return fmemopen(text, strlen(text), mode);
}
