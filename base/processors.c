// Linux's affinity mask and control groups.
#include "base/processors.h"

#include <sched.h>
#include <stdio.h>
#include <unistd.h>

// The processors that a container's quota amounts to ("200000 100000": two), or 0 when there is no quota.
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

int processors_share(int n_processes) {
    int usable = processors_usable(), machine = processors_of_machine();
    // A launcher may have given each process processors of its own; then they add up to no more than there
    // are.
    int share = usable * n_processes <= machine ? usable : machine / n_processes;
    return share < 1 ? 1 : share;
}
