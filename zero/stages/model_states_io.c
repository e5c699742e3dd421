// Loading and saving the model states, CHECKPOINT_CHUNK elements at a time, through buffers in host memory.
#include "zero/stages/model_states.h"

#include <string.h>

#include "base/processors.h"
#include "kernels/moments.h"
#include "kernels/ops.h"
#include "model/param_overlap.h"

// Copies `bytes` of one array of a span, from or to host memory.
static enum status copy_array(const struct model_states *state, struct stream *stream,
                              const struct placement_span *placed, void *to, const void *from, size_t bytes) {
    if (placed->on_host) {
        memcpy(to, from, bytes);
        return STATUS_OK;
    }
    TRY(state->stage.device->copy(stream, to, from, bytes));
    return state->stage.device->synchronize(stream);
}

// The kinds that every element has, in fp32: master weights, and the average.
static float *whole_array(const struct model_states *state, const struct placement_span *placed, int kind,
                          size_t offset) {
    return kind == CHECKPOINT_AVERAGE ? placement_array_at(&state->placement, placed, STATE_AVERAGE, offset)
                                      : model_states_optimizer_at(state, placed, offset).master;
}

static void moments_of_kind(const struct optimizer_state *at, int kind, enum moment *moment, void **codes,
                            float **scales) {
    bool first = kind == CHECKPOINT_M;
    *moment = first ? FIRST_MOMENT : SECOND_MOMENT;
    *codes = first ? at->m : at->v;
    *scales = first ? at->m_scales : at->v_scales;
}

static size_t blocks_of(size_t n) {
    return (n + MOMENT_BLOCK - 1) / MOMENT_BLOCK;
}

// Stores state->values as elements [offset, offset + n) of a span, in the moments' type.
static enum status store_chunk(struct model_states *state, struct stream *stream,
                               const struct placement_span *placed, int kind, size_t offset, size_t n) {
    const struct optimizer_state at = model_states_optimizer_at(state, placed, offset);
    enum dtype type = state->placement.moment_type;
    enum moment moment;
    void *codes;
    float *scales;
    if (kind == CHECKPOINT_MASTER || kind == CHECKPOINT_AVERAGE)
        return copy_array(state, stream, placed, whole_array(state, placed, kind, offset), state->values,
                          n * sizeof(float));
    moments_of_kind(&at, kind, &moment, &codes, &scales);
    if (!codes) // these elements have no such moment
        return STATUS_OK;
    if (type == DTYPE_F32)
        return copy_array(state, stream, placed, codes, state->values, n * sizeof(float));
    moments_store(type, moment, state->values, n, state->codes, state->scales);
    TRY(copy_array(state, stream, placed, codes, state->codes, n * dtype_size(type)));
    return scales ? copy_array(state, stream, placed, scales, state->scales, blocks_of(n) * sizeof(float))
                  : STATUS_OK;
}

// Reads elements [offset, offset + n) of a span into `out`, in fp32.
static enum status read_chunk(struct model_states *state, struct stream *stream,
                              const struct placement_span *placed, int kind, size_t offset, size_t n,
                              float *out) {
    const struct optimizer_state at = model_states_optimizer_at(state, placed, offset);
    enum dtype type = state->placement.moment_type;
    enum moment moment;
    void *codes;
    float *scales;
    if (kind == CHECKPOINT_MASTER || kind == CHECKPOINT_AVERAGE)
        return copy_array(state, stream, placed, out, whole_array(state, placed, kind, offset),
                          n * sizeof(float));
    moments_of_kind(&at, kind, &moment, &codes, &scales);
    if (!codes) {
        memset(out, 0, n * sizeof *out);
        return STATUS_OK;
    }
    if (type == DTYPE_F32)
        return copy_array(state, stream, placed, out, codes, n * sizeof(float));
    TRY(copy_array(state, stream, placed, state->codes, codes, n * dtype_size(type)));
    if (scales)
        TRY(copy_array(state, stream, placed, state->scales, scales, blocks_of(n) * sizeof(float)));
    moments_load(type, moment, state->codes, state->scales, n, out);
    return STATUS_OK;
}

// Rounds n loaded master weights of a span to the compute type, as parameters.
static enum status round_chunk(struct model_states *state, struct stream *stream,
                               const struct placement_span *placed, size_t offset, size_t n) {
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

// NUMA: memory is allocated on the node that touches it first, so each thread zeroes what it will update. The
// values do not change: new memory is zero.
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
            {.out = whole_array(state, placed, CHECKPOINT_AVERAGE, span.offset),
             .n = span.n,
             .type = DTYPE_F32},
        };
        for (size_t i = 0; i < sizeof fills / sizeof *fills; i++)
            if (fills[i].out)
                TRY(device->ops->fill(placed->on_host ? &host : stream, &fills[i]));
    }
    return STATUS_OK;
}

// Moments of tensors that another rule wrote, or that had none, are as before a first step: zero.
// Schedule-free AdamW's m, a point beside the weights, begins there.
static enum status read_moments(const struct model_states *state, const struct checkpoint_source *source,
                                int unit, enum checkpoint_kind kind, size_t begin, size_t end, float *out) {
    memset(out, 0, (end - begin) * sizeof *out); // padding
    for (struct param_overlap it = {0}; params_next_overlap(state->stage.params, unit, begin, end, &it);) {
        const struct optimizer_group *group = optimizer_group_of(&state->stage.groups, it.param);
        const bool keeps =
                       optimizer_groups_keep(source->written_by, &state->stage.groups, it.param, (int)kind),
                   is_point = group->rule == OPTIMIZER_SCHEDULE_FREE && kind == CHECKPOINT_M;
        if (keeps || is_point)
            TRY(source->read(source->context, keeps ? kind : CHECKPOINT_MASTER, unit, it.begin, it.end,
                             out + (it.begin - begin)));
    }
    return STATUS_OK;
}

// One kind of a chunk, through state->values.
static enum status load_kind(struct model_states *state, struct stream *stream,
                             const struct checkpoint_source *source, const struct placement_span *placed,
                             enum checkpoint_kind kind, size_t begin, size_t end) {
    if (source->written_by && (kind == CHECKPOINT_M || kind == CHECKPOINT_V))
        TRY(read_moments(state, source, placed->span.unit, kind, begin, end, state->values));
    else
        TRY(source->read(source->context, kind, placed->span.unit, begin, end, state->values));
    return store_chunk(state, stream, placed, (int)kind, begin - placed->span.begin, end - begin);
}

// Moments that the span's tensors do not have are not read. Those that are not loaded stay zero, as
// allocated.
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
        if (source->has_average && state->placement.has_average)
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
    return parameters_gather_updated(&state->parameters, stream);
}

// A checkpoint's span may begin in the host's placement span and end in the device's.
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
                                     .n_moments = state->stage.groups.n_moments_of};
}
