// Large zeroed allocations of host memory, aligned to 2 MiB and advised to use huge pages. Where the kernel
// grants huge pages, fewer TLB misses give 10 to 30 % more memory bandwidth.
#ifndef ZERO_BASE_ARENA_H
#define ZERO_BASE_ARENA_H

#include <stddef.h>

#include "base/status.h"

struct arena {
    void *data;   // NULL when bytes is 0
    size_t bytes; // as requested
    size_t mapped_bytes;
};

// Maps `bytes` of zeroed memory; 0 maps nothing. STATUS_FAILED when they exceed the available memory, or the
// system refuses. The message starts with `purpose` ("activations").
enum status arena_init(struct arena *arena, size_t bytes, const char *purpose) MUST_CHECK;
void arena_free(struct arena *arena);

#endif
