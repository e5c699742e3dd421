// Preloaded into ./train by tests/cli/test_disk.py: a disk that fails, is slow, or loses a folder, below the
// folder DISK. What a call does follows from the environment:
//   DISK_FAILS=N DISK_SEED=S   one of N writes, flushes, renames and removals fails; which follows from S
//   DISK_KEEPS=NAME            what has NAME in its path cannot be renamed or removed
//   DISK_SECONDS=N             the first flush takes N seconds
//   DISK_PRUNES=NAME           the folder NAME is gone when its manifest is opened, as if a run pruned it
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static bool is_below(const char *path) {
    const char *disk = getenv("DISK");
    return disk && strncmp(path, disk, strlen(disk)) == 0;
}

static bool is_open_below(int descriptor) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    return is_below(path);
}

static bool fails(void) {
    static atomic_uint n_calls;
    const char *one_in = getenv("DISK_FAILS"), *seed = getenv("DISK_SEED");
    if (!one_in || !seed)
        return false;
    uint64_t x = strtoull(seed, NULL, 10) * 1000003 + atomic_fetch_add(&n_calls, 1) + 1;
    for (int round = 0; round < 3; round++) { // splitmix64
        x += 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        x ^= x >> 31;
    }
    return x % strtoull(one_in, NULL, 10) == 0;
}

static bool keeps(const char *path) {
    const char *kept = getenv("DISK_KEEPS");
    return kept && strstr(path, kept);
}

static int failed(int error) {
    errno = error;
    return -1;
}

ssize_t write(int descriptor, const void *data, size_t bytes) {
    if (!is_open_below(descriptor) || !fails())
        return NEXT(write)(descriptor, data, bytes);
    if (bytes > 1 && fails()) // a part of it is written
        return NEXT(write)(descriptor, data, bytes / 2);
    return failed(ENOSPC);
}

size_t fwrite(const void *data, size_t size, size_t n, FILE *stream) {
    if (!is_open_below(fileno(stream)) || !fails())
        return NEXT(fwrite)(data, size, n, stream);
    errno = ENOSPC;
    return n / 2 ? NEXT(fwrite)(data, size, n / 2, stream) : 0;
}

static int flush(int descriptor, int (*next)(int)) {
    static atomic_bool was_slow;
    const char *seconds = getenv("DISK_SECONDS");
    if (!is_open_below(descriptor))
        return next(descriptor);
    if (seconds && !atomic_exchange(&was_slow, true))
        sleep((unsigned)atoi(seconds));
    return fails() ? failed(EIO) : next(descriptor);
}

int fsync(int descriptor) {
    return flush(descriptor, NEXT(fsync));
}

int fdatasync(int descriptor) {
    return flush(descriptor, NEXT(fdatasync));
}

int rename(const char *from, const char *to) {
    if (is_below(from) && (keeps(from) || fails()))
        return failed(EACCES);
    return NEXT(rename)(from, to);
}

int unlink(const char *path) {
    return is_below(path) && fails() ? failed(EACCES) : NEXT(unlink)(path);
}

int unlinkat(int folder, const char *path, int flags) {
    if ((is_below(path) || (folder >= 0 && is_open_below(folder))) && fails())
        return failed(EACCES);
    return NEXT(unlinkat)(folder, path, flags);
}

int open(const char *path, int flags, ...) {
    const char *pruned = getenv("DISK_PRUNES"), *name = strstr(path, "/manifest.json");
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    if (pruned && name && (size_t)(name - path) >= strlen(pruned) &&
        strncmp(name - strlen(pruned), pruned, strlen(pruned)) == 0) {
        char from[PATH_MAX], to[PATH_MAX];
        snprintf(from, sizeof from, "%.*s", (int)(name - path), path);
        snprintf(to, sizeof to, "%.*s/.tmp-removed-%s", (int)(strrchr(from, '/') - from), from, pruned);
        NEXT(rename)(from, to);
    }
    return NEXT(open)(path, flags, mode);
}
