// Each kind of partition assigns spans to owners in its own way. Merging adjacent spans of one owner, and
// computing offsets in shards, are common to all.
#include "zero/partition/partition.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

static const char *const names[N_PARTITIONS] = {"even", "layer", "tensor"};

const char *partition_name(enum partition_kind kind) {
    return names[kind];
}

enum status partition_find(const char *name, enum partition_kind *kind) {
    for (int i = 0; i < N_PARTITIONS; i++)
        if (strcmp(name, names[i]) == 0) {
            *kind = (enum partition_kind)i;
            return STATUS_OK;
        }
    return FAIL(STATUS_INVALID, "unknown partition \"%.40s\"; expected even, layer or tensor", name);
}

// Adds a span. Spans must be added in the order of units and elements. A span that continues the previous one
// of the same owner is merged with it.
static void add_span(struct partition *partition, int unit, int owner, size_t begin, size_t end) {
    struct partition_span *last = partition->n_spans > 0 ? &partition->spans[partition->n_spans - 1] : NULL;
    if (begin == end)
        return;
    if (last && last->unit == unit && last->owner == owner && last->end == begin)
        last->end = end;
    else
        partition->spans[partition->n_spans++] = (struct partition_span){unit, owner, begin, end, 0, 0, 0};
}

static void assign_evenly(struct partition *partition, const struct params *params) {
    size_t world = (size_t)partition->world;
    for (int unit = 0; unit < params->n_units; unit++) {
        size_t aligned_blocks = params->units[unit].elements / PARAM_ALIGNMENT;
        for (size_t rank = 0; rank < world; rank++)
            add_span(partition, unit, (int)rank, aligned_blocks * rank / world * PARAM_ALIGNMENT,
                     aligned_blocks * (rank + 1) / world * PARAM_ALIGNMENT);
    }
}

// ---- assigning whole units or whole tensors to ranks

// A unit or a tensor, which gets a single owner.
struct partition_item {
    int unit, owner;
    size_t begin, end;
    int position; // index in the order of units and elements
};

static int compare_sizes(const void *a, const void *b) {
    const struct partition_item *x = a, *y = b;
    size_t of_x = x->end - x->begin, of_y = y->end - y->begin;
    if (of_x != of_y)
        return of_x > of_y ? -1 : 1;
    return x->position - y->position;
}

static int compare_positions(const void *a, const void *b) {
    return ((const struct partition_item *)a)->position - ((const struct partition_item *)b)->position;
}

// Returns true if rank a comes before rank b in the heap of ranks: it owns fewer elements, or equally many
// and a < b. The root of the heap is the rank that gets the next item.
//   load   (world) number of elements that each rank owns so far
static bool lighter(const size_t *load, int a, int b) {
    return load[a] != load[b] ? load[a] < load[b] : a < b;
}

static void sink_root(int *heap, int n, const size_t *load) {
    for (int i = 0, child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && lighter(load, heap[child + 1], heap[child]))
            child++;
        if (!lighter(load, heap[child], heap[i]))
            return;
        int swap = heap[i];
        heap[i] = heap[child];
        heap[child] = swap;
    }
}

// Assigns items in descending size, each to the rank that owns the fewest elements so far ("longest
// processing time first"). The largest shard is at most 4/3 as large as in the best assignment (Graham,
// "Bounds on multiprocessing timing anomalies", 1969).
static void assign_items(struct partition *partition, struct partition_item *items, int n_items) {
    int world = partition->world;
    size_t *load = allocate((size_t)world, sizeof *load);
    int *heap = allocate((size_t)world, sizeof *heap);
    for (int rank = 0; rank < world; rank++)
        heap[rank] = rank;
    qsort(items, (size_t)n_items, sizeof *items, compare_sizes);
    for (int i = 0; i < n_items; i++) {
        items[i].owner = heap[0];
        load[heap[0]] += items[i].end - items[i].begin;
        sink_root(heap, world, load);
    }
    qsort(items, (size_t)n_items, sizeof *items, compare_positions);
    for (int i = 0; i < n_items; i++)
        add_span(partition, items[i].unit, items[i].owner, items[i].begin, items[i].end);
    free(load);
    free(heap);
}

static void assign_whole(struct partition *partition, const struct params *params, bool tensors) {
    int n = tensors ? params->n_params : params->n_units;
    struct partition_item *items = allocate((size_t)n, sizeof *items);
    for (int i = 0; i < n; i++) {
        int unit = tensors ? params->params[i].unit : i;
        const struct param_unit *u = &params->units[unit];
        bool first = !tensors || i == u->first_param,
             last = !tensors || i + 1 == u->first_param + u->n_params;
        // The padding after a tensor belongs to the tensor's owner.
        items[i] = (struct partition_item){.unit = unit,
                                           .begin = first ? 0 : params->params[i].offset,
                                           .end = last ? u->elements : params->params[i + 1].offset,
                                           .position = i};
    }
    assign_items(partition, items, n);
    free(items);
}

// ---- offsets in shards

// Sets the offsets of a unit's spans, by appending the spans to their owners' shards.
static void append_unit(struct partition *partition, int unit) {
    struct partition_span *begin = &partition->spans[partition->first_span[unit]];
    struct partition_span *end = &partition->spans[partition->first_span[unit + 1]];
    for (struct partition_span *span = begin; span < end; span++)
        span->unit_shard_offset = partition->rank_elements[span->owner];
    size_t in_unit = 0;
    for (struct partition_span *span = begin; span < end; in_unit += span->end - span->begin, span++) {
        span->unit_offset = in_unit;
        span->shard_offset = partition->rank_elements[span->owner];
        partition->rank_elements[span->owner] += span->end - span->begin;
    }
}

static void compute_offsets(struct partition *partition, int n_units) {
    int i = 0;
    for (int unit = 0; unit < n_units; unit++) {
        partition->first_span[unit] = i;
        while (i < partition->n_spans && partition->spans[i].unit == unit)
            i++;
        partition->first_span[unit + 1] = i;
        append_unit(partition, unit);
    }
}

static void allocate_spans(struct partition *partition, const struct params *params, enum partition_kind kind,
                           int world, size_t most) {
    *partition = (struct partition){.kind = kind, .world = world};
    partition->spans = allocate(most, sizeof *partition->spans);
    partition->first_span = allocate((size_t)params->n_units + 1, sizeof *partition->first_span);
    partition->rank_elements = allocate((size_t)world, sizeof *partition->rank_elements);
}

// Returns a partition with the same owners, whose spans leave out frozen tensors.
static struct partition *cut_around_frozen(const struct partition *partition, const struct params *params) {
    struct partition *trained = allocate(1, sizeof *trained);
    allocate_spans(trained, params, partition->kind, partition->world,
                   (size_t)partition->n_spans + (size_t)params->n_params);
    for (int i = 0; i < partition->n_spans; i++) {
        const struct partition_span *span = &partition->spans[i];
        const struct param_unit *unit = &params->units[span->unit];
        for (int k = unit->first_param; k < unit->first_param + unit->n_params; k++) {
            const struct param *param = &params->params[k];
            const size_t end = params_padded_end(params, k);
            if (!param->is_frozen && param->offset < span->end && end > span->begin)
                add_span(trained, span->unit, span->owner,
                         param->offset > span->begin ? param->offset : span->begin,
                         end < span->end ? end : span->end);
        }
    }
    compute_offsets(trained, params->n_units);
    return trained;
}

void partition_init(struct partition *partition, const struct params *params, enum partition_kind kind,
                    int world) {
    allocate_spans(partition, params, kind, world,
                   kind == PARTITION_EVEN ? (size_t)params->n_units * (size_t)world
                                          : (size_t)params->n_params);
    if (kind == PARTITION_EVEN)
        assign_evenly(partition, params);
    else
        assign_whole(partition, params, kind == PARTITION_TENSOR);
    compute_offsets(partition, params->n_units);
    if (params->n_trained < params->n_elements)
        partition->trained = cut_around_frozen(partition, params);
}

bool partition_repeats(const struct partition *partition, const struct params *params, int unit) {
    if (unit == 0 || !params_same_layout(params, unit - 1, unit))
        return false;
    int before = partition->first_span[unit - 1], first = partition->first_span[unit];
    int n = partition->first_span[unit + 1] - first;
    for (int i = 0; i < n && n == first - before; i++) {
        const struct partition_span *x = &partition->spans[before + i], *y = &partition->spans[first + i];
        if (x->owner != y->owner || x->begin != y->begin || x->end != y->end)
            return false;
    }
    return n == first - before;
}

void partition_free(struct partition *partition) {
    free(partition->spans);
    free(partition->first_span);
    free(partition->rank_elements);
    if (partition->trained)
        partition_free(partition->trained);
    free(partition->trained);
    *partition = (struct partition){0};
}
