// Everything about a stage's parameters that is known without memory or other ranks: the fetches of stage 3,
// the slots they are gathered into, and the buckets of every all-gather.
#include "zero/stages/parameters.h"

#include <stdlib.h>

static bool persists(const struct parameters *parameters, const struct param *param) {
    return param->elements < parameters->options->persistence_threshold;
}

// Assigns offsets to persistent tensors, one after another and aligned as in their units. Returns the number
// of elements, with what may be read after the last ones.
static size_t place_persistent(struct parameters *parameters) {
    const struct params *params = parameters->params;
    size_t end = 0, readable = 0;
    for (int i = 0; i < params->n_params; i++) {
        const struct param *param = &params->params[i];
        bool persistent = persists(parameters, param);
        parameters->persistent_offset[i] = persistent ? end : NOT_PERSISTENT;
        if (!persistent)
            continue;
        const size_t read = params_accessed(params, i, parameters->device->place);
        if (end + read > readable)
            readable = end + read;
        end += (param->elements + PARAM_ALIGNMENT - 1) / PARAM_ALIGNMENT * PARAM_ALIGNMENT;
    }
    return end > readable ? end : readable;
}

static void list_fetches(struct parameters *parameters) {
    const struct params *params = parameters->params;
    int n = 0;
    for (int unit = 0; unit < params->n_units; unit++) {
        parameters->first_fetch[unit] = n;
        for (int i = 0; i < stage_n_param_spans(parameters->options, params, unit); i++) {
            struct fetch *fetch = &parameters->fetches[n++];
            *fetch = (struct fetch){.unit = unit,
                                    .span = stage_param_span(parameters->options, params, unit, i),
                                    .persists = true};
            for (int k = 0; k < fetch->span.n_params; k++)
                fetch->persists =
                    fetch->persists && persists(parameters, &params->params[fetch->span.first_param + k]);
        }
    }
    parameters->first_fetch[params->n_units] = n;
}

// Offsets are in unit shards, so that units that are divided alike share one list: with thousands of ranks a
// list has thousands of spans.
static enum status build_fetch_buckets(struct parameters *parameters, struct fetch *fetch) {
    struct buffer_layout slot = BUFFER_AT(0 - fetch->span.begin);
    struct buffer_layout from = parameters->options->offload_param ? slot : BUFFER_UNIT_SHARD;
    fetch->buckets = &fetch->own_buckets;
    buckets_init(&fetch->own_buckets, parameters->options->allgather_bucket);
    for (int i = fetch->span.first_param; i < fetch->span.first_param + fetch->span.n_params; i++) {
        const struct param *param = &parameters->params->params[i];
        if (parameters->persistent_offset[i] == NOT_PERSISTENT)
            TRY(buckets_add(&fetch->own_buckets, parameters->partition, fetch->unit, param->offset,
                            param->offset + param->elements, from, slot));
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

int parameters_fetch_of(const struct parameters *parameters, const struct trace_event *event) {
    const bool by_group = stage_by_group(parameters->options, parameters->params, event->unit);
    if (event->pass == GPT_BACKWARD_GRADS || by_group != (event->group != TRACE_WHOLE_UNIT))
        return NO_FETCH;
    return parameters->first_fetch[event->unit] + (by_group ? event->group : 0);
}

static enum status list_events(struct parameters *parameters, const struct trace *trace,
                               struct gather_pass *pass) {
    struct gather_event *events = calloc((size_t)trace->n_events + 1, sizeof *events);
    pass->n_events = trace->n_events;
    pass->events = events;
    pass->steps = calloc((size_t)trace->n_events + 1, sizeof *pass->steps);
    if (!events || !pass->steps)
        return FAIL(STATUS_FAILED, "out of memory for the gathers of %d events", trace->n_events);
    for (int i = 0; i < trace->n_events; i++) {
        const int f = parameters_fetch_of(parameters, &trace->events[i]);
        const bool gathers = f != NO_FETCH && !parameters->fetches[f].persists;
        events[i] =
            (struct gather_event){.fetch = gathers ? f : NO_FETCH, .acquires = trace->events[i].acquires};
        if (gathers && events[i].acquires && trace->kind == TRACE_TRAINING)
            parameters->fetches[f].uses++;
    }
    return STATUS_OK;
}

static enum status plan_slots(struct parameters *parameters, struct gather_slots *slots) {
    const size_t n = (size_t)parameters->first_fetch[parameters->params->n_units];
    size_t *elements = calloc(n, sizeof *elements);
    bool *patient = calloc(n, sizeof *patient);
    const struct gather_options options = {.elements = elements,
                                           .patient = patient,
                                           .prefetch = parameters->options->overlap &&
                                                       parameters->options->prefetch_bucket > 0};
    for (size_t f = 0; f < n && elements && patient; f++) {
        const struct fetch *fetch = &parameters->fetches[f];
        elements[f] = params_span_memory(parameters->params, fetch->span, parameters->device->place);
        patient[f] = stage_by_group(parameters->options, parameters->params, fetch->unit);
    }
    enum status status = STATUS_OK;
    if (elements && patient)
        gathers_plan(parameters->passes, N_TRACES, &options, slots);
    else
        status = FAIL(STATUS_FAILED, "out of memory for the sizes of %zu fetches", n);
    free(elements);
    free(patient);
    return status;
}

static enum status add_slots(struct parameters *parameters, struct region_table *table) {
    struct gather_slots slots;
    for (int kind = 0; kind < N_TRACES; kind++)
        TRY(list_events(parameters, &parameters->traces[kind], &parameters->passes[kind]));
    TRY(plan_slots(parameters, &slots));
    parameters->n_slots = slots.n;
    for (int i = 0; i < slots.n; i++) {
        parameters->slots[i] = (struct gather_slot){.fetch = NO_FETCH};
        TRY(region_add(table, REGION_COMMUNICATION, parameters->device->place, parameters->type,
                       slots.elements[i], &parameters->slots[i].region, "params of a unit (%d)", i));
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
        return FAIL(STATUS_FAILED, "out of memory for the fetches of %d tensors", params->n_params);
    TRY(region_add(table, REGION_PARAMS, parameters->device->place, parameters->type,
                   place_persistent(parameters), &parameters->persistent_region, "persistent params"));
    list_fetches(parameters);
    return add_slots(parameters, table);
}

// Refuses lists of buckets that would be too long, before any is built. Plans build none.
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
                            const struct stage_options *options, const struct trace *traces,
                            const struct partition *partition, const struct stage_spans *owned,
                            size_t shard_elements, enum dtype type, struct offload *offload,
                            struct device *device, struct region_table *table) {
    *parameters = (struct parameters){.params = params,
                                      .options = options,
                                      .traces = traces,
                                      .partition = partition,
                                      .owned = owned,
                                      .device = device,
                                      .type = type,
                                      .offload = offload};
    bool whole = parameters_has_all(parameters);
    if (!options->offload_param)
        TRY(region_add(table, REGION_PARAMS, device->place, type,
                       whole ? params_memory(params, device->place) : shard_elements,
                       &parameters->stored_region, whole ? "params" : "params of the shard"));
    TRY(check_calls(parameters));
    return whole ? STATUS_OK : init_stage3(parameters, table);
}
