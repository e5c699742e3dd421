// The number of CPUs that this process may use, given its affinity mask, its container's quota and the
// machine.
#ifndef ZERO_BASE_PROCESSORS_H
#define ZERO_BASE_PROCESSORS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

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

// ---- memory nodes

// NUMA placement. On machines with several memory nodes a CPU reaches its own node's memory fastest. Threads
// are bound to nodes, and Linux allocates each page on the node of the thread that first touches it. On
// machines with one node, binding does nothing. Relies on hwloc.

struct numa;

// Whether the machine has several nodes. Reads one small file, so it is cheap.
bool numa_has_nodes(void);
// Opens the topology of the CPUs that this process may use. Free with numa_close.
//   synthetic   NULL, or for tests a machine in hwloc's notation ("node:2 core:4 pu:1")
enum status numa_open(const char *synthetic, struct numa **out) MUST_CHECK;
void numa_close(struct numa *numa); // NULL is fine

int numa_n_nodes(const struct numa *numa);
int numa_n_processors(const struct numa *numa);
// The node (from 0) for thread `slot` of n_slots. Consecutive slots share a node, and each node gets threads
// in proportion to its CPUs. slot is taken modulo n_slots.
int numa_node_of(const struct numa *numa, int slot, int n_slots);
// Binds the calling thread to the set of a node's CPUs. If the system refuses, the thread stays unbound; that
// is not an error.
void numa_bind_thread(const struct numa *numa, int node);

#endif
