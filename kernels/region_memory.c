// Host regions live in arenas. Arenas that a GPU copies to or from are page-locked.
#include "kernels/region_memory.h"

#include "base/memory.h"
#include "base/text.h"

void region_memory_init(struct region_memory *memory, struct device *device) {
    *memory = (struct region_memory){.device = device};
    region_table_init(&memory->table);
}

size_t region_memory_bytes(const struct region_memory *memory, enum region_place place) {
    size_t bytes = 0;
    for (int kind = 0; kind < N_REGION_KINDS; kind++)
        bytes += memory->table.arena_bytes[kind][place];
    return bytes;
}

struct arena region_memory_arena(const struct region_memory *memory, enum region_kind kind,
                                 enum region_place place) {
    return (struct arena){.data = place == REGION_HOST ? memory->on_host[kind].data : memory->on_device[kind],
                          .bytes = memory->table.arena_bytes[kind][place]};
}

// Checks that the host memory of all kinds together is available, before any is allocated. Checking one kind
// at a time would not notice a shortage, since pages count as used only once they are touched.
static enum status check_host_memory(const struct region_memory *memory) {
    uint64_t wanted = region_memory_bytes(memory, REGION_HOST), available = memory_available_bytes();
    char needed[32], there[32];
    if (wanted <= available)
        return STATUS_OK;
    return FAIL(
        STATUS_FAILED,
        "this command needs %s of host memory, but only %s are available; use a smaller model or batch",
        text_bytes(needed, sizeof needed, (double)wanted),
        text_bytes(there, sizeof there, (double)available));
}

// The bytes of those regions of a kind that have memory: that are bound to an arena, or external.
static size_t count_bound(const struct region_table *table, enum region_kind kind) {
    size_t bytes = 0;
    for (int i = 0; i < table->n_regions; i++) {
        const struct region *region = &table->regions[i];
        if (region->kind == kind && (region->data || region->external))
            bytes += region->bytes;
    }
    return bytes;
}

static enum status pin(struct region_memory *memory, enum region_kind kind) {
    const struct arena *arena = &memory->on_host[kind];
    TRY(device_pin(memory->device, arena->data, arena->bytes));
    memory->pinned[kind] = arena->data;
    return STATUS_OK;
}

enum status region_memory_allocate(struct region_memory *memory) {
    struct region_table *table = &memory->table;
    size_t before, after;
    TRY(check_host_memory(memory));
    TRY(device_memory_available(memory->device, &before));
    for (int i = 0; i < N_REGION_KINDS; i++) {
        enum region_kind kind = (enum region_kind)i;
        const char *name = region_kind_name(kind);
        TRY(memory->device->memory_new(memory->device, table->arena_bytes[kind][REGION_DEVICE], name,
                                       &memory->on_device[kind]));
        TRY(arena_init(&memory->on_host[kind], table->arena_bytes[kind][REGION_HOST], name));
        TRY(pin(memory, kind));
        region_table_bind(table, kind, REGION_DEVICE, memory->on_device[kind]);
        region_table_bind(table, kind, REGION_HOST, memory->on_host[kind].data);
        memory->taken[kind] = count_bound(table, kind);
    }
    TRY(device_memory_available(memory->device, &after));
    memory->device_measured = before > after ? before - after : 0;
    return STATUS_OK;
}

void region_memory_free(struct region_memory *memory) {
    for (int kind = 0; kind < N_REGION_KINDS; kind++) {
        if (memory->on_device[kind])
            memory->device->memory_delete(memory->device, memory->on_device[kind],
                                          memory->table.arena_bytes[kind][REGION_DEVICE]);
        device_unpin(memory->device, memory->pinned[kind]);
        arena_free(&memory->on_host[kind]);
    }
    region_table_free(&memory->table);
    *memory = (struct region_memory){0};
}
