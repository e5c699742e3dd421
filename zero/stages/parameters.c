// Slots: a fetch takes the smaller of the two that it fits, so that the largest two, as embeddings and a
// block, always find room side by side, whatever the order. Of two groups of a block that are held at once
// the first asked for is the larger or fits either slot. Every step asks in the same order and ends with all
// slots free: each fetch finds the same slot in every step.
#include "zero/stages/parameters.h"

#include <assert.h>
#include <stdlib.h>

#include "model/param_overlap.h"

// ---- laying out

static bool persists(const struct parameters *parameters, const struct param *param) {
    return param->elements < parameters->options->persistence_threshold;
}

// Small tensors stand one after another; a fetch of nothing else stands there as it is, padding and all.
static size_t choose_persistent(struct parameters *parameters) {
    const struct params *params = parameters->params;
    size_t end = 0;
    for (int i = 0; i < params->n_params; i++) {
        const struct param *param = &params->params[i];
        bool stays = persists(parameters, param);
        parameters->persistent_offset[i] = stays ? end : NOT_PERSISTENT;
        if (stays)
            end += (param->elements + PARAM_ALIGNMENT - 1) / PARAM_ALIGNMENT * PARAM_ALIGNMENT;
    }
    return end;
}

static void list_fetches(struct parameters *parameters) {
    const struct params *params = parameters->params;
    int n = 0;
    for (int unit = 0; unit < params->n_units; unit++) {
        parameters->first_fetch[unit] = n;
        for (int i = 0; i < stage_n_ranges(parameters->options, params, unit); i++) {
            struct fetch *fetch = &parameters->fetches[n++];
            *fetch = (struct fetch){
                .unit = unit, .range = stage_range(parameters->options, params, unit, i), .persists = true};
            for (int k = 0; k < fetch->range.n_params; k++)
                fetch->persists =
                    fetch->persists && persists(parameters, &params->params[fetch->range.first_param + k]);
        }
    }
    parameters->first_fetch[params->n_units] = n;
}

// The owners' places are in what each has of the unit, so that units that are alike have the same calls: with
// thousands of ranks a list has thousands of pieces.
static enum status build_fetch_buckets(struct parameters *parameters, struct fetch *fetch) {
    struct buffer_layout there = BUFFER_AT(0 - fetch->range.begin);
    struct buffer_layout from = parameters->options->offload_param ? there : BUFFER_UNIT_SHARD;
    fetch->buckets = &fetch->own_buckets;
    buckets_init(&fetch->own_buckets, parameters->options->allgather_bucket);
    for (int i = fetch->range.first_param; i < fetch->range.first_param + fetch->range.n_params; i++) {
        const struct param *param = &parameters->params->params[i];
        if (parameters->persistent_offset[i] == NOT_PERSISTENT)
            TRY(buckets_add(&fetch->own_buckets, parameters->partition, fetch->unit, param->offset,
                            param->offset + param->elements, from, there));
    }
    return buckets_finish(&fetch->own_buckets);
}

static enum status build_all_fetch_buckets(struct parameters *parameters) {
    const struct params *params = parameters->params;
    for (int unit = 0; unit < params->n_units; unit++) {
        bool repeats = partition_repeats(parameters->partition, params, unit);
        int first = parameters->first_fetch[unit], end = parameters->first_fetch[unit + 1];
        for (int f = first; f < end; f++) {
            if (repeats)
                parameters->fetches[f].buckets = parameters->fetches[f - (end - first)].buckets;
            else
                TRY(build_fetch_buckets(parameters, &parameters->fetches[f]));
        }
    }
    return STATUS_OK;
}

static enum status build_persistent_buckets(struct parameters *parameters) {
    const struct params *params = parameters->params;
    for (int i = 0; i < params->n_params; i++) {
        const struct param *param = &params->params[i];
        size_t offset = parameters->persistent_offset[i];
        struct buffer_layout to = BUFFER_AT(offset - param->offset);
        if (offset != NOT_PERSISTENT)
            TRY(buckets_add(&parameters->update_buckets, parameters->partition, param->unit, param->offset,
                            param->offset + param->elements,
                            parameters->options->offload_param ? to : BUFFER_SHARD, to));
    }
    return STATUS_OK;
}

enum status parameters_build_buckets(struct parameters *parameters) {
    const struct params *params = parameters->params;
    const struct stage_options *options = parameters->options;
    buckets_init(&parameters->update_buckets, options->allgather_bucket);
    for (int unit = 0; (options->stage == 1 || options->stage == 2) && unit < params->n_units; unit++) {
        struct buffer_layout here = BUFFER_AT(params->units[unit].offset);
        TRY(buckets_add(&parameters->update_buckets, parameters->partition, unit, 0,
                        params->units[unit].elements, here, here));
    }
    if (!parameters_has_all(parameters)) {
        TRY(build_persistent_buckets(parameters));
        TRY(build_all_fetch_buckets(parameters));
    }
    return buckets_finish(&parameters->update_buckets);
}

static enum status add_slots(struct parameters *parameters, struct region_table *table) {
    int final = parameters->params->n_units - 1;
    size_t sizes[N_SLOTS] = {0};
    for (int f = 0; f < parameters->first_fetch[final + 1]; f++) {
        const struct fetch *fetch = &parameters->fetches[f];
        size_t n = fetch->persists ? 0 : fetch->range.end - fetch->range.begin;
        if (fetch->unit == final)
            sizes[2] = n;
        else if (n > sizes[0]) {
            sizes[1] = sizes[0];
            sizes[0] = n;
        } else if (n > sizes[1])
            sizes[1] = n;
    }
    for (int i = 0; i < N_SLOTS; i++) {
        parameters->slots[i] = (struct slot){.elements = sizes[i], .fetch = -1};
        TRY(region_add(table, REGION_COMMUNICATION, parameters->device->place, parameters->type, sizes[i],
                       &parameters->slots[i].region, "params of a unit (%d)", i));
    }
    return STATUS_OK;
}

static enum status init_stage3(struct parameters *parameters, struct region_table *table) {
    const struct params *params = parameters->params;
    size_t n_units = (size_t)params->n_units;
    parameters->persistent_offset = calloc((size_t)params->n_params, sizeof *parameters->persistent_offset);
    parameters->fetches = calloc(n_units * N_BLOCK_GROUPS, sizeof *parameters->fetches);
    parameters->first_fetch = calloc(n_units + 1, sizeof *parameters->first_fetch);
    if (!parameters->persistent_offset || !parameters->fetches || !parameters->first_fetch)
        return FAIL(STATUS_FAILED, "out of memory for the bookkeeping of %d tensors", params->n_params);
    TRY(region_add(table, REGION_PARAMS, parameters->device->place, parameters->type,
                   choose_persistent(parameters), &parameters->persistent_region, "persistent params"));
    list_fetches(parameters);
    return add_slots(parameters, table);
}

// Before anything is laid out, and where nothing will be: whether the lists would be too long.
static enum status check_calls(const struct parameters *parameters) {
    const struct params *params = parameters->params;
    const struct stage_options *options = parameters->options;
    if (options->stage == 1 || options->stage == 2)
        return buckets_check(params->n_elements, options->allgather_bucket);
    for (int unit = 0; options->stage == 3 && unit < params->n_units; unit++)
        TRY(buckets_check(params->units[unit].elements, options->allgather_bucket));
    return STATUS_OK;
}

enum status parameters_init(struct parameters *parameters, const struct params *params,
                            const struct stage_options *options, const struct partition *partition,
                            const struct stage_spans *owned, size_t shard_elements, enum dtype type,
                            struct offload *offload, struct device *device, struct region_table *table) {
    *parameters = (struct parameters){.params = params,
                                      .options = options,
                                      .partition = partition,
                                      .owned = owned,
                                      .device = device,
                                      .type = type,
                                      .offload = offload,
                                      .ahead = -1};
    bool whole = parameters_has_all(parameters);
    if (!options->offload_param)
        TRY(region_add(table, REGION_PARAMS, device->place, type, whole ? params->n_elements : shard_elements,
                       &parameters->stored_region, whole ? "params" : "params of the shard"));
    TRY(check_calls(parameters));
    return whole ? STATUS_OK : init_stage3(parameters, table);
}

enum status parameters_bind(struct parameters *parameters, const struct region_table *table,
                            struct comm *comm) {
    parameters->comm = comm;
    if (!parameters->options->offload_param)
        parameters->stored = region_data(table, parameters->stored_region);
    TRY(parameters_build_buckets(parameters));
    if (parameters_has_all(parameters))
        return STATUS_OK;
    parameters->persistent = region_data(table, parameters->persistent_region);
    for (int i = 0; i < N_SLOTS; i++) {
        parameters->slots[i].data = region_data(table, parameters->slots[i].region);
        TRY(event_init(&parameters->slots[i].loaded, parameters->device));
    }
    return STATUS_OK;
}

void parameters_set_shard(struct parameters *parameters, void *shard) {
    parameters->stored = shard;
}

void parameters_free(struct parameters *parameters) {
    buckets_free(&parameters->update_buckets);
    for (int i = 0; i < N_SLOTS; i++)
        event_free(&parameters->slots[i].loaded);
    int n_fetches = parameters->first_fetch ? parameters->first_fetch[parameters->params->n_units] : 0;
    for (int f = 0; f < n_fetches; f++)
        buckets_free(&parameters->fetches[f].own_buckets);
    free(parameters->fetches);
    free(parameters->first_fetch);
    free(parameters->persistent_offset);
    *parameters = (struct parameters){0};
}

// Also of an element that only what is added to the base later makes one of its memory: 0 - n is n before it.
static void *at(const struct parameters *parameters, const void *base, size_t element) {
    return (void *)((uintptr_t)base + element * dtype_size(parameters->type));
}

void *parameters_at(const struct parameters *parameters, const struct stage_span *span) {
    return at(parameters, parameters->stored, stage_span_offset(span, parameters_has_all(parameters)));
}

// ---- stage 3: fetches come and go

static struct slot *slot_of(struct parameters *parameters, int fetch) {
    for (int i = 0; i < N_SLOTS; i++)
        if (parameters->slots[i].fetch == fetch)
            return &parameters->slots[i];
    return NULL;
}

static struct slot *free_slot(struct parameters *parameters, const struct fetch *fetch) {
    if (fetch->unit == parameters->params->n_units - 1)
        return parameters->slots[2].fetch < 0 ? &parameters->slots[2] : NULL;
    for (int i = 1; i >= 0; i--)
        if (parameters->slots[i].fetch < 0 &&
            parameters->slots[i].elements >= fetch->range.end - fetch->range.begin)
            return &parameters->slots[i];
    return NULL;
}

// Copies this rank's elements of tensors of a unit, those that persist or those that do not, from the host to
// where they belong: at base + element of the unit, or where persistent tensors stand.
static enum status load_tensors(struct parameters *parameters, struct stream *stream, int unit,
                                struct param_range range, bool persistent, void *base) {
    const struct stage_spans *owned = parameters->owned;
    for (int k = owned->first[unit]; k < owned->first[unit + 1]; k++) {
        const struct stage_span *span = &owned->spans[k];
        size_t first = span->begin > range.begin ? span->begin : range.begin;
        size_t last = span->end < range.end ? span->end : range.end;
        for (struct param_overlap it = {0};
             params_next_overlap(parameters->params, unit, first, last, &it);) {
            size_t offset = parameters->persistent_offset[it.param];
            if ((offset != NOT_PERSISTENT) != persistent)
                continue;
            size_t to =
                persistent ? offset + (it.begin - parameters->params->params[it.param].offset) : it.begin;
            TRY(parameters->device->copy(
                stream, at(parameters, base, to),
                at(parameters, parameters->stored, span->shard_offset + (it.begin - span->begin)),
                (it.end - it.begin) * dtype_size(parameters->type)));
        }
    }
    return STATUS_OK;
}

// Where this rank's share of a unit stands in the shard.
static const void *unit_shard_at(const struct parameters *parameters, int unit) {
    const struct stage_spans *owned = parameters->owned;
    bool any = owned->first[unit] < owned->first[unit + 1];
    return at(parameters, parameters->stored, any ? owned->spans[owned->first[unit]].shard_offset : 0);
}

static enum status start_fetch(struct parameters *parameters, struct stream *stream, int index,
                               struct slot *slot) {
    const struct fetch *fetch = &parameters->fetches[index];
    const void *from = unit_shard_at(parameters, fetch->unit);
    slot->fetch = index;
    parameters->n_fetches++;
    if (parameters->options->offload_param) {
        TRY(offload_upload_stream(parameters->offload, stream, &stream));
        TRY(load_tensors(parameters, stream, fetch->unit, fetch->range, false,
                         at(parameters, slot->data, 0 - fetch->range.begin)));
        TRY(event_record(&slot->loaded, stream));
        from = slot->data;
    }
    for (int i = 0; i < fetch->buckets->n_calls; i++)
        TRY(comm_all_gather(parameters->comm, stream, &fetch->buckets->calls[i], from, slot->data,
                            parameters->type, &slot->work));
    return STATUS_OK;
}

// Waits for the gathered tensors and puts the persistent ones beside them.
static enum status finish_fetch(struct parameters *parameters, struct stream *stream, struct slot *slot) {
    const struct fetch *fetch = &parameters->fetches[slot->fetch];
    TRY(comm_wait(parameters->comm, stream, slot->work));
    TRY(event_wait(&slot->loaded, stream));
    for (int i = fetch->range.first_param; i < fetch->range.first_param + fetch->range.n_params; i++) {
        const struct param *param = &parameters->params->params[i];
        size_t offset = parameters->persistent_offset[i];
        if (offset != NOT_PERSISTENT)
            TRY(parameters->device->copy(stream,
                                         at(parameters, slot->data, param->offset - fetch->range.begin),
                                         at(parameters, parameters->persistent, offset),
                                         param->elements * dtype_size(parameters->type)));
    }
    return STATUS_OK;
}

// Fetches what comes next, if it is wanted and there is room by now.
static enum status fetch_ahead(struct parameters *parameters, struct stream *stream) {
    int ahead = parameters->ahead;
    if (ahead < 0 || parameters->fetches[ahead].persists || slot_of(parameters, ahead) ||
        !parameters->options->overlap || parameters->options->prefetch_bucket == 0)
        return STATUS_OK;
    struct slot *slot = free_slot(parameters, &parameters->fetches[ahead]);
    if (!slot)
        return STATUS_OK;
    parameters->n_ahead++;
    return start_fetch(parameters, stream, ahead, slot);
}

static bool by_group(const struct parameters *parameters, int unit) {
    return stage_by_group(parameters->options, parameters->params, unit);
}

static int fetch_of(const struct parameters *parameters, int unit, int group) {
    return parameters->first_fetch[unit] + (by_group(parameters, unit) ? group : 0);
}

// *out: from where the elements of the fetch's range are found as in the whole unit.
static enum status acquire_fetch(struct parameters *parameters, struct stream *stream, int index,
                                 struct gpt_next next, const void **out) {
    const struct fetch *wanted = &parameters->fetches[index];
    parameters->ahead = next.unit < 0 ? -1 : fetch_of(parameters, next.unit, next.group);
    if (wanted->persists) {
        size_t offset = parameters->persistent_offset[wanted->range.first_param];
        *out = at(parameters, parameters->persistent, offset - wanted->range.begin);
        return fetch_ahead(parameters, stream);
    }
    struct slot *slot = slot_of(parameters, index);
    if (!slot) {
        slot = free_slot(parameters, wanted);
        assert(slot); // at most two are held at once
        TRY(start_fetch(parameters, stream, index, slot));
    }
    slot->in_use = true;
    TRY(finish_fetch(parameters, stream, slot));
    *out = at(parameters, slot->data, 0 - wanted->range.begin);
    return fetch_ahead(parameters, stream);
}

static enum status release_fetch(struct parameters *parameters, struct stream *stream, int index) {
    struct slot *slot = slot_of(parameters, index);
    if (slot && slot->in_use) {
        slot->fetch = -1;
        slot->in_use = false;
    }
    return fetch_ahead(parameters, stream);
}

enum status parameters_acquire(struct parameters *parameters, struct stream *stream, int unit,
                               struct gpt_next next, const void **out) {
    *out = NULL;
    if (parameters_has_all(parameters)) {
        *out = at(parameters, parameters->stored, parameters->params->units[unit].offset);
        return STATUS_OK;
    }
    return by_group(parameters, unit)
               ? STATUS_OK
               : acquire_fetch(parameters, stream, fetch_of(parameters, unit, 0), next, out);
}

enum status parameters_release(struct parameters *parameters, struct stream *stream, int unit) {
    return parameters_has_all(parameters) || by_group(parameters, unit)
               ? STATUS_OK
               : release_fetch(parameters, stream, fetch_of(parameters, unit, 0));
}

enum status parameters_acquire_group(struct parameters *parameters, struct stream *stream, int unit,
                                     enum block_group group, struct gpt_next next, const void **out) {
    return by_group(parameters, unit)
               ? acquire_fetch(parameters, stream, fetch_of(parameters, unit, (int)group), next, out)
               : STATUS_OK;
}

enum status parameters_release_group(struct parameters *parameters, struct stream *stream, int unit,
                                     enum block_group group) {
    return by_group(parameters, unit)
               ? release_fetch(parameters, stream, fetch_of(parameters, unit, (int)group))
               : STATUS_OK;
}

enum status parameters_gather_updated(struct parameters *parameters, struct stream *stream) {
    comm_work work;
    void *to = parameters_has_all(parameters) ? parameters->stored : parameters->persistent;
    const void *from = parameters->stored;
    struct stream *in = stream;
    if (parameters->options->offload_param) {
        TRY(offload_upload_stream(parameters->offload, stream, &in));
        for (int unit = 0; unit < parameters->params->n_units; unit++)
            TRY(load_tensors(parameters, in, unit, params_unit(parameters->params, unit), true,
                             parameters->persistent));
        from = parameters->persistent;
    }
    for (int i = 0; i < parameters->update_buckets.n_calls; i++)
        TRY(comm_all_gather(parameters->comm, in, &parameters->update_buckets.calls[i], from, to,
                            parameters->type, &work));
    if (parameters->options->offload_param)
        TRY(offload_params_wait(parameters->offload, stream));
    return comm_wait_all(parameters->comm);
}
