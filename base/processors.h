// The number of CPUs that this process may use, given its affinity mask and its container's quota, and how
// the processes of one machine divide its CPUs.
#ifndef ZERO_BASE_PROCESSORS_H
#define ZERO_BASE_PROCESSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

// The number of CPUs in this process's affinity mask, limited by the quota; at least 1.
int processors_usable(void);
// An affinity mask, one bit per CPU.
struct processors_mask {
    uint64_t words[16];
};
// Gets the affinity mask of the calling thread; all online CPUs if the system does not report it.
void processors_get_mask(struct processors_mask *mask);
// Divides the CPUs of one machine among n processes, within the quota that they share. A CPU that is in k of
// the masks counts 1/k for each of the k processes.
//   masks     (n) affinity masks of the processes
//   together  [out] number of CPUs that the n processes may use together; at least 1
// Returns the number of CPUs for process `index`; at least 1.
int processors_divide(const struct processors_mask *masks, int n, int index, int *together);
// The number of threads for a process that has n CPUs: OMP_NUM_THREADS if set, else n; at least 1.
int processors_threads(int n);
// Warns, once per process, if n_threads are more than processors_usable().
void processors_warn_of_threads(int n_threads);
// Warns if n_ranks ranks on this machine, with n_threads threads each, have more threads than the n CPUs that
// they may use together.
void processors_warn_of_ranks(int n_ranks, int n_threads, int n);
// Total size of the machine's last-level caches in bytes; 0 when unknown.
size_t processors_cache_bytes(void);

// The model's name, such as "AMD EPYC 9R14 96-Core Processor"; "unknown processor" if the system has none.
const char *processors_model(char *buffer, size_t size);

// Call this between two polls of a word that another thread writes. It frees the core's execution units for
// the other hardware threads of the core.
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
// Binds the calling thread to the CPUs of a node. If the system refuses, the thread stays unbound; that is
// not an error.
void numa_bind_thread(const struct numa *numa, int node);

#endif
