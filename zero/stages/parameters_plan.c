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
    for (int unit = 0; unit < params->n_units; unit++)
        parameters->fetches[unit].persists = true;
    for (int i = 0; i < params->n_params; i++)
        if (!persists(parameters, &params->params[i]))
            parameters->fetches[params->params[i].unit].persists = false;
}

// Offsets are in unit shards, so that units that are divided alike share one list: with thousands of ranks a
// list has thousands of spans.
static enum status build_fetch_buckets(struct parameters *parameters, int unit) {
    struct fetch *fetch = &parameters->fetches[unit];
    const struct param_unit *u = &parameters->params->units[unit];
    struct buffer_layout slot = BUFFER_AT(0);
    struct buffer_layout from = parameters->options->offload_param ? slot : BUFFER_UNIT_SHARD;
    fetch->buckets = &fetch->own_buckets;
    buckets_init(&fetch->own_buckets, parameters->options->allgather_bucket);
    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        const struct param *param = &parameters->params->params[i];
        if (parameters->persistent_offset[i] == NOT_PERSISTENT)
            TRY(buckets_add(&fetch->own_buckets, parameters->partition, unit, param->offset,
                            param->offset + param->elements, from, slot));
    }
    return buckets_finish(&fetch->own_buckets);
}

static enum status build_all_fetch_buckets(struct parameters *parameters) {
    const struct params *params = parameters->params;
    for (int unit = 0; unit < params->n_units; unit++) {
        if (partition_repeats(parameters->partition, params, unit))
            parameters->fetches[unit].buckets = parameters->fetches[unit - 1].buckets;
        else
            TRY(build_fetch_buckets(parameters, unit));
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

static enum status list_events(struct parameters *parameters, const struct trace *trace,
                               struct gather_pass *pass) {
    struct gather_event *events = calloc((size_t)trace->n_events + 1, sizeof *events);
    pass->n_events = trace->n_events;
    pass->events = events;
    pass->steps = calloc((size_t)trace->n_events + 1, sizeof *pass->steps);
    if (!events || !pass->steps)
        return FAIL(STATUS_FAILED, "out of memory for the gathers of %d events", trace->n_events);
    for (int i = 0; i < trace->n_events; i++) {
        const struct trace_event *event = &trace->events[i];
        struct fetch *fetch = &parameters->fetches[event->unit];
        const bool gathers = event->pass != GPT_BACKWARD_GRADS && !fetch->persists;
        events[i] = (struct gather_event){gathers ? event->unit : NO_FETCH, event->acquires};
        if (gathers && event->acquires && trace->kind == TRACE_TRAINING)
            fetch->uses++;
    }
    return STATUS_OK;
}

static enum status plan_slots(struct parameters *parameters, struct gather_slots *slots) {
    const int n = parameters->params->n_units;
    size_t *elements = calloc((size_t)n, sizeof *elements);
    const struct gather_options options = {elements, parameters->options->overlap &&
                                                         parameters->options->prefetch_bucket > 0};
    if (!elements)
        return FAIL(STATUS_FAILED, "out of memory for the sizes of %d units", n);
    for (int unit = 0; unit < n; unit++)
        elements[unit] = params_unit_memory(parameters->params, unit, parameters->device->place);
    gathers_plan(parameters->passes, N_TRACES, &options, slots);
    free(elements);
    return STATUS_OK;
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
    parameters->persistent_offset = calloc((size_t)params->n_params, sizeof *parameters->persistent_offset);
    parameters->fetches = calloc((size_t)params->n_units, sizeof *parameters->fetches);
    if (!parameters->persistent_offset || !parameters->fetches)
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
