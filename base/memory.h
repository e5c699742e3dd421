// How much memory this process can still get: what the system has, and what its control groups (containers,
// batch systems) allow. Linux promises memory that it does not have and then kills the process that uses it,
// so whoever needs much asks here first.
#ifndef ZERO_BASE_MEMORY_H
#define ZERO_BASE_MEMORY_H

#include <stdint.h>

// UINT64_MAX where the system does not say.
uint64_t memory_available_bytes(void);
// The same, with the folders that stand for /proc and /sys/fs/cgroup.
uint64_t memory_available_in(const char *proc, const char *groups);

#endif
