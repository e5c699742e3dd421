// Host memory that this process can still allocate: what the system has free, within the limits of its
// control groups (containers, batch systems). Linux overcommits, so a large malloc succeeds and the process
// is killed later, when it touches the memory. Check here before large allocations.
#ifndef ZERO_BASE_MEMORY_H
#define ZERO_BASE_MEMORY_H

#include <stdint.h>

// UINT64_MAX when the system does not report it.
uint64_t memory_available_bytes(void);
// For tests: reads from these folders instead of /proc and /sys/fs/cgroup.
uint64_t memory_available_in(const char *proc, const char *groups);

#endif
