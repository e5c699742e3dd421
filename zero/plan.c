// Host regions of a host device share its allocator; on other devices they are host arenas.
#include "zero/plan.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"

void plan_print(const struct region_table *table) {
    struct text line = {0};
    char bytes[32];
    for (int kind = 0; kind < N_REGION_KINDS; kind++) {
        size_t n = region_kind_bytes(table, (enum region_kind)kind);
        if (n)
            text_add(&line, "%s %s, ", region_kind_name((enum region_kind)kind),
                     text_bytes(bytes, sizeof bytes, (double)n));
    }
    log_info("memory: %stotal %s", line.data ? line.data : "",
             text_bytes(bytes, sizeof bytes, (double)region_total_bytes(table)));
    text_free(&line);
}

void memory_init(struct memory *memory, struct device *device) {
    *memory = (struct memory){.device = device};
    region_table_init(&memory->table);
}

// All kinds together: pages count as used only once they are touched, so asking kind by kind would not
// notice.
static enum status check_host_memory(const struct memory *memory) {
    uint64_t wanted = 0, available = memory_available_bytes();
    char needed[32], there[32];
    for (int kind = 0; kind < N_REGION_KINDS; kind++)
        wanted += memory->table.arena_bytes[kind][REGION_HOST];
    if (wanted <= available)
        return STATUS_OK;
    return FAIL(STATUS_FAILED,
                "the run needs %s of memory, and %s are available; use a smaller train.micro_batch_size, "
                "recompute=block or a smaller model",
                text_bytes(needed, sizeof needed, (double)wanted),
                text_bytes(there, sizeof there, (double)available));
}

enum status memory_allocate(struct memory *memory) {
    struct region_table *table = &memory->table;
    TRY(check_host_memory(memory));
    for (int kind = 0; kind < N_REGION_KINDS; kind++) {
        const char *name = region_kind_name((enum region_kind)kind);
        size_t on_device = table->arena_bytes[kind][REGION_DEVICE],
               on_host = table->arena_bytes[kind][REGION_HOST];
        TRY(memory->device->memory_new(memory->device, on_device, name, &memory->on_device[kind]));
        TRY(arena_init(&memory->on_host[kind], on_host, name));
        region_table_bind(table, (enum region_kind)kind, REGION_DEVICE, memory->on_device[kind]);
        region_table_bind(table, (enum region_kind)kind, REGION_HOST, memory->on_host[kind].data);
        memory->bytes += on_device + on_host;
    }
    return STATUS_OK;
}

void memory_free(struct memory *memory) {
    for (int kind = 0; kind < N_REGION_KINDS; kind++) {
        if (memory->on_device[kind])
            memory->device->memory_delete(memory->device, memory->on_device[kind],
                                          memory->table.arena_bytes[kind][REGION_DEVICE]);
        arena_free(&memory->on_host[kind]);
    }
    region_table_free(&memory->table);
    *memory = (struct memory){0};
}
