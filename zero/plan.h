// From the table of regions to memory: what a run will use, said before it is taken, and then exactly taken.
#ifndef ZERO_ZERO_PLAN_H
#define ZERO_ZERO_PLAN_H

#include "base/arena.h"
#include "base/region.h"
#include "kernels/device.h"

struct memory {
    struct device *device;
    struct region_table table;
    void *on_device[N_REGION_KINDS]; // one allocation a kind
    struct arena on_host[N_REGION_KINDS];
    size_t bytes; // allocated, all of it
};

// Prints the table's bytes by kind.
void plan_print(const struct region_table *table);
void memory_init(struct memory *memory, struct device *device);
// Allocates what the table says, one piece a kind and place, and binds it. STATUS_FAILED names the kind that
// did not fit.
enum status memory_allocate(struct memory *memory) MUST_CHECK;
void memory_free(struct memory *memory);

#endif
