// Time in seconds: monotonic since an arbitrary start, and wall-clock since 1970.
#ifndef ZERO_BASE_CLOCK_H
#define ZERO_BASE_CLOCK_H

#include <time.h>

static inline double clock_monotonic_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline double clock_wall_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
