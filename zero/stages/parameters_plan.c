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
        if (end + params_readable(params, i) > readable)
            readable = end + params_readable(params, i);
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

static enum status add_slots(struct parameters *parameters, struct region_table *table) {
    int final = parameters->params->n_units - 1;
    size_t sizes[N_SLOTS] = {0};
    for (int f = 0; f < parameters->first_fetch[final + 1]; f++) {
        const struct fetch *fetch = &parameters->fetches[f];
        size_t n = fetch->persists ? 0 : fetch->span.end - fetch->span.begin;
        if (fetch->unit == final)
            sizes[2] = n;
        else if (n > sizes[0]) {
            sizes[1] = sizes[0];
            sizes[0] = n;
        } else if (n > sizes[1])
            sizes[1] = n;
    }
    for (int i = 0; i < N_SLOTS; i++) {
        parameters->slots[i] = (struct gather_slot){.elements = sizes[i], .fetch = -1};
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
