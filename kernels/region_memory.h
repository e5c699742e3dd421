// Allocates the memory of a region table: exactly the bytes that the plan prints, except external regions,
// which their owners allocate. There is one allocation per kind of region and place (host or device). Host
// allocations are page-locked where the device has memory of its own. base/memory.h reports the free memory
// of the machine.
#ifndef ZERO_KERNELS_REGION_MEMORY_H
#define ZERO_KERNELS_REGION_MEMORY_H

#include "base/memory.h"
#include "base/region.h"
#include "kernels/device.h"

struct region_memory {
    struct device *device;
    struct region_table table;
    void *on_device[N_REGION_KINDS]; // one allocation per kind; NULL where it is empty
    struct arena on_host[N_REGION_KINDS];
    void *pinned[N_REGION_KINDS]; // page-locked memory of the arenas, to be unpinned by region_memory_free
    size_t device_measured;       // decrease of the device's free memory during region_memory_allocate
    // Bytes of the regions of each kind, external ones included, without padding between them.
    size_t taken[N_REGION_KINDS];
};

// Makes the table empty. Add regions to memory->table, then call region_memory_allocate. `device` must
// outlive `memory`.
void region_memory_init(struct region_memory *memory, struct device *device);
// Bytes that region_memory_allocate will allocate at a place, padding included.
size_t region_memory_bytes(const struct region_memory *memory, enum region_place place);
// The memory of all regions of one kind and place, external ones excepted, after region_memory_allocate. The
// caller must not free it; mapped_bytes is 0. If there are no such regions, data is NULL and bytes is 0.
struct arena region_memory_arena(const struct region_memory *memory, enum region_kind kind,
                                 enum region_place place);
// Allocates zeroed memory for all regions but external ones and binds them, so that region_data finds it.
// Errors: STATUS_FAILED when memory does not suffice. The message names the kind that did not fit, or the
// total if host memory is too small. region_memory_free releases what was allocated before the error.
enum status region_memory_allocate(struct region_memory *memory) MUST_CHECK;
// Frees the allocations and the table. Safe after a failed region_memory_allocate and on a zeroed struct.
void region_memory_free(struct region_memory *memory);

#endif
