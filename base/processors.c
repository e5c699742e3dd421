// CPUs from Linux's affinity mask and control groups; caches and memory nodes from hwloc's topology.
#include "base/processors.h"

#include <hwloc.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"

// Returns `processors`, clamped to at least 1 and at most `limit`. limit 0: no limit.
static int within(int processors, int limit) {
    processors = limit > 0 && limit < processors ? limit : processors;
    return processors < 1 ? 1 : processors;
}

// The number of CPUs that a container's quota allows: quota / period in microseconds ("200000 100000" means
// 2), rounded down, at least 1. 0 if there is no quota.
static int quota_processors(void) {
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (!file)
        return 0;
    double quota = 0, period = 0;
    int n_read = fscanf(file, "%lf %lf", &quota, &period);
    fclose(file);
    if (n_read != 2 || quota <= 0 || period <= 0)
        return 0;
    return within((int)(quota / period), 0);
}

void processors_get_mask(struct processors_mask *mask) {
    cpu_set_t allowed;
    // The call fails on machines with more CPUs than a cpu_set_t holds.
    const bool is_known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    *mask = (struct processors_mask){0};
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (is_known ? CPU_ISSET(cpu, &allowed) : cpu < online)
            mask->words[cpu / 64] |= (uint64_t)1 << cpu % 64;
}

int processors_divide(const struct processors_mask *masks, int n, int index, int *together) {
    const int quota = quota_processors();
    double mine = 0;
    *together = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        int sharing = 0;
        for (int i = 0; i < n; i++)
            sharing += (int)(masks[i].words[cpu / 64] >> cpu % 64 & 1);
        *together += sharing > 0;
        if (masks[index].words[cpu / 64] >> cpu % 64 & 1)
            mine += 1.0 / sharing;
    }
    *together = within(*together, quota);
    return within((int)(mine + 1e-6), quota > 0 ? within(quota / n, 0) : 0);
}

int processors_usable(void) {
    struct processors_mask mask;
    int together;
    processors_get_mask(&mask);
    return processors_divide(&mask, 1, 0, &together);
}

void processors_warn_of_threads(int n_threads) {
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    const int usable = processors_usable();
    if (n_threads > usable && !atomic_flag_test_and_set(&warned))
        log_warning("%d threads are more than the %d processor%s that this process may use, which is slower; "
                    "lower run.threads or OMP_NUM_THREADS",
                    n_threads, usable, usable == 1 ? "" : "s");
}

void processors_warn_of_ranks(int n_ranks, int n_threads, int n) {
    if (n_ranks > 1 && n_ranks * n_threads > n)
        log_warning(
            "%d ranks with %d thread%s each are more than the %d processor%s that they may use on this "
            "machine, which is slower; start fewer ranks, or lower run.threads",
            n_ranks, n_threads, n_threads == 1 ? "" : "s", n, n == 1 ? "" : "s");
}

// Returns the number in OMP_NUM_THREADS, which many launchers and users set for all programs; of a list
// ("4,2") the first number. Returns 0 if it is not set. If it is invalid, warns once and returns 0.
static int requested_threads(void) {
    enum { MOST_THREADS = 4096 };
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    const char *text = getenv("OMP_NUM_THREADS");
    char *end = NULL;
    long n = text ? strtol(text, &end, 10) : 0;
    if (!text || !*text)
        return 0;
    if (n > 0 && n <= MOST_THREADS && (*end == '\0' || *end == ',')) {
        processors_warn_of_threads((int)n);
        return (int)n;
    }
    if (!atomic_flag_test_and_set(&warned))
        log_warning("OMP_NUM_THREADS is \"%.40s\", expected a number of threads from 1 to %d; it is ignored",
                    text, MOST_THREADS);
    return 0;
}

int processors_threads(int n) {
    const int requested = requested_threads();
    return requested > 0 ? requested : within(n, 0);
}

static size_t caches_bytes(hwloc_topology_t topology, hwloc_obj_type_t type) {
    size_t bytes = 0;
    for (hwloc_obj_t cache = NULL; (cache = hwloc_get_next_obj_by_type(topology, type, cache));)
        bytes += (size_t)cache->attr->cache.size;
    return bytes;
}

size_t processors_cache_bytes(void) {
    hwloc_topology_t topology;
    size_t bytes = 0;
    if (hwloc_topology_init(&topology) != 0)
        return 0;
    if (hwloc_topology_load(topology) == 0) {
        bytes = caches_bytes(topology, HWLOC_OBJ_L3CACHE);
        bytes = bytes > 0 ? bytes : caches_bytes(topology, HWLOC_OBJ_L2CACHE);
    }
    hwloc_topology_destroy(topology);
    return bytes;
}

const char *processors_model(char *buffer, size_t size) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256], name[128];
    snprintf(buffer, size, "unknown processor");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "model name : %127[^\n]", name) == 1) {
            snprintf(buffer, size, "%s", name);
            break;
        }
    if (file)
        fclose(file);
    return buffer;
}

// ---- memory nodes

// hwloc's topology of the machine, restricted to the CPUs that this process may use and is bound to.

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
    struct numa *numa = allocate(1, sizeof *numa);
    *out = NULL;
    if (hwloc_topology_init(&numa->topology) != 0) {
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
