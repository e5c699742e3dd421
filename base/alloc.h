// Allocation that does not fail: tables, names, texts. Linux grants such memory and ends the process later
// when it is not there, so a caller could not do anything about it. Where the system refuses all the same
// (ulimit -v, a size that a broken file claims), these print one line with the bytes and end the process with
// exit code 1. Buffers that grow with the model or the data are arenas (base/memory.h), which fail as other
// things do. Any thread may call; free() frees.
#ifndef ZERO_BASE_ALLOC_H
#define ZERO_BASE_ALLOC_H

#include <stddef.h>

void *allocate(size_t n, size_t size);                 // n x size bytes, zeroed; never NULL, also for 0 bytes
void *reallocate(void *memory, size_t n, size_t size); // as realloc: what is new is not zeroed
char *copy_string(const char *string);                 // NULL for NULL
char *copy_bytes(const void *bytes, size_t n);         // with a NUL added

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
