// Memory nodes (NUMA): where a machine has several, a processor reaches its own node's memory faster than the
// others'. Threads are bound to nodes, and memory then stands where the thread that touches it first is
// bound. One node, as on most machines, needs none of this, and nothing is done there. By hwloc.
#ifndef ZERO_BASE_NUMA_H
#define ZERO_BASE_NUMA_H

#include <stdbool.h>

#include "base/status.h"

struct numa;

// Whether this process may use several nodes. Reads one file: cheap enough to ask at every start.
bool numa_has_nodes(void);
// The nodes of this process's processors, or of the machine that `synthetic` describes in hwloc's words
// ("node:2 core:4 pu:1", for tests), or NULL. Free with numa_close.
enum status numa_open(const char *synthetic, struct numa **out) MUST_CHECK;
void numa_close(struct numa *numa); // NULL is fine

int numa_n_nodes(const struct numa *numa);
int numa_n_processors(const struct numa *numa);
// The node, from 0, for thread `slot` of n_slots: neighbours share a node, and nodes get threads in
// proportion to their processors. Slots beyond n_slots begin again.
int numa_node_of(const struct numa *numa, int slot, int n_slots);
// Binds the calling thread to a node's processors: any of them, as the system likes. A system that refuses is
// left alone: the thread then runs where it did.
void numa_bind_thread(const struct numa *numa, int node);

#endif
