// CPUs from Linux's affinity mask and control groups; caches from hwloc's topology.
#include "base/processors.h"

#include <hwloc.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"

// The CPUs that a container's quota allows ("200000 100000" means 2), or 0 when there is no quota.
static int quota_processors(void) {
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (!file)
        return 0;
    double quota = 0, period = 0;
    int n_read = fscanf(file, "%lf %lf", &quota, &period);
    fclose(file);
    if (n_read != 2 || quota <= 0 || period <= 0)
        return 0;
    int processors = (int)(quota / period);
    return processors < 1 ? 1 : processors;
}

static int at_most(int processors, int limit) {
    return limit > 0 && limit < processors ? limit : processors;
}

int processors_usable(void) {
    int processors = (int)sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        processors = CPU_COUNT(&allowed);
    processors = at_most(processors, quota_processors());
    return processors < 1 ? 1 : processors;
}

int processors_of_machine(void) {
    int processors = at_most((int)sysconf(_SC_NPROCESSORS_ONLN), quota_processors());
    return processors < 1 ? 1 : processors;
}

void processors_warn_of_threads(int n_threads) {
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    const int usable = processors_usable();
    if (n_threads > usable && !atomic_flag_test_and_set(&warned))
        log_warning("%d threads are more than the %d processor%s that this process may use, which is slower; "
                    "lower run.threads or OMP_NUM_THREADS",
                    n_threads, usable, usable == 1 ? "" : "s");
}

void processors_warn_of_ranks(int n_ranks, int n_threads) {
    const int machine = processors_of_machine();
    if (n_ranks > 1 && n_ranks * n_threads > machine)
        log_warning(
            "%d ranks with %d thread%s each are more than the %d processor%s of this machine, which is "
            "slower; start fewer ranks, or lower run.threads",
            n_ranks, n_threads, n_threads == 1 ? "" : "s", machine, machine == 1 ? "" : "s");
}

// OMP_NUM_THREADS, which many launchers and users set for all their programs; of a list ("4,2"), the first. 0
// when it is not set. Anything else is ignored, with a warning.
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

int processors_per_process(int n_processes) {
    const int requested = requested_threads();
    if (requested > 0)
        return requested;
    int usable = processors_usable(), machine = processors_of_machine();
    // When the launcher bound each process to CPUs of its own, all of them together fit the machine.
    int share = usable * n_processes <= machine ? usable : machine / n_processes;
    return share < 1 ? 1 : share;
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
