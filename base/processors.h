// The number of CPUs that this process may use, given its affinity mask, its container's quota and the
// machine.
#ifndef ZERO_BASE_PROCESSORS_H
#define ZERO_BASE_PROCESSORS_H

#include <stddef.h>

// Each returns at least 1.
int processors_usable(void);     // in this process's affinity mask, within the quota
int processors_of_machine(void); // in the machine or container, shared by all its processes
// Threads per process when n_processes ranks run on this machine: OMP_NUM_THREADS if set; otherwise all CPUs
// that the launcher bound this rank to or, where the ranks compete for the same CPUs, their number divided by
// n_processes.
int processors_per_process(int n_processes);
// Warns, once per process, if n_threads are more than processors_usable().
void processors_warn_of_threads(int n_threads);
// Warns if n_ranks ranks on this machine, with as many threads each, are more than processors_of_machine().
void processors_warn_of_ranks(int n_ranks, int n_threads);
// Total size of the machine's last-level caches in bytes; 0 when unknown.
size_t processors_cache_bytes(void);

// To be called between two looks at a word that another thread writes: leaves the core's units to that thread
// where they share it.
static inline void processor_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
