// hwloc's topology tree, restricted to the CPUs that this process is allowed to use and bound to.
#include "base/numa.h"

#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct numa {
    hwloc_topology_t topology;
};

bool numa_has_nodes(void) {
    char nodes[64] = "";
    FILE *file = fopen("/sys/devices/system/node/online", "r");
    if (!file)
        return false;
    bool several = fgets(nodes, sizeof nodes, file) && strpbrk(nodes, ",-");
    fclose(file);
    return several;
}

enum status numa_open(const char *synthetic, struct numa **out) {
    struct numa *numa = calloc(1, sizeof *numa);
    *out = NULL;
    if (!numa || hwloc_topology_init(&numa->topology) != 0) {
        free(numa);
        return FAIL(STATUS_FAILED, "out of memory for the machine's topology");
    }
    bool described = !synthetic || hwloc_topology_set_synthetic(numa->topology, synthetic) == 0;
    if (!described || hwloc_topology_load(numa->topology) != 0) {
        numa_close(numa);
        return FAIL(STATUS_FAILED, "hwloc cannot read the machine's topology%s%s", synthetic ? ": " : "",
                    synthetic ? synthetic : "");
    }
    hwloc_bitmap_t bound = hwloc_bitmap_alloc();
    if (bound && !synthetic && hwloc_get_cpubind(numa->topology, bound, HWLOC_CPUBIND_THREAD) == 0)
        (void)hwloc_topology_restrict(numa->topology, bound, HWLOC_RESTRICT_FLAG_REMOVE_CPULESS);
    hwloc_bitmap_free(bound);
    *out = numa;
    return STATUS_OK;
}

void numa_close(struct numa *numa) {
    if (!numa)
        return;
    hwloc_topology_destroy(numa->topology);
    free(numa);
}

int numa_n_nodes(const struct numa *numa) {
    int n = hwloc_get_nbobjs_by_type(numa->topology, HWLOC_OBJ_NUMANODE);
    return n < 1 ? 1 : n;
}

int numa_n_processors(const struct numa *numa) {
    int n = hwloc_get_nbobjs_by_type(numa->topology, HWLOC_OBJ_PU);
    return n < 1 ? 1 : n;
}

int numa_node_of(const struct numa *numa, int slot, int n_slots) {
    int n_processors = numa_n_processors(numa), before = 0;
    int processor = (int)((long long)slot * n_processors / n_slots) % n_processors;
    for (int node = 0; node < numa_n_nodes(numa); node++) {
        hwloc_obj_t object = hwloc_get_obj_by_type(numa->topology, HWLOC_OBJ_NUMANODE, (unsigned)node);
        before += object ? hwloc_bitmap_weight(object->cpuset) : 0;
        if (processor < before)
            return node;
    }
    return 0;
}

void numa_bind_thread(const struct numa *numa, int node) {
    hwloc_obj_t object = hwloc_get_obj_by_type(numa->topology, HWLOC_OBJ_NUMANODE, (unsigned)node);
    if (object && !hwloc_bitmap_iszero(object->cpuset))
        (void)hwloc_set_cpubind(numa->topology, object->cpuset, HWLOC_CPUBIND_THREAD);
}
