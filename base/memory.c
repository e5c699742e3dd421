// Reads /proc/meminfo, the limits of control groups (versions 1 and 2) and RLIMIT_AS. A file that is missing
// or has another format counts as no limit.
#include "base/memory.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/text.h"

#define LONGEST_PATH 4096

// Returns the number after `key` at the start of a line, or `otherwise` if there is none. With an empty key,
// returns the number at the start of the file.
static uint64_t number_in(const char *path, const char *key, uint64_t otherwise) {
    FILE *file = fopen(path, "r");
    if (!file)
        return otherwise;
    char line[256];
    uint64_t found = otherwise, number;
    size_t n = strlen(key);
    while (found == otherwise && fgets(line, sizeof line, file))
        if (strncmp(line, key, n) == 0 && sscanf(line + n, "%" SCNu64, &number) == 1)
            found = number;
    fclose(file);
    return found;
}

// The bytes left below a control group's limit; UINT64_MAX if it has none. Page cache counts as free, because
// the kernel can drop it.
static uint64_t left_in_group(const char *group, const char *limit_name, const char *usage_name) {
    char path[LONGEST_PATH + 64];
    snprintf(path, sizeof path, "%s/%s", group, limit_name);
    uint64_t limit = number_in(path, "", UINT64_MAX);
    if (limit == UINT64_MAX)
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/%s", group, usage_name);
    uint64_t used = number_in(path, "", 0);
    snprintf(path, sizeof path, "%s/memory.stat", group);
    uint64_t droppable = number_in(path, "inactive_file ", 0) + number_in(path, "active_file ", 0);
    used = used > droppable ? used - droppable : 0;
    return limit > used ? limit - used : 0;
}

// Sets `group` to the path of this process's control group; "" if it is not known. /proc/self/cgroup has it
// in a line such as "0::/user.slice/job" (version 2) or "9:memory:/job" (version 1).
//   mark   what precedes the path: "0::" or ":memory:"
static void own_group(const char *proc, const char *mark, char *group, size_t size) {
    char path[LONGEST_PATH], line[LONGEST_PATH];
    snprintf(path, sizeof path, "%s/self/cgroup", proc);
    group[0] = '\0';
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    while (fgets(line, sizeof line, file)) {
        const char *found = strstr(line, mark), *path_in = found ? found + strlen(mark) : "";
        if (path_in[0] == '/')
            snprintf(group, size, "%.*s", (int)strcspn(path_in, "\n"), path_in);
    }
    fclose(file);
}

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

// The smallest number of bytes left in the process's own control group or any of its ancestors.
static uint64_t left_in_groups(const char *proc, const char *groups, const char *mark, const char *limit_name,
                               const char *usage_name) {
    char path[LONGEST_PATH], group[LONGEST_PATH];
    uint64_t least = UINT64_MAX;
    own_group(proc, mark, group, sizeof group);
    for (char *slash = group + strlen(group); slash; slash = strrchr(group, '/')) {
        *slash = '\0';
        snprintf(path, sizeof path, "%.2000s%.2000s", groups, group);
        least = smaller(least, left_in_group(path, limit_name, usage_name));
    }
    return least;
}

uint64_t memory_available_in(const char *proc, const char *groups) {
    char path[LONGEST_PATH];
    snprintf(path, sizeof path, "%s/meminfo", proc);
    uint64_t kib = number_in(path, "MemAvailable:", UINT64_MAX);
    uint64_t least = kib == UINT64_MAX ? UINT64_MAX : kib << 10;

    snprintf(path, sizeof path, "%.2000s/memory", groups);
    least = smaller(least,
                    left_in_groups(proc, path, ":memory:", "memory.limit_in_bytes", "memory.usage_in_bytes"));
    return smaller(least, left_in_groups(proc, groups, "0::", "memory.max", "memory.current"));
}

uint64_t memory_available_on_machine(void) {
    return memory_available_in("/proc", "/sys/fs/cgroup");
}

uint64_t memory_address_space_left(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    uint64_t used = number_in("/proc/self/statm", "", 0) * (uint64_t)sysconf(_SC_PAGESIZE);
    return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

uint64_t memory_available_to_each(int n_processes) {
    return smaller(memory_available_on_machine() / (uint64_t)n_processes, memory_address_space_left());
}

uint64_t memory_available_bytes(void) {
    return memory_available_to_each(1);
}

// ---- arenas

// An arena is an anonymous mmap. It maps more than needed, so that the start can be aligned to a huge page,
// and unmaps the rest.

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

enum status arena_init(struct arena *arena, size_t bytes, const char *purpose) {
    *arena = (struct arena){.bytes = bytes};
    if (bytes == 0)
        return STATUS_OK;
    char wanted[32], there[32];
    text_bytes(wanted, sizeof wanted, (double)bytes);
    uint64_t available = memory_available_bytes();
    if (bytes > available)
        return FAIL(STATUS_FAILED,
                    "%s: %s (%zu bytes) of memory are needed, %s are available; lower "
                    "train.micro_batch_size, set recompute=block or use a smaller model",
                    purpose, wanted, bytes, text_bytes(there, sizeof there, (double)available));
    size_t padded;
    if (__builtin_add_overflow(bytes, 2 * HUGE_PAGE_BYTES - 1, &padded))
        return FAIL(STATUS_FAILED, "%s: %s of memory are more than this machine can address", purpose,
                    wanted);
    size_t mapped = padded & ~(HUGE_PAGE_BYTES - 1);
    char *base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return FAIL(
            STATUS_FAILED,
            "%s: the system refused %s of memory; ./train plan CONFIG.json --fit finds settings that need "
            "less, and ulimit -v shows the limit of a process",
            purpose, wanted);
    // Unmap the memory before the first huge-page boundary and after the last page needed. The end of the
    // arena that does not fill a huge page uses small pages, so that no more memory is used than planned.
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t before = -(uintptr_t)base & (HUGE_PAGE_BYTES - 1);
    size_t kept = (bytes + page - 1) / page * page;
    if (before)
        munmap(base, before);
    if (mapped - before > kept)
        munmap(base + before + kept, mapped - before - kept);
    arena->data = base + before;
    arena->mapped_bytes = kept;
    // A failure is ignored: without huge pages the memory works too, only slower.
    (void)madvise(arena->data, kept, MADV_HUGEPAGE);
    return STATUS_OK;
}

void arena_free(struct arena *arena) {
    if (arena->data)
        munmap(arena->data, arena->mapped_bytes);
    *arena = (struct arena){0};
}
