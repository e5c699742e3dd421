// Plans where each model state is stored. Compares each hook call with the trace, and passes it on to
// zero/stages/parameters.c and zero/stages/gradients.c, which communicate.
#include "zero/stages/model_states.h"

#include <string.h>

#include "base/processors.h"
#include "kernels/moments.h"
#include "kernels/ops.h"
#include "model/params.h"

// ---- hooks

static enum status begin(void *context, enum trace_kind kind) {
    struct model_states *state = context;
    parameters_begin(&state->parameters, kind);
    return trace_begin(&state->cursor, &state->stage.traces[kind]);
}

static enum status acquire(void *context, struct stream *stream, int unit, enum gpt_pass pass,
                           struct unit_view *view) {
    struct model_states *state = context;
    *view = (struct unit_view){0};
    comm_progress(state->stage.comm);
    TRY(trace_follow(&state->cursor, &(struct trace_event){true, unit, pass, 0}));
    if (pass != GPT_BACKWARD_GRADS)
        TRY(parameters_acquire(&state->parameters, stream, state->cursor.next - 1, unit, &view->params));
    return gpt_pass_adds_grads(pass) ? gradients_acquire(&state->gradients, stream, unit, view) : STATUS_OK;
}

static enum status release(void *context, struct stream *stream, int unit, enum gpt_pass pass) {
    struct model_states *state = context;
    TRY(trace_follow(&state->cursor, &(struct trace_event){false, unit, pass, 0}));
    return parameters_release(&state->parameters, stream, state->cursor.next - 1);
}

static enum status ready(void *context, struct stream *stream, int unit) {
    struct model_states *state = context;
    return gradients_ready(&state->gradients, stream, unit);
}

// ---- planning and binding

static enum status add_chunk_regions(struct model_states *state, struct region_table *table) {
    enum dtype moments = state->placement.moment_type;
    TRY(region_add(table, REGION_DATA, REGION_HOST, DTYPE_F32, CHECKPOINT_CHUNK, &state->values_region,
                   "checkpoint chunk"));
    const bool rounds =
        state->stage.type != DTYPE_F32 && state->stage.params->n_trained < state->stage.params->n_elements;
    state->codes_region = -1;
    if (rounds || moments != DTYPE_F32)
        TRY(region_add(table, REGION_DATA, REGION_HOST, rounds ? state->stage.type : moments,
                       CHECKPOINT_CHUNK, &state->codes_region, "checkpoint chunk as stored"));
    if (moments == DTYPE_I8)
        TRY(region_add(table, REGION_DATA, REGION_HOST, DTYPE_F32, CHECKPOINT_CHUNK / MOMENT_BLOCK,
                       &state->scales_region, "checkpoint chunk of scales"));
    return STATUS_OK;
}

enum status model_states_init(struct model_states *state, const struct stage *given,
                              struct region_table *table) {
    *state = (struct model_states){.stage = *given,
                                   .hooks = {.context = state,
                                             .begin = begin,
                                             .params_acquire = acquire,
                                             .params_release = release,
                                             .grads_ready = ready}};
    const struct stage *stage = &state->stage;
    TRY(stage_init(&state->stage));
    TRY(optimizer_groups_init(&state->groups, stage->config, stage->params));
    TRY(placement_init(&state->placement, stage, &state->groups, table));
    TRY(offload_init(&state->offload, stage, &state->placement, &state->norm, table));
    TRY(parameters_init(&state->parameters, stage, &state->offload, table));
    TRY(gradients_init(&state->gradients, stage, &state->offload, table));
    TRY(norm_init(&state->norm, stage, table));
    return add_chunk_regions(state, table);
}

enum status model_states_bind(struct model_states *state, const struct region_table *table, struct comm *comm,
                              struct device *host) {
    state->stage.comm = comm;
    state->stage.host = host;
    placement_bind(&state->placement, table);
    TRY(parameters_bind(&state->parameters, table));
    gradients_bind(&state->gradients, table);
    TRY(offload_bind(&state->offload, table, gradients_source(&state->gradients), &state->gradients.sums));
    state->values = region_data(table, state->values_region);
    if (state->codes_region >= 0)
        state->codes = region_data(table, state->codes_region);
    if (state->placement.moment_type == DTYPE_I8)
        state->scales = region_data(table, state->scales_region);
    return STATUS_OK;
}

void model_states_free(struct model_states *state) {
    parameters_free(&state->parameters);
    gradients_free(&state->gradients);
    offload_free(&state->offload);
    placement_free(&state->placement);
    optimizer_groups_free(&state->groups);
    stage_free(&state->stage);
    *state = (struct model_states){0};
}

// ---- addresses

const struct placement_span *model_states_span_at(const struct model_states *state, int unit,
                                                  size_t element) {
    const struct placement *placement = &state->placement;
    for (int i = placement->first_span[unit]; i < placement->first_span[unit + 1]; i++)
        if (placement->spans[i].span.begin <= element && element < placement->spans[i].span.end)
            return &placement->spans[i];
    return NULL;
}

// Returns the address of a span's master weights, from its element `offset` on. With fp32 the device's
// master weights are the parameters themselves. With other types frozen tensors have none: NULL.
static float *master_at(const struct model_states *state, const struct placement_span *placed,
                        size_t offset) {
    if (!placed->on_host && state->stage.type == DTYPE_F32)
        return (float *)parameters_at(&state->parameters, &placed->span) + offset;
    return placement_array_at(&state->placement, placed, STATE_MASTER, offset);
}

struct optimizer_state model_states_optimizer_at(const struct model_states *state,
                                                 const struct placement_span *placed, size_t offset) {
    const struct placement *placement = &state->placement;
    return (struct optimizer_state){.master = master_at(state, placed, offset),
                                    .m = placement_array_at(placement, placed, STATE_M, offset),
                                    .v = placement_array_at(placement, placed, STATE_V, offset),
                                    .m_scales = placement_array_at(placement, placed, STATE_M_SCALES, offset),
                                    .v_scales =
                                        placement_array_at(placement, placed, STATE_V_SCALES, offset)};
}

float *model_states_gradients_at(const struct model_states *state, const struct placement_span *placed) {
    if (placed->on_host)
        return offload_gradients_at(&state->offload, placed);
    return offload_uses_staging(&state->offload) ? state->offload.to_host.source.data + placed->at
                                                 : gradients_at(&state->gradients, &placed->grads);
}

void *model_states_params_at(const struct model_states *state, const struct placement_span *placed,
                             size_t offset) {
    if (state->stage.options.offload_param)
        return NULL;
    return (char *)parameters_at(&state->parameters, &placed->span) + offset * dtype_size(state->stage.type);
}

// ---- loading and saving, CHECKPOINT_CHUNK elements at a time, through buffers in host memory

// Copies `bytes` of one array of a span from or to host memory, and waits for the copy.
static enum status copy_array(const struct model_states *state, struct stream *stream,
                              const struct placement_span *placed, void *to, const void *from, size_t bytes) {
    if (placed->on_host) {
        memcpy(to, from, bytes);
        return STATUS_OK;
    }
    TRY(state->stage.device->copy(stream, to, from, bytes));
    return state->stage.device->synchronize(stream);
}

// Where the values of one checkpoint kind are, for a span's elements from some offset on.
struct kept {
    void *values;    // NULL: the elements do not have this kind
    float *scales;   // int8 moments only
    enum dtype type; // dtype of `values`
    enum moment moment;
};

// True if a span has no master weights, so that checkpoints hold its parameters instead: it is frozen, and
// the compute type is a 16-bit type.
static bool is_rounded(const struct model_states *state, const struct placement_span *placed) {
    return placed->is_frozen && state->stage.type != DTYPE_F32;
}

static void *rounded_at(const struct model_states *state, const struct placement_span *placed,
                        size_t offset) {
    return placed->on_host ? placement_array_at(&state->placement, placed, STATE_PARAMS, offset)
                           : model_states_params_at(state, placed, offset);
}

static struct kept kept_at(const struct model_states *state, const struct placement_span *placed, int kind,
                           size_t offset) {
    const struct optimizer_state at = model_states_optimizer_at(state, placed, offset);
    const enum dtype type = state->placement.moment_type;
    switch (kind) {
    case CHECKPOINT_M:
        return (struct kept){at.m, at.m_scales, type, FIRST_MOMENT};
    case CHECKPOINT_V:
        return (struct kept){at.v, at.v_scales, type, SECOND_MOMENT};
    case CHECKPOINT_AVERAGE:
        if (placed->is_frozen) // weights that never change equal their average
            return kept_at(state, placed, CHECKPOINT_MASTER, offset);
        return (struct kept){.values = placement_array_at(&state->placement, placed, STATE_AVERAGE, offset),
                             .type = DTYPE_F32};
    default:
        if (is_rounded(state, placed))
            return (struct kept){.values = rounded_at(state, placed, offset), .type = state->stage.type};
        return (struct kept){.values = at.master, .type = DTYPE_F32};
    }
}

// Casts n elements from fp32 to the compute type or back, in host memory.
static enum status cast_chunk(const struct model_states *state, void *out, enum dtype out_type, const void *x,
                              enum dtype type, size_t n) {
    struct stream host = {.device = state->stage.host};
    return host.device->ops->cast(
        &host, &(struct cast_args){.out = out, .x = x, .n = n, .type = type, .out_type = out_type});
}

static size_t scale_bytes(size_t n) {
    return (n + MOMENT_BLOCK - 1) / MOMENT_BLOCK * sizeof(float);
}

// Stores state->values into the states: elements [offset, offset + n) of a span, of one checkpoint kind.
static enum status store_chunk(struct model_states *state, struct stream *stream,
                               const struct placement_span *placed, int kind, size_t offset, size_t n) {
    const struct kept kept = kept_at(state, placed, kind, offset);
    if (!kept.values)
        return STATUS_OK;
    if (kept.type == DTYPE_F32)
        return copy_array(state, stream, placed, kept.values, state->values, n * sizeof(float));
    if (is_rounded(state, placed)) {
        TRY(cast_chunk(state, state->codes, kept.type, state->values, DTYPE_F32, n));
        return copy_array(state, stream, placed, kept.values, state->codes, n * dtype_size(kept.type));
    }
    moments_store(kept.type, kept.moment, state->values, n, state->codes, state->scales);
    TRY(copy_array(state, stream, placed, kept.values, state->codes, n * dtype_size(kept.type)));
    return kept.scales ? copy_array(state, stream, placed, kept.scales, state->scales, scale_bytes(n))
                       : STATUS_OK;
}

// Reads elements [offset, offset + n) of a span, of one checkpoint kind, into `out`, in fp32.
static enum status read_chunk(struct model_states *state, struct stream *stream,
                              const struct placement_span *placed, int kind, size_t offset, size_t n,
                              float *out) {
    const struct kept kept = kept_at(state, placed, kind, offset);
    if (!kept.values) {
        memset(out, 0, n * sizeof *out);
        return STATUS_OK;
    }
    if (kept.type == DTYPE_F32)
        return copy_array(state, stream, placed, out, kept.values, n * sizeof(float));
    if (is_rounded(state, placed)) {
        TRY(copy_array(state, stream, placed, state->codes, kept.values, n * dtype_size(kept.type)));
        return cast_chunk(state, out, DTYPE_F32, state->codes, kept.type, n);
    }
    TRY(copy_array(state, stream, placed, state->codes, kept.values, n * dtype_size(kept.type)));
    if (kept.scales)
        TRY(copy_array(state, stream, placed, state->scales, kept.scales, scale_bytes(n)));
    moments_load(kept.type, kept.moment, state->codes, state->scales, n, out);
    return STATUS_OK;
}

// Rounds n loaded master weights of a span to the compute type, and stores them as parameters.
static enum status round_chunk(struct model_states *state, struct stream *stream,
                               const struct placement_span *placed, size_t offset, size_t n) {
    if (is_rounded(state, placed)) // store_chunk has stored the parameters
        return STATUS_OK;
    void *param = model_states_params_at(state, placed, offset);
    struct stream host = {.device = state->stage.host};
    struct cast_args cast = {.out = param,
                             .x = model_states_optimizer_at(state, placed, offset).master,
                             .n = n,
                             .type = DTYPE_F32,
                             .out_type = state->stage.type};
    if (!placed->on_host)
        return state->stage.type == DTYPE_F32 ? STATUS_OK : state->stage.device->ops->cast(stream, &cast);
    TRY(offload_params_buffer(&state->offload, placed, offset, &cast.out));
    if (cast.out)
        TRY(state->stage.host->ops->cast(&host, &cast));
    return offload_params_send(&state->offload, placed, offset, n, param);
}

// On a NUMA machine, memory is allocated on the node that touches it first. So each CPU thread zeroes the
// elements of a span's arrays that it will update. Values do not change, because new memory is zero.
static enum status touch_first(struct model_states *state, struct stream *stream,
                               const struct placement_span *placed) {
    struct device *device = placed->on_host ? state->stage.host : state->stage.device;
    struct stream host = {.device = state->stage.host};
    struct group_span span = {0};
    if (device->place != REGION_HOST || !numa_has_nodes())
        return STATUS_OK;
    while ((span = placement_next_group_span(&state->placement, placed, &span)).n > 0) {
        const struct optimizer_state at = model_states_optimizer_at(state, placed, span.offset);
        const size_t size = dtype_size(state->placement.moment_type);
        const struct fill_args fills[] = {
            {.out = at.master, .n = span.n, .type = DTYPE_F32},
            {.out = at.m, .n = span.n * size / sizeof(float), .type = DTYPE_F32},
            {.out = at.v, .n = span.n * size / sizeof(float), .type = DTYPE_F32},
            {.out = placement_array_at(&state->placement, placed, STATE_AVERAGE, span.offset),
             .n = span.n,
             .type = DTYPE_F32},
        };
        for (size_t i = 0; i < sizeof fills / sizeof *fills; i++)
            if (fills[i].out)
                TRY(device->ops->fill(placed->on_host ? &host : stream, &fills[i]));
    }
    return STATUS_OK;
}

// Reads moments that other optimizer groups wrote. A tensor's moment starts at zero, as in a new run, if
// another rule wrote it or the tensor did not have it. The exception is m of schedule-free AdamW, which
// stores z (zero/optimizer/averaging.h): z then starts at the weights.
static enum status read_moments(const struct model_states *state, const struct checkpoint_source *source,
                                int unit, enum checkpoint_kind kind, size_t begin, size_t end, float *out) {
    memset(out, 0, (end - begin) * sizeof *out); // moments that are not read, and padding, are zero
    for (struct param_overlap it = {0}; params_next_overlap(state->stage.params, unit, begin, end, &it);) {
        const struct optimizer_group *group = optimizer_group_of(&state->groups, it.param);
        const bool keeps = optimizer_groups_keep(source->written_by, &state->groups, it.param, (int)kind),
                   is_point = group->rule == OPTIMIZER_SCHEDULE_FREE && kind == CHECKPOINT_M;
        if (keeps || is_point)
            TRY(source->read(source->context, keeps ? kind : CHECKPOINT_MASTER, unit, it.begin, it.end,
                             out + (it.begin - begin)));
    }
    return STATUS_OK;
}

// Loads one kind of a chunk, through state->values.
static enum status load_kind(struct model_states *state, struct stream *stream,
                             const struct checkpoint_source *source, const struct placement_span *placed,
                             enum checkpoint_kind kind, size_t begin, size_t end) {
    if (source->written_by && (kind == CHECKPOINT_M || kind == CHECKPOINT_V))
        TRY(read_moments(state, source, placed->span.unit, kind, begin, end, state->values));
    else
        TRY(source->read(source->context, kind, placed->span.unit, begin, end, state->values));
    return store_chunk(state, stream, placed, (int)kind, begin - placed->span.begin, end - begin);
}

// Loads a span. Moments that the span's tensors do not have are not read. Moments that are not loaded stay
// zero, their initial value.
static enum status load_span(struct model_states *state, struct stream *stream,
                             const struct checkpoint_source *source, bool all_kinds,
                             const struct placement_span *placed) {
    const struct stage_span *span = &placed->span;
    TRY(touch_first(state, stream, placed));
    for (size_t begin = span->begin; begin < span->end; begin += CHECKPOINT_CHUNK) {
        size_t end = span->end - begin < CHECKPOINT_CHUNK ? span->end : begin + CHECKPOINT_CHUNK;
        size_t offset = begin - span->begin, n = end - begin;
        comm_progress(state->stage.comm);
        for (int kind = 0; kind <= (all_kinds ? placed->n_moments : CHECKPOINT_MASTER); kind++)
            TRY(load_kind(state, stream, source, placed, (enum checkpoint_kind)kind, begin, end));
        if (source->has_average && state->placement.has_average && !placed->is_frozen)
            TRY(load_kind(state, stream, source, placed, CHECKPOINT_AVERAGE, begin, end));
        TRY(round_chunk(state, stream, placed, offset, n));
    }
    return STATUS_OK;
}

enum status model_states_load(struct model_states *state, struct stream *stream,
                              const struct checkpoint_source *source, bool all_kinds) {
    state->shows_average = false;
    for (int i = 0; i < state->placement.n_spans; i++)
        TRY(load_span(state, stream, source, all_kinds, &state->placement.spans[i]));
    if (state->stage.options.offload_optimizer)
        TRY(offload_params_wait(&state->offload, stream));
    TRY(state->stage.device->synchronize(stream));
    return parameters_gather_loaded(&state->parameters, stream);
}

// Implements checkpoint_source.read. Elements [begin, end) may begin in a placement span of the host and
// end in one of the device.
static enum status read_state(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                              float *out) {
    struct state_reader *reader = context;
    struct model_states *state = reader->state;
    comm_progress(state->stage.comm);
    for (size_t at = begin; at < end;) {
        const struct placement_span *placed = model_states_span_at(state, unit, at);
        if (!placed)
            return FAIL(STATUS_FAILED,
                        "elements %zu to %zu of unit %d are not owned by this rank and cannot be saved by it",
                        begin, end, unit);
        size_t stop = placed->span.end < end ? placed->span.end : end;
        TRY(read_chunk(state, reader->stream, placed, (int)kind, at - placed->span.begin, stop - at,
                       out + (at - begin)));
        at = stop;
    }
    return STATUS_OK;
}

struct checkpoint_source model_states_source(struct state_reader *reader) {
    return (struct checkpoint_source){.context = reader, .read = read_state};
}

struct checkpoint_kinds model_states_kinds(const struct model_states *state) {
    return (struct checkpoint_kinds){.n = state->placement.n_kinds,
                                     .has_average = state->placement.has_average,
                                     .n_moments = state->groups.n_moments_of};
}
