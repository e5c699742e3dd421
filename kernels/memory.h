// From the table of regions to memory: exactly what the plan said is taken, one piece a kind and place.
#ifndef ZERO_KERNELS_MEMORY_H
#define ZERO_KERNELS_MEMORY_H

#include "base/arena.h"
#include "base/region.h"
#include "kernels/device.h"

struct memory {
    struct device *device;
    struct region_table table;
    void *on_device[N_REGION_KINDS]; // one allocation a kind
    struct arena on_host[N_REGION_KINDS];
    void *pinned[N_REGION_KINDS]; // of on_host, what the device copies reach directly
    size_t device_measured;       // by which the device's free memory shrank
    size_t taken[N_REGION_KINDS]; // bytes that were allocated, padding left out
};

void memory_init(struct memory *memory, struct device *device);
// Bytes that memory_allocate will take at a place.
size_t memory_bytes(const struct memory *memory, enum region_place place);
// Allocates what the table says and binds it. STATUS_FAILED names the kind that did not fit.
enum status memory_allocate(struct memory *memory) MUST_CHECK;
void memory_free(struct memory *memory);

#endif
