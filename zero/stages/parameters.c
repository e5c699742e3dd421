// Follows the plan of gathers: which fetch begins at which event of a pass, and in which slot.
#include "zero/stages/parameters.h"

#include <stdlib.h>

#include "model/param_overlap.h"

// The address may be outside the buffer until an offset is added to it: element `0 - n` is n elements before
// it.
static void *at(const struct parameters *parameters, const void *base, size_t element) {
    return (void *)((uintptr_t)base + element * dtype_size(parameters->type));
}

// ---- where tensors are

// Stages 0 to 2: all in `stored`. Stage 3: those that fetches find in `persistent`.
static void *kept_at(const struct parameters *parameters, const struct param *param) {
    const struct params *params = parameters->params;
    const size_t in_model = params->units[param->unit].offset + param->offset,
                 kept = parameters_has_all(parameters)
                            ? in_model
                            : parameters->persistent_offset[param - params->params];
    const void *base = parameters_has_all(parameters) ? parameters->stored : parameters->persistent;
    return kept == NOT_PERSISTENT ? NULL : at(parameters, base, kept);
}

static enum status list_tensors(struct parameters *parameters) {
    const struct params *params = parameters->params;
    const size_t n = (size_t)params->n_params, n_slots = (size_t)parameters->n_slots;
    parameters->tensors = calloc((1 + n_slots) * n, sizeof *parameters->tensors);
    if (!parameters->tensors)
        return FAIL(STATUS_FAILED, "out of memory for the addresses of %zu tensors", n);
    for (size_t i = 0; i < n; i++)
        parameters->tensors[i] = kept_at(parameters, &params->params[i]);
    for (size_t k = 0; k < n_slots; k++) {
        struct gather_slot *slot = &parameters->slots[k];
        slot->tensors = parameters->tensors + (1 + k) * n;
        for (size_t i = 0; i < n; i++)
            slot->tensors[i] = parameters->tensors[i]
                                   ? parameters->tensors[i]
                                   : tensor_at(&params->params[i], slot->data, parameters->type);
    }
    return STATUS_OK;
}

static void *const *tensors_of(const struct parameters *parameters, void *const *tensors, int unit) {
    return tensors + parameters->params->units[unit].first_param;
}

enum status parameters_bind(struct parameters *parameters, const struct region_table *table,
                            struct comm *comm) {
    parameters->comm = comm;
    parameters->stored = parameters->options->offload_param
                             ? placement_host_params(parameters->offload->placement)
                             : region_data(table, parameters->stored_region);
    TRY(parameters_build_buckets(parameters));
    if (parameters_has_all(parameters))
        return list_tensors(parameters);
    parameters->persistent = region_data(table, parameters->persistent_region);
    for (int i = 0; i < parameters->n_slots; i++) {
        parameters->slots[i].data = region_data(table, parameters->slots[i].region);
        TRY(event_init(&parameters->slots[i].loaded, parameters->device));
    }
    return list_tensors(parameters);
}

void parameters_free(struct parameters *parameters) {
    buckets_free(&parameters->update_buckets);
    for (int i = 0; i < parameters->n_slots; i++)
        event_free(&parameters->slots[i].loaded);
    for (int unit = 0; parameters->fetches && unit < parameters->params->n_units; unit++)
        buckets_free(&parameters->fetches[unit].own_buckets);
    for (int kind = 0; kind < N_TRACES; kind++) {
        free((void *)(uintptr_t)parameters->passes[kind].events);
        free(parameters->passes[kind].steps);
    }
    free(parameters->fetches);
    free(parameters->persistent_offset);
    free(parameters->tensors);
    *parameters = (struct parameters){0};
}

void *parameters_at(const struct parameters *parameters, const struct stage_span *span) {
    return at(parameters, parameters->stored, stage_span_offset(span, parameters_has_all(parameters)));
}

// ---- stage 3: fetches

// offload_param: copies this rank's spans of a unit from the host, either of its persistent tensors or of the
// others.
//   base   of the persistent tensors, or (for the others) of the unit
static enum status load_tensors(struct parameters *parameters, struct stream *stream, int unit,
                                bool persistent, void *base) {
    const struct stage_spans *owned = parameters->owned;
    for (int k = owned->first[unit]; k < owned->first[unit + 1]; k++) {
        const struct stage_span *span = &owned->spans[k];
        for (struct param_overlap it = {0};
             params_next_overlap(parameters->params, unit, span->begin, span->end, &it);) {
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

// This rank's unit shard in its shard.
static const void *unit_shard_at(const struct parameters *parameters, int unit) {
    const struct stage_spans *owned = parameters->owned;
    bool any = owned->first[unit] < owned->first[unit + 1];
    return at(parameters, parameters->stored, any ? owned->spans[owned->first[unit]].shard_offset : 0);
}

static enum status start_fetch(struct parameters *parameters, struct stream *stream, int unit,
                               struct gather_slot *slot) {
    const struct buckets *buckets = parameters->fetches[unit].buckets;
    const void *from = unit_shard_at(parameters, unit);
    slot->fetch = unit;
    parameters->n_fetches++;
    if (parameters->options->offload_param) {
        TRY(offload_upload_stream(parameters->offload, stream, &stream));
        TRY(load_tensors(parameters, stream, unit, false, slot->data));
        TRY(event_record(&slot->loaded, stream));
        from = slot->data;
    }
    for (int i = 0; i < buckets->n_calls; i++)
        TRY(comm_all_gather(parameters->comm, stream, &buckets->calls[i], from, slot->data, parameters->type,
                            &slot->work));
    return STATUS_OK;
}

static enum status finish_fetch(struct parameters *parameters, struct stream *stream,
                                struct gather_slot *slot) {
    TRY(comm_wait(parameters->comm, stream, slot->work));
    return parameters->options->offload_param ? event_wait(&slot->loaded, stream) : STATUS_OK;
}

static enum status fetch_ahead(struct parameters *parameters, struct stream *stream,
                               const struct gather_step *step) {
    if (step->ahead == NO_FETCH)
        return STATUS_OK;
    parameters->n_ahead++;
    return start_fetch(parameters, stream, step->ahead, &parameters->slots[step->ahead_slot]);
}

void parameters_begin(struct parameters *parameters, enum trace_kind kind) {
    parameters->pass = &parameters->passes[kind];
}

enum status parameters_acquire(struct parameters *parameters, struct stream *stream, int event, int unit,
                               void *const **out) {
    if (parameters_has_all(parameters) || parameters->fetches[unit].persists) {
        *out = tensors_of(parameters, parameters->tensors, unit);
        return STATUS_OK;
    }
    const struct gather_step *step = &parameters->pass->steps[event];
    struct gather_slot *slot = &parameters->slots[step->slot];
    if (slot->fetch != unit)
        TRY(start_fetch(parameters, stream, unit, slot));
    TRY(finish_fetch(parameters, stream, slot));
    *out = tensors_of(parameters, slot->tensors, unit);
    return fetch_ahead(parameters, stream, step);
}

enum status parameters_release(struct parameters *parameters, struct stream *stream, int event) {
    if (parameters_has_all(parameters) || parameters->pass->events[event].fetch == NO_FETCH)
        return STATUS_OK;
    const struct gather_step *step = &parameters->pass->steps[event];
    parameters->slots[step->slot].fetch = NO_FETCH;
    return fetch_ahead(parameters, stream, step);
}

enum status parameters_gather_updated(struct parameters *parameters, struct stream *stream) {
    comm_work work;
    void *to = parameters_has_all(parameters) ? parameters->stored : parameters->persistent;
    const void *from = parameters->stored;
    struct stream *in = stream;
    if (parameters->options->offload_param) {
        TRY(offload_upload_stream(parameters->offload, stream, &in));
        for (int unit = 0; unit < parameters->params->n_units; unit++)
            TRY(load_tensors(parameters, in, unit, true, parameters->persistent));
        from = parameters->persistent;
    }
    for (int i = 0; i < parameters->update_buckets.n_calls; i++)
        TRY(comm_all_gather(parameters->comm, in, &parameters->update_buckets.calls[i], from, to,
                            parameters->type, &work));
    if (parameters->options->offload_param)
        TRY(offload_params_wait(parameters->offload, stream));
    return comm_wait_all(parameters->comm, stream);
}
