// Allocates the memory of a region table: exactly the bytes that the plan prints. There is one allocation per
// kind of region and place (host or device). Host allocations are page-locked where the device has memory of
// its own. (Free memory of the machine: base/memory.h.)
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
    size_t taken[N_REGION_KINDS]; // bytes of the regions, without padding between them
};

// An empty table. Add regions to memory->table, then call region_memory_allocate. `device` must outlive the
// memory.
void region_memory_init(struct region_memory *memory, struct device *device);
// Bytes that region_memory_allocate will allocate at a place, padding included.
size_t region_memory_bytes(const struct region_memory *memory, enum region_place place);
// The memory of all regions of one kind and place, after region_memory_allocate. Empty if there are none;
// mapped_bytes is 0.
struct arena region_memory_arena(const struct region_memory *memory, enum region_kind kind,
                                 enum region_place place);
// Allocates zeroed memory for all regions and binds them, so that region_data finds them. Errors:
// STATUS_FAILED when host or device memory does not suffice; the message names the kind that did not fit, or
// the total when the host is short. region_memory_free releases what was allocated before the error.
enum status region_memory_allocate(struct region_memory *memory) MUST_CHECK;
// Frees the allocations and the table. Safe after a failed region_memory_allocate and on a zeroed struct.
void region_memory_free(struct region_memory *memory);

#endif
