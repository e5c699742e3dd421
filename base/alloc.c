// Allocation that ends the process if the system refuses memory.
#include "base/alloc.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Returns `memory`, unless it is NULL: then prints the error and ends the process. Uses neither the log nor
// exit(), because both could allocate again.
static void *checked(void *memory, size_t n, size_t size) {
    if (memory)
        return memory;
    fprintf(stderr, "train: error: out of memory: cannot allocate %zu x %zu bytes\n", n, size);
    _exit(1);
}

void *allocate(size_t n, size_t size) {
    return checked(n && size ? calloc(n, size) : malloc(1), n, size);
}

void *reallocate(void *memory, size_t n, size_t size) {
    return checked(size && n > SIZE_MAX / size ? NULL : realloc(memory, n && size ? n * size : 1), n, size);
}

char *copy_string(const char *string) {
    return string ? copy_bytes(string, strlen(string)) : NULL;
}

char *copy_bytes(const void *bytes, size_t n) {
    char *copy = allocate(n + 1, 1);
    return n ? memcpy(copy, bytes, n) : copy;
}
