// The table holds rows, not buffers. Sizes are summed as regions are added, so a plan needs memory for the
// table only.
#include "base/region.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"

void region_table_init(struct region_table *table) {
    *table = (struct region_table){0};
}

void region_table_free(struct region_table *table) {
    free(table->regions);
    *table = (struct region_table){0};
}

enum status region_add(struct region_table *table, enum region_kind kind, enum region_place place,
                       enum dtype type, size_t elements, int *index, const char *name_format, ...) {
    RESERVE(table->regions, table->n_regions + 1, table->capacity);
    struct region *region = &table->regions[table->n_regions];
    *region = (struct region){.kind = kind, .place = place, .type = type, .elements = elements};
    va_list arguments;
    va_start(arguments, name_format);
    vsnprintf(region->name, sizeof region->name, name_format, arguments);
    va_end(arguments);

    size_t *arena = &table->arena_bytes[kind][place];
    size_t padded, end;
    if (__builtin_mul_overflow(elements, dtype_size(type), &region->bytes) ||
        __builtin_add_overflow(region->bytes, (size_t)REGION_ALIGNMENT - 1, &padded) ||
        __builtin_add_overflow(*arena, padded & ~(size_t)(REGION_ALIGNMENT - 1), &end))
        return FAIL(STATUS_INVALID,
                    "memory region %s of %zu elements is larger than this machine can address", region->name,
                    elements);
    region->offset = *arena;
    *arena = end;
    *index = table->n_regions++;
    return STATUS_OK;
}

enum status region_add_external(struct region_table *table, enum region_kind kind, enum region_place place,
                                size_t bytes, const char *name) {
    int index;
    size_t before = table->arena_bytes[kind][place];
    TRY(region_add(table, kind, place, DTYPE_U8, bytes, &index, "%s", name));
    table->regions[index].external = true;
    table->arena_bytes[kind][place] = before;
    return STATUS_OK;
}

void region_table_bind(struct region_table *table, enum region_kind kind, enum region_place place,
                       void *base) {
    for (int i = 0; i < table->n_regions; i++) {
        struct region *region = &table->regions[i];
        if (region->kind == kind && region->place == place && !region->external)
            region->data = base ? (char *)base + region->offset : NULL; // base is NULL for an empty arena
    }
}

const char *region_kind_name(enum region_kind kind) {
#define REGION_NAME(constant, name) name,
    static const char *const names[N_REGION_KINDS] = {REGION_KINDS(REGION_NAME)};
#undef REGION_NAME
    return names[kind];
}

void *region_data(const struct region_table *table, int index) {
    return table->regions[index].data;
}

size_t region_bytes(const struct region_table *table, enum region_kind kind, enum region_place place) {
    size_t bytes = 0;
    for (int i = 0; i < table->n_regions; i++)
        if (table->regions[i].kind == kind && table->regions[i].place == place)
            bytes += table->regions[i].bytes;
    return bytes;
}

size_t region_kind_bytes(const struct region_table *table, enum region_kind kind) {
    return region_bytes(table, kind, REGION_HOST) + region_bytes(table, kind, REGION_DEVICE);
}

size_t region_place_bytes(const struct region_table *table, enum region_place place) {
    size_t bytes = 0;
    for (int kind = 0; kind < N_REGION_KINDS; kind++)
        bytes += region_bytes(table, (enum region_kind)kind, place);
    return bytes;
}

size_t region_total_bytes(const struct region_table *table) {
    return region_place_bytes(table, REGION_HOST) + region_place_bytes(table, REGION_DEVICE);
}
