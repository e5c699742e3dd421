// Slots: a unit takes the smaller of the two that it fits, so that embeddings and a block, the largest two
// units, always find room side by side, whatever the order.
#include "zero/parameters.h"

#include <assert.h>
#include <stdlib.h>

// ---- laying out

// Small tensors stand one after another; a unit of nothing else stands there as it is, padding and all.
static size_t choose_persistent(struct parameters *parameters) {
    const struct params *params = parameters->params;
    size_t end = 0;
    for (int unit = 0; unit < params->n_units; unit++) {
        const struct param_unit *u = &params->units[unit];
        bool all = true;
        for (int i = u->first_param; i < u->first_param + u->n_params; i++)
            all = all && params->params[i].elements < parameters->options->persistence_threshold;
        for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
            const struct param *param = &params->params[i];
            bool stays = param->elements < parameters->options->persistence_threshold;
            parameters->persistent_offset[i] = stays ? end : NOT_PERSISTENT;
            if (stays)
                end += (param->elements + PARAM_ALIGNMENT - 1) / PARAM_ALIGNMENT * PARAM_ALIGNMENT;
        }
        parameters->unit_persists[unit] = all;
    }
    return end;
}

static enum status lay_out_unit(struct parameters *parameters, const struct partition *partition, int unit) {
    const struct params *params = parameters->params;
    const struct param_unit *u = &params->units[unit];
    struct transfer_place from = parameters->options->offload_param ? PLACE_AT(0) : PLACE_SHARD;
    transfers_init(&parameters->of_unit[unit], parameters->options->allgather_bucket);
    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        const struct param *param = &params->params[i];
        if (parameters->persistent_offset[i] == NOT_PERSISTENT)
            TRY(transfers_add(&parameters->of_unit[unit], partition, unit, param->offset,
                              param->offset + param->elements, from, PLACE_AT(0)));
    }
    TRY(transfers_finish(&parameters->of_unit[unit]));
    return STATUS_OK;
}

static enum status lay_out_persistent(struct parameters *parameters, const struct partition *partition) {
    const struct params *params = parameters->params;
    for (int i = 0; i < params->n_params; i++) {
        const struct param *param = &params->params[i];
        size_t offset = parameters->persistent_offset[i];
        struct transfer_place to = PLACE_AT(offset - param->offset);
        if (offset != NOT_PERSISTENT)
            TRY(transfers_add(&parameters->updated, partition, param->unit, param->offset,
                              param->offset + param->elements,
                              parameters->options->offload_param ? to : PLACE_SHARD, to));
    }
    return STATUS_OK;
}

static enum status add_slots(struct parameters *parameters, struct region_table *table) {
    const struct params *params = parameters->params;
    int final = params->n_units - 1;
    size_t sizes[N_SLOTS] = {0};
    for (int unit = 0; unit < params->n_units; unit++) {
        size_t n = parameters->unit_persists[unit] ? 0 : params->units[unit].elements;
        if (unit == final)
            sizes[2] = n;
        else if (n > sizes[0]) {
            sizes[1] = sizes[0];
            sizes[0] = n;
        } else if (n > sizes[1])
            sizes[1] = n;
    }
    for (int i = 0; i < N_SLOTS; i++) {
        parameters->slots[i] = (struct slot){.elements = sizes[i], .unit = -1};
        TRY(region_add(table, REGION_COMMUNICATION, parameters->device->place, parameters->type, sizes[i],
                       &parameters->slots[i].region, "params of a unit (%d)", i));
    }
    return STATUS_OK;
}

static enum status init_stage3(struct parameters *parameters, const struct partition *partition,
                               struct region_table *table) {
    const struct params *params = parameters->params;
    parameters->persistent_offset = calloc((size_t)params->n_params, sizeof *parameters->persistent_offset);
    parameters->unit_persists = calloc((size_t)params->n_units, sizeof *parameters->unit_persists);
    parameters->of_unit = calloc((size_t)params->n_units, sizeof *parameters->of_unit);
    if (!parameters->persistent_offset || !parameters->unit_persists || !parameters->of_unit)
        return FAIL(STATUS_FAILED, "out of memory for the bookkeeping of %d tensors", params->n_params);
    TRY(region_add(table, REGION_PARAMS, parameters->device->place, parameters->type,
                   choose_persistent(parameters), &parameters->persistent_region, "persistent params"));
    TRY(lay_out_persistent(parameters, partition));
    for (int unit = 0; unit < params->n_units; unit++)
        TRY(lay_out_unit(parameters, partition, unit));
    return add_slots(parameters, table);
}

enum status parameters_init(struct parameters *parameters, const struct params *params,
                            const struct stage_options *options, const struct partition *partition,
                            size_t shard_elements, enum dtype type, struct offload *offload,
                            struct device *device, struct region_table *table) {
    *parameters = (struct parameters){.params = params,
                                      .options = options,
                                      .device = device,
                                      .type = type,
                                      .offload = offload,
                                      .ahead = -1};
    bool whole = parameters_whole(parameters);
    if (!options->offload_param)
        TRY(region_add(table, REGION_PARAMS, device->place, type, whole ? params->n_elements : shard_elements,
                       &parameters->kept_region, whole ? "params" : "params of the shard"));
    transfers_init(&parameters->updated, options->allgather_bucket);
    for (int unit = 0; (options->stage == 1 || options->stage == 2) && unit < params->n_units; unit++) {
        struct transfer_place here = PLACE_AT(params->units[unit].offset);
        TRY(transfers_add(&parameters->updated, partition, unit, 0, params->units[unit].elements, here,
                          here));
    }
    if (!whole)
        TRY(init_stage3(parameters, partition, table));
    TRY(transfers_finish(&parameters->updated));
    return STATUS_OK;
}

enum status parameters_bind(struct parameters *parameters, const struct region_table *table,
                            struct comm *comm) {
    parameters->comm = comm;
    if (!parameters->options->offload_param)
        parameters->kept = region_data(table, parameters->kept_region);
    if (parameters_whole(parameters))
        return STATUS_OK;
    parameters->persistent = region_data(table, parameters->persistent_region);
    for (int i = 0; i < N_SLOTS; i++) {
        parameters->slots[i].data = region_data(table, parameters->slots[i].region);
        TRY(event_init(&parameters->slots[i].loaded, parameters->device));
    }
    return event_init(&parameters->asked, parameters->device);
}

void parameters_keep(struct parameters *parameters, void *shard) {
    parameters->kept = shard;
}

void parameters_free(struct parameters *parameters) {
    transfers_free(&parameters->updated);
    for (int i = 0; i < N_SLOTS; i++)
        event_free(&parameters->slots[i].loaded);
    event_free(&parameters->asked);
    for (int unit = 0; parameters->of_unit && unit < parameters->params->n_units; unit++)
        transfers_free(&parameters->of_unit[unit]);
    free(parameters->of_unit);
    free(parameters->persistent_offset);
    free(parameters->unit_persists);
    *parameters = (struct parameters){0};
}

static void *at(const struct parameters *parameters, void *base, size_t element) {
    return (char *)base + element * dtype_size(parameters->type);
}

void *parameters_at(const struct parameters *parameters, const struct stage_span *span) {
    return at(parameters, parameters->kept, stage_span_at(span, parameters_whole(parameters)));
}

// ---- stage 3: a unit comes and goes

static struct slot *slot_of(struct parameters *parameters, int unit) {
    for (int i = 0; i < N_SLOTS; i++)
        if (parameters->slots[i].unit == unit)
            return &parameters->slots[i];
    return NULL;
}

static struct slot *free_slot(struct parameters *parameters, int unit) {
    size_t n = parameters->params->units[unit].elements;
    if (unit == parameters->params->n_units - 1)
        return parameters->slots[2].unit < 0 ? &parameters->slots[2] : NULL;
    for (int i = 1; i >= 0; i--)
        if (parameters->slots[i].unit < 0 && parameters->slots[i].elements >= n)
            return &parameters->slots[i];
    return NULL;
}

// Copies this rank's elements of a unit's tensors, those that persist or those that do not, from the host to
// where they belong: at base + element, or where persistent tensors stand.
static enum status load_tensors(struct parameters *parameters, int unit, bool persistent, void *base) {
    const struct params *params = parameters->params;
    const struct param_unit *u = &params->units[unit];
    const struct stage_spans *owned = parameters->offload->owned;
    for (int k = owned->first[unit]; k < owned->first[unit + 1]; k++) {
        const struct stage_span *span = &owned->spans[k];
        for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
            const struct param *param = &params->params[i];
            size_t offset = parameters->persistent_offset[i], param_end = param->offset + param->elements;
            size_t begin = param->offset > span->begin ? param->offset : span->begin;
            size_t end = param_end < span->end ? param_end : span->end;
            if ((offset != NOT_PERSISTENT) != persistent || begin >= end)
                continue;
            size_t to = persistent ? offset + (begin - param->offset) : begin;
            TRY(parameters->device->copy(
                &parameters->offload->in, at(parameters, base, to),
                at(parameters, parameters->kept, span->in_shard + (begin - span->begin)),
                (end - begin) * dtype_size(parameters->type)));
        }
    }
    return STATUS_OK;
}

// What the caller's stream has done so far comes before what `in` does next: the memory may still be in use.
static enum status let_in_follow(struct parameters *parameters, struct stream *stream) {
    TRY(event_record(&parameters->asked, stream));
    return event_wait(&parameters->asked, &parameters->offload->in);
}

static enum status fetch(struct parameters *parameters, struct stream *stream, int unit, struct slot *slot) {
    const struct transfers *calls = &parameters->of_unit[unit];
    const void *from = parameters->kept;
    slot->unit = unit;
    parameters->n_fetches++;
    if (parameters->options->offload_param) {
        TRY(let_in_follow(parameters, stream));
        TRY(load_tensors(parameters, unit, false, slot->data));
        TRY(event_record(&slot->loaded, &parameters->offload->in));
        stream = &parameters->offload->in;
        from = slot->data;
    }
    for (int i = 0; i < calls->n_calls; i++)
        TRY(comm_all_gather(parameters->comm, stream, &calls->calls[i], from, slot->data, parameters->type,
                            &slot->ticket));
    return STATUS_OK;
}

// Waits for the gathered tensors and puts the persistent ones beside them.
static enum status complete(struct parameters *parameters, struct stream *stream, struct slot *slot) {
    const struct params *params = parameters->params;
    const struct param_unit *u = &params->units[slot->unit];
    TRY(comm_wait(parameters->comm, stream, slot->ticket));
    TRY(event_wait(&slot->loaded, stream));
    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        const struct param *param = &params->params[i];
        size_t offset = parameters->persistent_offset[i];
        if (offset != NOT_PERSISTENT)
            TRY(parameters->device->copy(stream, at(parameters, slot->data, param->offset),
                                         at(parameters, parameters->persistent, offset),
                                         param->elements * dtype_size(parameters->type)));
    }
    return STATUS_OK;
}

// Fetches the unit that comes next, if it is wanted and there is room by now.
static enum status fetch_ahead(struct parameters *parameters, struct stream *stream) {
    int unit = parameters->ahead;
    if (unit < 0 || parameters->unit_persists[unit] || slot_of(parameters, unit) ||
        !parameters->options->overlap || parameters->options->prefetch_bucket == 0)
        return STATUS_OK;
    struct slot *slot = free_slot(parameters, unit);
    if (!slot)
        return STATUS_OK;
    parameters->n_ahead++;
    return fetch(parameters, stream, unit, slot);
}

enum status parameters_acquire(struct parameters *parameters, struct stream *stream, int unit, int next,
                               const void **out) {
    const struct params *params = parameters->params;
    if (parameters_whole(parameters)) {
        *out = at(parameters, parameters->kept, params->units[unit].offset);
        return STATUS_OK;
    }
    parameters->ahead = next;
    if (parameters->unit_persists[unit]) {
        *out = at(parameters, parameters->persistent,
                  parameters->persistent_offset[params->units[unit].first_param]);
        return fetch_ahead(parameters, stream);
    }
    struct slot *slot = slot_of(parameters, unit);
    if (!slot) {
        slot = free_slot(parameters, unit);
        assert(slot); // at most the head's two units are held at once
        TRY(fetch(parameters, stream, unit, slot));
    }
    slot->in_use = true;
    TRY(complete(parameters, stream, slot));
    *out = slot->data;
    return fetch_ahead(parameters, stream);
}

enum status parameters_release(struct parameters *parameters, struct stream *stream, int unit) {
    if (parameters_whole(parameters))
        return STATUS_OK;
    struct slot *slot = slot_of(parameters, unit);
    if (slot && slot->in_use) {
        slot->unit = -1;
        slot->in_use = false;
    }
    return fetch_ahead(parameters, stream);
}

enum status parameters_updated(struct parameters *parameters, struct stream *stream) {
    comm_ticket ticket;
    void *to = parameters_whole(parameters) ? parameters->kept : parameters->persistent;
    const void *from = parameters->kept;
    struct stream *in = stream;
    if (parameters->options->offload_param) {
        TRY(let_in_follow(parameters, stream));
        for (int unit = 0; unit < parameters->params->n_units; unit++)
            TRY(load_tensors(parameters, unit, true, parameters->persistent));
        in = &parameters->offload->in;
        from = parameters->persistent;
    }
    for (int i = 0; i < parameters->updated.n_calls; i++)
        TRY(comm_all_gather(parameters->comm, in, &parameters->updated.calls[i], from, to, parameters->type,
                            &ticket));
    if (parameters->options->offload_param)
        TRY(offload_params_sent(parameters->offload, stream));
    return comm_wait_all(parameters->comm);
}
