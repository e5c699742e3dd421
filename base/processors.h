// The processors that this process may use: what its affinity, its container's quota and the machine leave.
#ifndef ZERO_BASE_PROCESSORS_H
#define ZERO_BASE_PROCESSORS_H

#include <stddef.h>

// At least 1 each.
int processors_usable(void);
int processors_of_machine(void); // or of the container: what all its processes share
// For one of n processes alike on this machine: as many as it may use, or its share where they all may use
// the same ones.
int processors_share(int n_processes);
// Bytes that the machine's last caches hold together; 0 where it does not say.
size_t processors_cache_bytes(void);

#endif
