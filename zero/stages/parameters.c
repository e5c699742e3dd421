// Slots: a fetch takes the smallest free slot that it fits. So the two largest fetches, such as embeddings
// and a block, fit side by side in either order. Of two groups of a block that are held at once, the first is
// the larger or fits either slot. Every step acquires in the same order and ends with all slots free, so each
// fetch uses the same slot in every step.
#include "zero/stages/parameters.h"

#include <assert.h>
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

static void list_in_slot(struct parameters *parameters, struct gather_slot *slot, const struct fetch *fetch) {
    const int first = fetch->span.first_param;
    for (int i = first; i < first + fetch->span.n_params; i++)
        slot->tensors[i] = parameters->tensors[i] ? parameters->tensors[i]
                                                  : tensor_at(&parameters->params->params[i], slot->data,
                                                              fetch->span.begin, parameters->type);
}

static enum status list_tensors(struct parameters *parameters) {
    const struct params *params = parameters->params;
    const size_t n = (size_t)params->n_params, n_slots = parameters_has_all(parameters) ? 0 : N_SLOTS;
    parameters->tensors = calloc((1 + n_slots) * n, sizeof *parameters->tensors);
    if (!parameters->tensors)
        return FAIL(STATUS_FAILED, "out of memory for the addresses of %zu tensors", n);
    for (size_t i = 0; i < n; i++)
        parameters->tensors[i] = kept_at(parameters, &params->params[i]);
    for (size_t i = 0; i < n_slots; i++) {
        parameters->slots[i].tensors = parameters->tensors + (1 + i) * n;
        for (int f = 0; f < parameters->first_fetch[params->n_units]; f++)
            list_in_slot(parameters, &parameters->slots[i], &parameters->fetches[f]);
    }
    return STATUS_OK;
}

static void *const *tensors_of(const struct parameters *parameters, void *const *tensors, int unit) {
    return tensors + parameters->params->units[unit].first_param;
}

enum status parameters_bind(struct parameters *parameters, const struct region_table *table,
                            struct comm *comm) {
    parameters->comm = comm;
    if (!parameters->options->offload_param)
        parameters->stored = region_data(table, parameters->stored_region);
    TRY(parameters_build_buckets(parameters));
    if (parameters_has_all(parameters))
        return list_tensors(parameters);
    parameters->persistent = region_data(table, parameters->persistent_region);
    for (int i = 0; i < N_SLOTS; i++) {
        parameters->slots[i].data = region_data(table, parameters->slots[i].region);
        TRY(event_init(&parameters->slots[i].loaded, parameters->device));
    }
    return list_tensors(parameters);
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
    free(parameters->tensors);
    *parameters = (struct parameters){0};
}

void *parameters_at(const struct parameters *parameters, const struct stage_span *span) {
    return at(parameters, parameters->stored, stage_span_offset(span, parameters_has_all(parameters)));
}

// ---- stage 3: fetches

static struct gather_slot *slot_of(struct parameters *parameters, int fetch) {
    for (int i = 0; i < N_SLOTS; i++)
        if (parameters->slots[i].fetch == fetch)
            return &parameters->slots[i];
    return NULL;
}

static struct gather_slot *free_slot(struct parameters *parameters, const struct fetch *fetch) {
    if (fetch->unit == parameters->params->n_units - 1)
        return parameters->slots[2].fetch < 0 ? &parameters->slots[2] : NULL;
    for (int i = 1; i >= 0; i--)
        if (parameters->slots[i].fetch < 0 &&
            parameters->slots[i].elements >= fetch->span.end - fetch->span.begin)
            return &parameters->slots[i];
    return NULL;
}

// offload_param: copies this rank's spans of a unit from the host, either of its persistent tensors or of the
// others.
//   base   of the persistent tensors, or (for the others) the address of the unit's element 0
static enum status load_tensors(struct parameters *parameters, struct stream *stream, int unit,
                                struct param_span wanted, bool persistent, void *base) {
    const struct stage_spans *owned = parameters->owned;
    for (int k = owned->first[unit]; k < owned->first[unit + 1]; k++) {
        const struct stage_span *span = &owned->spans[k];
        size_t first = span->begin > wanted.begin ? span->begin : wanted.begin;
        size_t last = span->end < wanted.end ? span->end : wanted.end;
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

// This rank's unit shard in its shard.
static const void *unit_shard_at(const struct parameters *parameters, int unit) {
    const struct stage_spans *owned = parameters->owned;
    bool any = owned->first[unit] < owned->first[unit + 1];
    return at(parameters, parameters->stored, any ? owned->spans[owned->first[unit]].shard_offset : 0);
}

static enum status start_fetch(struct parameters *parameters, struct stream *stream, int index,
                               struct gather_slot *slot) {
    const struct fetch *fetch = &parameters->fetches[index];
    const void *from = unit_shard_at(parameters, fetch->unit);
    slot->fetch = index;
    parameters->n_fetches++;
    if (parameters->options->offload_param) {
        TRY(offload_upload_stream(parameters->offload, stream, &stream));
        TRY(load_tensors(parameters, stream, fetch->unit, fetch->span, false,
                         at(parameters, slot->data, 0 - fetch->span.begin)));
        TRY(event_record(&slot->loaded, stream));
        from = slot->data;
    }
    for (int i = 0; i < fetch->buckets->n_calls; i++)
        TRY(comm_all_gather(parameters->comm, stream, &fetch->buckets->calls[i], from, slot->data,
                            parameters->type, &slot->work));
    return STATUS_OK;
}

static enum status finish_fetch(struct parameters *parameters, struct stream *stream,
                                struct gather_slot *slot) {
    TRY(comm_wait(parameters->comm, stream, slot->work));
    return parameters->options->offload_param ? event_wait(&slot->loaded, stream) : STATUS_OK;
}

// Prefetches what is acquired next, unless it is there or no slot is free.
static enum status fetch_ahead(struct parameters *parameters, struct stream *stream) {
    int ahead = parameters->ahead;
    if (ahead < 0 || parameters->fetches[ahead].persists || slot_of(parameters, ahead) ||
        !parameters->options->overlap || parameters->options->prefetch_bucket == 0)
        return STATUS_OK;
    struct gather_slot *slot = free_slot(parameters, &parameters->fetches[ahead]);
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

// *out: the addresses of the unit's tensors, of which those of the fetch are gathered.
static enum status acquire_fetch(struct parameters *parameters, struct stream *stream, int index,
                                 struct gpt_next next, void *const **out) {
    const struct fetch *wanted = &parameters->fetches[index];
    parameters->ahead = next.unit < 0 ? -1 : fetch_of(parameters, next.unit, next.group);
    if (wanted->persists) {
        *out = tensors_of(parameters, parameters->tensors, wanted->unit);
        return fetch_ahead(parameters, stream);
    }
    struct gather_slot *slot = slot_of(parameters, index);
    if (!slot) {
        slot = free_slot(parameters, wanted);
        assert(slot); // at most two fetches are in use at once
        TRY(start_fetch(parameters, stream, index, slot));
    }
    slot->in_use = true;
    TRY(finish_fetch(parameters, stream, slot));
    *out = tensors_of(parameters, slot->tensors, wanted->unit);
    return fetch_ahead(parameters, stream);
}

static enum status release_fetch(struct parameters *parameters, struct stream *stream, int index) {
    struct gather_slot *slot = slot_of(parameters, index);
    if (slot && slot->in_use) {
        slot->fetch = -1;
        slot->in_use = false;
    }
    return fetch_ahead(parameters, stream);
}

enum status parameters_acquire(struct parameters *parameters, struct stream *stream, int unit,
                               struct gpt_next next, void *const **out) {
    *out = NULL;
    if (parameters_has_all(parameters)) {
        *out = tensors_of(parameters, parameters->tensors, unit);
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
                                     enum block_group group, struct gpt_next next, void *const **out) {
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
    return comm_wait_all(parameters->comm, stream);
}
