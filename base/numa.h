// NUMA placement. On machines with several memory nodes a CPU reaches its own node's memory fastest. Threads
// are bound to nodes, and Linux allocates each page on the node of the thread that first touches it. On
// machines with one node, binding does nothing. Relies on hwloc.
#ifndef ZERO_BASE_NUMA_H
#define ZERO_BASE_NUMA_H

#include <stdbool.h>

#include "base/status.h"

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
