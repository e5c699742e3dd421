// Anonymous mmap. Maps more than needed, so that the start can be aligned to a huge page.
#include "base/arena.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"

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
    // Unmap what precedes the first huge page boundary and what follows the last page needed. The rest that
    // does not fill a huge page has small ones, so that no more memory is used than was planned.
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t before = -(uintptr_t)base & (HUGE_PAGE_BYTES - 1);
    size_t kept = (bytes + page - 1) / page * page;
    if (before)
        munmap(base, before);
    if (mapped - before > kept)
        munmap(base + before + kept, mapped - before - kept);
    arena->data = base + before;
    arena->mapped_bytes = kept;
    // Only advice: without huge pages the memory still works, just slower.
    (void)madvise(arena->data, kept, MADV_HUGEPAGE);
    return STATUS_OK;
}

void arena_free(struct arena *arena) {
    if (arena->data)
        munmap(arena->data, arena->mapped_bytes);
    *arena = (struct arena){0};
}
