// Host memory that this process can still allocate: what the system has free, within the limits of its
// control groups (containers, batch systems). Linux overcommits, so a large malloc succeeds and the process
// is killed later, when it touches the memory. Check here before large allocations.
#ifndef ZERO_BASE_MEMORY_H
#define ZERO_BASE_MEMORY_H

#include <stdint.h>

// Each is UINT64_MAX when there is no limit, or the system does not report it.
uint64_t memory_available_bytes(void);
uint64_t memory_available_to_each(int n_processes); // of as many on this machine, with the same limits
uint64_t memory_available_on_machine(void);         // shared by all processes of the machine or control group
uint64_t memory_address_space_left(void);           // of this process, below the limit of ulimit -v
// For tests: reads from these folders instead of /proc and /sys/fs/cgroup.
uint64_t memory_available_in(const char *proc, const char *groups);

#endif
