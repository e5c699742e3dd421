// Host memory in large pieces: mapped, zeroed, aligned to 2 MiB and advised to use huge pages (fewer TLB
// misses: +10 to 30 % of memory bandwidth where they are granted).
#ifndef ZERO_BASE_ARENA_H
#define ZERO_BASE_ARENA_H

#include <stddef.h>

#include "base/status.h"

struct arena {
    void *data;   // NULL when bytes is 0
    size_t bytes; // as asked for
    size_t mapped_bytes;
};

// `purpose` names it in the message when memory is short.
enum status arena_init(struct arena *arena, size_t bytes, const char *purpose) MUST_CHECK;
void arena_free(struct arena *arena);

#endif
