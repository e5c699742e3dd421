// Allocation that never returns NULL, for tables, names and texts. Linux overcommits: it grants memory that
// it may not have, and kills the process later when none is left. So callers cannot handle the failure
// anyway. If the system does refuse (ulimit -v, a size claimed by a broken file), these functions print one
// line with the number of bytes and exit with code 1. For buffers that grow with the model or the data, use
// arena_init (base/memory.h), which returns a status. Thread-safe. Free with free().
#ifndef ZERO_BASE_ALLOC_H
#define ZERO_BASE_ALLOC_H

#include <stddef.h>

void *allocate(size_t n, size_t size);                 // n x size bytes, zeroed; not NULL even for 0 bytes
void *reallocate(void *memory, size_t n, size_t size); // like realloc: new bytes are not zeroed
char *copy_string(const char *string);                 // returns NULL if string is NULL
char *copy_bytes(const void *bytes, size_t n);         // adds a NUL after the n bytes

// Makes room for n elements in `list`, whose `capacity` (int or size_t) doubles as needed.
#define RESERVE(list, n, capacity)                                                                           \
    do {                                                                                                     \
        if ((n) > (capacity)) {                                                                              \
            while ((n) > (capacity))                                                                         \
                (capacity) = (capacity) ? 2 * (capacity) : 8;                                                \
            (list) = reallocate((list), (size_t)(capacity), sizeof *(list));                                 \
        }                                                                                                    \
    } while (0)

#endif
