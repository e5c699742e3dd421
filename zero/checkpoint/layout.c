// See zero/checkpoint/layout.h. Setup is linear in the number of spans and lookups are logarithmic, because
// 4,096 ranks and 256 layers have a million spans.
#include "zero/checkpoint/layout.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"

const char *checkpoint_kind_name(enum checkpoint_kind kind) {
    static const char *const names[N_CHECKPOINT_KINDS] = {"master", "m", "v", "average"};
    return names[kind];
}

bool checkpoint_layout_holds(const struct checkpoint_layout *layout, int kind) {
    return (kind >= 0 && kind < layout->kinds.n) || (kind == CHECKPOINT_AVERAGE && layout->kinds.has_average);
}

// ---- tensors without moment 1 or 2

// True if a tensor has values of this kind. CHECKPOINT_M is moment 1, CHECKPOINT_V moment 2. The other kinds
// of the layout exist for every tensor.
static bool is_stored(const struct checkpoint_layout *layout, int kind, int param) {
    return kind > CHECKPOINT_V || kind <= layout->kinds.n_moments[param];
}

// Returns where a tensor ends in its unit, including the padding after it.
static size_t tensor_end(const struct params *params, int param) {
    const struct param_unit *unit = &params->units[params->params[param].unit];
    const bool is_last = param + 1 == unit->first_param + unit->n_params;
    return is_last ? unit->elements : params->params[param + 1].offset;
}

// Returns the end of the elements from `begin` on, at most `end`, that are either all stored or all absent.
//   stored   [out] whether they are stored
static size_t alike_end(const struct checkpoint_layout *layout, int kind, int unit, size_t begin, size_t end,
                        bool *stored) {
    const struct params *params = layout->params;
    int param = params->units[unit].first_param;
    *stored = true;
    if (!layout->kinds.n_moments)
        return end;
    while (tensor_end(params, param) <= begin)
        param++;
    *stored = is_stored(layout, kind, param);
    while (tensor_end(params, param) < end && is_stored(layout, kind, param + 1) == *stored)
        param++;
    return tensor_end(params, param) < end ? tensor_end(params, param) : end;
}

// Returns how many of elements [begin, end) of a unit are stored.
static uint64_t count_stored(const struct checkpoint_layout *layout, int kind, int unit, size_t begin,
                             size_t end) {
    uint64_t n = 0;
    bool stored;
    if (!layout->kinds.n_moments)
        return end - begin;
    for (size_t at = begin, next; at < end; at = next) {
        next = alike_end(layout, kind, unit, at, end, &stored);
        n += stored ? next - at : 0;
    }
    return n;
}

// ---- spans

// Returns the number of kinds that each span stores.
static int kinds_of_span(const struct checkpoint_layout *layout) {
    return layout->kinds.n + layout->kinds.has_average;
}

// Returns the kind that is stored at `place` (from 0) in a span, in file order.
static int kind_at(const struct checkpoint_layout *layout, int place) {
    return place < layout->kinds.n ? place : CHECKPOINT_AVERAGE;
}

// Returns the bytes of the first n_places kinds of a span.
static uint64_t span_bytes(const struct checkpoint_layout *layout, int span, int n_places) {
    const struct partition_span *owned = &layout->partition->spans[span];
    uint64_t elements = 0;
    for (int place = 0; place < n_places; place++)
        elements += count_stored(layout, kind_at(layout, place), owned->unit, owned->begin, owned->end);
    return elements * sizeof(float);
}

void checkpoint_layout_init(struct checkpoint_layout *layout, const struct params *params,
                            const struct partition *partition, const struct checkpoint_kinds *kinds) {
    *layout = (struct checkpoint_layout){.params = params,
                                         .kinds = *kinds,
                                         .partition = partition,
                                         .offsets = allocate((size_t)partition->n_spans, sizeof(uint64_t)),
                                         .file_bytes = allocate((size_t)partition->world, sizeof(uint64_t))};
    for (int i = 0; i < partition->n_spans; i++) {
        const struct partition_span *owned = &partition->spans[i];
        uint64_t *bytes = &layout->file_bytes[owned->owner];
        layout->offsets[i] = *bytes;
        *bytes += span_bytes(layout, i, kinds_of_span(layout));
    }
}

void checkpoint_layout_make(struct checkpoint_layout *layout, const struct params *params,
                            enum partition_kind kind, int world, const struct checkpoint_kinds *kinds) {
    struct partition own;
    partition_init(&own, params, kind, world);
    checkpoint_layout_init(layout, params, &own, kinds);
    layout->own_partition = own;
    layout->partition = &layout->own_partition;
}

// Returns the longest span that begins at `element` of a partition's span and whose values are contiguous
// in a file, or all absent.
static struct checkpoint_span kind_span(const struct checkpoint_layout *layout, int span, int kind,
                                        size_t element) {
    const struct partition_span *owned = &layout->partition->spans[span];
    const int place = kind == CHECKPOINT_AVERAGE ? layout->kinds.n : kind;
    bool stored;
    struct checkpoint_span out = {.unit = owned->unit,
                                  .kind = (enum checkpoint_kind)kind,
                                  .begin = element,
                                  .end = alike_end(layout, kind, owned->unit, element, owned->end, &stored),
                                  .file = -1};
    if (!stored)
        return out;
    out.file = owned->owner;
    out.offset = layout->offsets[span] + span_bytes(layout, span, place) +
                 count_stored(layout, kind, owned->unit, owned->begin, element) * sizeof(float);
    return out;
}

// Moves to the next stored elements of the cursor's span and kind. Returns false if there are none.
static bool next_of_kind(const struct checkpoint_layout *layout, struct checkpoint_layout_cursor *cursor,
                         struct checkpoint_span *out) {
    const struct partition_span *owned = &layout->partition->spans[cursor->span];
    if (cursor->element < owned->begin)
        cursor->element = owned->begin;
    while (cursor->element < owned->end) {
        *out = kind_span(layout, cursor->span, kind_at(layout, cursor->kind), cursor->element);
        cursor->element = out->end;
        if (out->file >= 0)
            return true;
    }
    return false;
}

bool checkpoint_layout_next(const struct checkpoint_layout *layout, int rank,
                            struct checkpoint_layout_cursor *cursor, struct checkpoint_span *out) {
    const int n_kinds = kinds_of_span(layout), n_spans = layout->partition->n_spans;
    for (; cursor->span < n_spans; *cursor = (struct checkpoint_layout_cursor){.span = cursor->span + 1}) {
        if (rank >= 0 && layout->partition->spans[cursor->span].owner != rank)
            continue;
        for (; cursor->kind < n_kinds; cursor->kind++, cursor->element = 0)
            if (next_of_kind(layout, cursor, out))
                return true;
    }
    return false;
}

// Returns the unit's last span that begins at or before the element.
static int find_partition_span(const struct partition *partition, int unit, size_t element) {
    int low = partition->first_span[unit], high = partition->first_span[unit + 1];
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (partition->spans[middle].begin <= element)
            low = middle;
        else
            high = middle;
    }
    return low;
}

bool checkpoint_layout_find(const struct checkpoint_layout *layout, enum checkpoint_kind kind, int unit,
                            size_t element, struct checkpoint_span *out) {
    if (!checkpoint_layout_holds(layout, (int)kind) || element >= layout->params->units[unit].elements)
        return false;
    *out = kind_span(layout, find_partition_span(layout->partition, unit, element), (int)kind, element);
    out->offset += (element - out->begin) * sizeof(float);
    out->begin = element;
    return true;
}

void checkpoint_layout_free(struct checkpoint_layout *layout) {
    partition_free(&layout->own_partition);
    free(layout->offsets);
    free(layout->file_bytes);
    *layout = (struct checkpoint_layout){0};
}

#define DIGEST_SPANS 256 // number of spans hashed at a time

uint64_t checkpoint_partition_digest(const struct partition *partition) {
    struct {
        uint64_t unit, owner, begin, end;
    } block[DIGEST_SPANS];
    uint64_t digest = (uint64_t)partition->world;
    for (int i = 0; i < partition->n_spans; i += DIGEST_SPANS) {
        int n = partition->n_spans - i < DIGEST_SPANS ? partition->n_spans - i : DIGEST_SPANS;
        for (int k = 0; k < n; k++) {
            const struct partition_span *span = &partition->spans[i + k];
            block[k].unit = (uint64_t)span->unit;
            block[k].owner = (uint64_t)span->owner;
            block[k].begin = span->begin;
            block[k].end = span->end;
        }
        digest = XXH3_64bits_withSeed(block, (size_t)n * sizeof *block, digest);
    }
    return digest;
}
