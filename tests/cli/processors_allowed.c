// Preloaded by tests/cli/test_ranks.py: a machine of 64 CPUs. PROCESSORS_ALLOWED is "N EACH": a rank may use
// N of them, from CPU rank * EACH on, so that all ranks have the same ones where EACH is 0.
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

long __sysconf(int name);

long sysconf(int name) {
    return name == _SC_NPROCESSORS_ONLN ? 64 : __sysconf(name);
}

int sched_getaffinity(pid_t process, size_t bytes, cpu_set_t *set) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *allowed = getenv("PROCESSORS_ALLOWED");
    int n = 64, each = 0;
    (void)process;
    if (allowed)
        sscanf(allowed, "%d %d", &n, &each);
    memset(set, 0, bytes);
    for (int i = 0; i < n; i++)
        CPU_SET_S((size_t)((rank ? atoi(rank) : 0) * each + i), bytes, set);
    return 0;
}
