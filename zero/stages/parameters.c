// The first half of this file plans the fetches of stage 3, their slots, and the buckets of every
// all-gather. That needs neither memory nor other ranks. The second half runs passes by this plan, which
// determines at which event each fetch begins, and in which slot.
#include "zero/stages/parameters.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "model/params.h"

// ---- which parameters are gathered

// True in stages 1 and 2: all parameters are gathered after an update, because each rank updates only its
// shard.
static bool gathers_all(const struct stage *stage) {
    return stage_shards_optimizer(stage->config) && !stage_shards_params(stage->config);
}

// Stage 3: true for a tensor that every rank keeps whole.
static bool persists(const struct stage *stage, const struct param *param) {
    return param->elements < stage->options.persistence_threshold;
}

// Stage 3: true for a persistent tensor that an update changes.
static bool is_updated(const struct stage *stage, const struct param *param) {
    return persists(stage, param) && !param->is_frozen;
}

// Stage 3: true for a tensor that is gathered before each use.
static bool is_fetched(const struct stage *stage, const struct param *param) {
    return !persists(stage, param);
}

// Returns the number of elements that are gathered after an update: in stage 0 none, in stages 1 and 2 all
// trained elements, in stage 3 those of persistent tensors that are trained.
static size_t updated_elements(const struct stage *stage) {
    size_t n = gathers_all(stage) ? stage->params->n_trained : 0;
    for (int i = 0; stage_shards_params(stage->config) && i < stage->params->n_params; i++)
        n += is_updated(stage, &stage->params->params[i]) ? stage->params->params[i].elements : 0;
    return n;
}

typedef bool tensor_test(const struct stage *stage, const struct param *param);
// Returns how many of the elements [begin, end) of a unit are in tensors for which `is_counted` is true.
static size_t count_elements(const struct stage *stage, int unit, size_t begin, size_t end,
                             tensor_test *is_counted) {
    size_t n = 0;
    for (struct param_overlap it = {0}; params_next_overlap(stage->params, unit, begin, end, &it);)
        n += is_counted(stage, &stage->params->params[it.param]) ? it.end - it.begin : 0;
    return n;
}

// Returns how many of a unit's elements this rank owns, in tensors for which `is_counted` is true.
static size_t count_owned(const struct stage *stage, int unit, tensor_test *is_counted) {
    size_t n = 0;
    for (int i = stage->owned.first[unit]; i < stage->owned.first[unit + 1]; i++)
        n += count_elements(stage, unit, stage->owned.spans[i].begin, stage->owned.spans[i].end, is_counted);
    return n;
}

// In an all-gather a rank sends the elements that it owns to each other rank.
void parameters_volume(const struct parameters *parameters, int64_t n_micro_batches,
                       struct comm_volume *volume) {
    const struct stage *stage = parameters->stage;
    const size_t bucket = stage->options.allgather_bucket;
    uint64_t elements = gathers_all(stage) ? stage_trained_elements(stage) : 0;
    for (int unit = 0; stage_shards_params(stage->config) && unit < stage->params->n_units; unit++) {
        const uint64_t times = (uint64_t)n_micro_batches * (uint64_t)parameters->fetches[unit].uses;
        const size_t fetched =
            count_elements(stage, unit, 0, stage->params->units[unit].elements, is_fetched);
        elements += times * count_owned(stage, unit, is_fetched) + count_owned(stage, unit, is_updated);
        volume->calls[COMM_ALL_GATHER] += times * buckets_count(fetched, bucket);
    }
    volume->calls[COMM_ALL_GATHER] += buckets_count(updated_elements(stage), bucket);
    volume->bytes[COMM_ALL_GATHER] += elements * dtype_size(stage->type) * (uint64_t)(stage->world - 1);
}

// ---- buckets

// Builds the list of buckets of a unit's fetch. Offsets are in unit shards, so that units that are divided
// in the same way can share one list: with thousands of ranks a list has thousands of spans.
static void build_fetch_buckets(struct parameters *parameters, int unit) {
    const struct stage *stage = parameters->stage;
    struct buckets *buckets = &parameters->fetches[unit].own_buckets;
    const struct param_unit *u = &stage->params->units[unit];
    struct buffer_layout slot = BUFFER_AT(0);
    struct buffer_layout from = stage->options.offload_param ? slot : BUFFER_UNIT_SHARD;
    buckets_init(buckets, stage->options.allgather_bucket);
    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        const struct param *param = &stage->params->params[i];
        if (parameters->persistent_offset[i] == NOT_PERSISTENT)
            buckets_add(buckets, stage->partition, unit, param->offset, param->offset + param->elements, from,
                        slot);
    }
    buckets_finish(buckets);
}

static void add_persistent_buckets(const struct parameters *parameters, bool loaded,
                                   struct buckets *buckets) {
    const struct stage *stage = parameters->stage;
    for (int i = 0; i < stage->params->n_params; i++) {
        const struct param *param = &stage->params->params[i];
        size_t offset = parameters->persistent_offset[i];
        struct buffer_layout to = BUFFER_AT(offset - param->offset);
        if (offset != NOT_PERSISTENT && (loaded || !param->is_frozen))
            buckets_add(buckets, stage->partition, param->unit, param->offset,
                        param->offset + param->elements, stage->options.offload_param ? to : BUFFER_SHARD,
                        to);
    }
}

// Builds the list of buckets of the all-gathers after an update, which changes no frozen tensor, or
// (`loaded`) after loading, which changes all tensors.
static void build_gather(const struct parameters *parameters, bool loaded, struct buckets *buckets) {
    const struct stage *stage = parameters->stage;
    const struct partition *partition = loaded ? stage->partition : partition_trained(stage->partition);
    buckets_init(buckets, stage->options.allgather_bucket);
    for (int unit = 0; gathers_all(stage) && unit < stage->params->n_units; unit++) {
        struct buffer_layout here = BUFFER_AT(stage->params->units[unit].offset);
        buckets_add(buckets, partition, unit, 0, stage->params->units[unit].elements, here, here);
    }
    if (stage_shards_params(stage->config))
        add_persistent_buckets(parameters, loaded, buckets);
    buckets_finish(buckets);
}

void parameters_build_buckets(struct parameters *parameters) {
    const struct stage *stage = parameters->stage;
    const struct params *params = stage->params;
    struct fetch *fetches = parameters->fetches;
    build_gather(parameters, false, &parameters->update_buckets);
    for (int unit = 0; stage_shards_params(stage->config) && unit < params->n_units; unit++)
        if (partition_repeats(stage->partition, params, unit)) {
            fetches[unit].buckets = fetches[unit - 1].buckets;
        } else {
            fetches[unit].buckets = &fetches[unit].own_buckets;
            build_fetch_buckets(parameters, unit);
        }
}

// ---- planning

// Fails if a list of buckets would need more than BUCKETS_MAX_CALLS collectives. The number is computed
// from element counts, because planning builds no lists.
static enum status check_calls(const struct stage *stage) {
    const struct params *params = stage->params;
    const size_t bucket = stage->options.allgather_bucket;
    for (int unit = 0; stage_shards_params(stage->config) && unit < params->n_units; unit++)
        TRY(buckets_check(params->units[unit].elements, bucket));
    return buckets_check(updated_elements(stage), bucket);
}

// Assigns offsets in `persistent` to the persistent tensors, one after another, with the alignment that
// they have in their units. Returns the size of that array, in elements. It includes the elements that
// operations may read after the end of a tensor (params_accessed).
static size_t place_persistent(struct parameters *parameters) {
    const struct stage *stage = parameters->stage;
    size_t end = 0, readable = 0;
    for (int i = 0; i < stage->params->n_params; i++) {
        const struct param *param = &stage->params->params[i];
        const bool persistent = persists(stage, param);
        parameters->persistent_offset[i] = persistent ? end : NOT_PERSISTENT;
        if (!persistent) {
            parameters->fetches[param->unit].persists = false;
            continue;
        }
        const size_t read = params_accessed(stage->params, i, stage->device->place);
        if (end + read > readable)
            readable = end + read;
        end += (param->elements + PARAM_ALIGNMENT - 1) / PARAM_ALIGNMENT * PARAM_ALIGNMENT;
    }
    return end > readable ? end : readable;
}

static void list_events(struct parameters *parameters, const struct trace *trace, struct gather_pass *pass) {
    struct gather_event *events = allocate((size_t)trace->n_events, sizeof *events);
    pass->n_events = trace->n_events;
    pass->events = events;
    pass->steps = allocate((size_t)trace->n_events, sizeof *pass->steps);
    for (int i = 0; i < trace->n_events; i++) {
        const struct trace_event *event = &trace->events[i];
        struct fetch *fetch = &parameters->fetches[event->unit];
        const bool gathers = event->pass != GPT_BACKWARD_GRADS && !fetch->persists;
        events[i] = (struct gather_event){gathers ? event->unit : NO_FETCH, event->acquires};
        if (gathers && event->acquires && trace->kind == TRACE_TRAINING)
            fetch->uses++;
    }
}

static enum status add_slots(struct parameters *parameters, struct region_table *table) {
    const struct stage *stage = parameters->stage;
    const int n = stage->params->n_units;
    size_t *elements = allocate((size_t)n, sizeof *elements);
    const struct gather_options options = {elements,
                                           stage->options.overlap && stage->options.prefetch_bucket > 0};
    struct gather_slots slots;
    for (int kind = 0; kind < N_TRACES; kind++)
        list_events(parameters, &stage->traces[kind], &parameters->passes[kind]);
    for (int unit = 0; unit < n; unit++)
        elements[unit] = params_unit_memory(stage->params, unit, stage->device->place);
    gathers_plan(parameters->passes, N_TRACES, &options, &slots);
    free(elements);
    parameters->n_slots = slots.n;
    for (int i = 0; i < slots.n; i++) {
        parameters->slots[i] = (struct gather_slot){.fetch = NO_FETCH};
        TRY(region_add(table, REGION_COMMUNICATION, stage->device->place, stage->type, slots.elements[i],
                       &parameters->slots[i].region, "params of a unit (%d)", i));
    }
    return STATUS_OK;
}

static enum status init_stage3(struct parameters *parameters, struct region_table *table) {
    const struct stage *stage = parameters->stage;
    parameters->persistent_offset =
        allocate((size_t)stage->params->n_params, sizeof *parameters->persistent_offset);
    parameters->fetches = allocate((size_t)stage->params->n_units, sizeof *parameters->fetches);
    for (int unit = 0; unit < stage->params->n_units; unit++)
        parameters->fetches[unit].persists = true;
    TRY(region_add(table, REGION_PARAMS, stage->device->place, stage->type, place_persistent(parameters),
                   &parameters->persistent_region, "persistent params"));
    return add_slots(parameters, table);
}

enum status parameters_init(struct parameters *parameters, const struct stage *stage, struct offload *offload,
                            struct region_table *table) {
    const enum region_place place = stage->device->place;
    const bool shards = stage_shards_params(stage->config);
    *parameters = (struct parameters){.stage = stage, .offload = offload};
    if (!stage->options.offload_param)
        TRY(region_add(table, REGION_PARAMS, place, stage->type,
                       shards ? stage_shard_elements(stage) : params_memory(stage->params, place),
                       &parameters->stored_region, shards ? "params of the shard" : "params"));
    TRY(check_calls(stage));
    return shards ? init_stage3(parameters, table) : STATUS_OK;
}

// ---- addresses of tensors

// Returns the address of an element of a buffer in the compute type.
static void *at(const struct parameters *parameters, const void *base, size_t element) {
    return (void *)((uintptr_t)base + element * dtype_size(parameters->stage->type));
}

// Returns the address of tensor i where it is kept whole: in `stored` (stages 0 to 2) or in `persistent`
// (stage 3). NULL: it is not persistent.
static void *kept_at(const struct parameters *parameters, int i) {
    const struct params *params = parameters->stage->params;
    const struct param *param = &params->params[i];
    if (!stage_shards_params(parameters->stage->config))
        return at(parameters, parameters->stored, params->units[param->unit].offset + param->offset);
    const size_t kept = parameters->persistent_offset[i];
    return kept == NOT_PERSISTENT ? NULL : at(parameters, parameters->persistent, kept);
}

static void list_tensors(struct parameters *parameters) {
    const struct stage *stage = parameters->stage;
    const int n = stage->params->n_params;
    parameters->tensors =
        allocate((1 + (size_t)parameters->n_slots) * (size_t)n, sizeof *parameters->tensors);
    for (int i = 0; i < n; i++)
        parameters->tensors[i] = kept_at(parameters, i);
    for (int k = 0; k < parameters->n_slots; k++) {
        struct gather_slot *slot = &parameters->slots[k];
        slot->tensors = parameters->tensors + (1 + k) * (ptrdiff_t)n;
        for (int i = 0; i < n; i++)
            slot->tensors[i] = parameters->tensors[i]
                                   ? parameters->tensors[i]
                                   : tensor_at(&stage->params->params[i], slot->data, stage->type);
    }
}

enum status parameters_bind(struct parameters *parameters, const struct region_table *table) {
    const struct stage *stage = parameters->stage;
    parameters->stored = stage->options.offload_param ? placement_host_params(parameters->offload->placement)
                                                      : region_data(table, parameters->stored_region);
    if (stage_shards_params(stage->config))
        parameters->persistent = region_data(table, parameters->persistent_region);
    for (int i = 0; i < parameters->n_slots; i++) {
        parameters->slots[i].data = region_data(table, parameters->slots[i].region);
        TRY(event_init(&parameters->slots[i].loaded, stage->device));
    }
    parameters_build_buckets(parameters);
    list_tensors(parameters);
    return STATUS_OK;
}

void parameters_free(struct parameters *parameters) {
    buckets_free(&parameters->update_buckets);
    for (int i = 0; i < parameters->n_slots; i++)
        event_free(&parameters->slots[i].loaded);
    for (int unit = 0; parameters->fetches && unit < parameters->stage->params->n_units; unit++)
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
    return at(parameters, parameters->stored,
              stage_span_offset(span, !stage_shards_params(parameters->stage->config)));
}

// ---- stage 3: fetches

// With offload_param: copies this rank's spans of a unit's tensors from the host.
//   persistent   true: only the persistent tensors; false: only the other tensors
//   base         address of parameters->persistent or, for the other tensors, of the unit's slot
static enum status load_tensors(struct parameters *parameters, struct stream *stream, int unit,
                                bool persistent, void *base) {
    const struct stage *stage = parameters->stage;
    for (int k = stage->owned.first[unit]; k < stage->owned.first[unit + 1]; k++) {
        const struct stage_span *span = &stage->owned.spans[k];
        for (struct param_overlap it = {0};
             params_next_overlap(stage->params, unit, span->begin, span->end, &it);) {
            size_t offset = parameters->persistent_offset[it.param];
            if ((offset != NOT_PERSISTENT) != persistent)
                continue;
            size_t to = persistent ? offset + (it.begin - stage->params->params[it.param].offset) : it.begin;
            TRY(stage->device->copy(
                stream, at(parameters, base, to),
                at(parameters, parameters->stored, span->shard_offset + (it.begin - span->begin)),
                (it.end - it.begin) * dtype_size(stage->type)));
        }
    }
    return STATUS_OK;
}

static enum status start_fetch(struct parameters *parameters, struct stream *stream, int unit,
                               struct gather_slot *slot) {
    const struct stage *stage = parameters->stage;
    const struct buckets *buckets = parameters->fetches[unit].buckets;
    const void *from = at(parameters, parameters->stored, stage_unit_shard(&stage->owned, unit));
    slot->fetch = unit;
    parameters->n_fetches++;
    if (stage->options.offload_param) {
        TRY(offload_upload_stream(parameters->offload, stream, &stream));
        TRY(load_tensors(parameters, stream, unit, false, slot->data));
        TRY(event_record(&slot->loaded, stream));
        from = slot->data;
    }
    for (int i = 0; i < buckets->n_calls; i++)
        TRY(comm_all_gather(stage->comm, stream, &buckets->calls[i], from, slot->data, stage->type,
                            &slot->work));
    return STATUS_OK;
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
    const struct stage *stage = parameters->stage;
    const int first = stage->params->units[unit].first_param;
    if (!stage_shards_params(stage->config) || parameters->fetches[unit].persists) {
        *out = parameters->tensors + first;
        return STATUS_OK;
    }
    const struct gather_step *step = &parameters->pass->steps[event];
    struct gather_slot *slot = &parameters->slots[step->slot];
    if (slot->fetch != unit)
        TRY(start_fetch(parameters, stream, unit, slot));
    TRY(comm_wait(stage->comm, stream, slot->work));
    if (stage->options.offload_param)
        TRY(event_wait(&slot->loaded, stream));
    *out = slot->tensors + first;
    return fetch_ahead(parameters, stream, step);
}

enum status parameters_release(struct parameters *parameters, struct stream *stream, int event) {
    if (!stage_shards_params(parameters->stage->config) || parameters->pass->events[event].fetch == NO_FETCH)
        return STATUS_OK;
    const struct gather_step *step = &parameters->pass->steps[event];
    parameters->slots[step->slot].fetch = NO_FETCH;
    return fetch_ahead(parameters, stream, step);
}

static enum status gather(struct parameters *parameters, struct stream *stream,
                          const struct buckets *buckets) {
    const struct stage *stage = parameters->stage;
    comm_work work;
    void *to = stage_shards_params(stage->config) ? parameters->persistent : parameters->stored;
    const void *from = parameters->stored;
    struct stream *in = stream;
    if (stage->options.offload_param) {
        TRY(offload_upload_stream(parameters->offload, stream, &in));
        for (int unit = 0; unit < stage->params->n_units; unit++)
            TRY(load_tensors(parameters, in, unit, true, parameters->persistent));
        from = parameters->persistent;
    }
    for (int i = 0; i < buckets->n_calls; i++)
        TRY(comm_all_gather(stage->comm, in, &buckets->calls[i], from, to, stage->type, &work));
    if (stage->options.offload_param)
        TRY(offload_params_wait(parameters->offload, stream));
    return comm_wait(stage->comm, stream, COMM_WORK_ALL);
}

enum status parameters_gather_updated(struct parameters *parameters, struct stream *stream) {
    return gather(parameters, stream, &parameters->update_buckets);
}

enum status parameters_gather_loaded(struct parameters *parameters, struct stream *stream) {
    struct buckets buckets;
    build_gather(parameters, true, &buckets);
    enum status status = gather(parameters, stream, &buckets);
    buckets_free(&buckets);
    return status;
}
