// Model states held whole. The hooks have nothing to gather or release: they point into the spans.
#include "zero/state.h"

#include <string.h>

#include "kernels/ops.h"

static enum status acquire(void *context, struct stream *stream, int unit, enum gpt_pass pass,
                           struct unit_view *view) {
    const struct state *state = context;
    (void)stream;
    size_t offset = state->params->units[unit].offset;
    view->params = (char *)state->compute + offset * dtype_size(state->type);
    view->grads = pass == GPT_BACKWARD ? (char *)state->grads + offset * sizeof(float) : NULL;
    return STATUS_OK;
}

static enum status release(void *context, struct stream *stream, int unit, enum gpt_pass pass) {
    (void)context, (void)stream, (void)unit, (void)pass;
    return STATUS_OK;
}

static enum status ready(void *context, struct stream *stream, int unit) {
    (void)context, (void)stream, (void)unit;
    return STATUS_OK;
}

// AdamW keeps two moments, SGD one, and none without momentum.
static int count_kinds(const struct config *config) {
    if (strcmp(config->optimizer.type, "adamw") == 0)
        return 3;
    return config->optimizer.momentum > 0 ? 2 : 1;
}

enum status state_init(struct state *state, const struct params *params, const struct config *config,
                       enum dtype type, struct device *device, struct region_table *table) {
    *state = (struct state){.params = params, .device = device, .type = type, .n_kinds = count_kinds(config)};
    state->hooks = (struct unit_hooks){state, acquire, release, ready};
    size_t n = params->n_elements;
    TRY(region_add(table, REGION_PARAMS, device->place, type, n, &state->params_region, "params"));
    TRY(region_add(table, REGION_GRADS, device->place, DTYPE_F32, n, &state->grads_region, "grads"));
    state->kind_regions[CHECKPOINT_MASTER] = state->params_region;
    if (type != DTYPE_F32)
        TRY(region_add(table, REGION_MASTER, device->place, DTYPE_F32, n,
                       &state->kind_regions[CHECKPOINT_MASTER], "master"));
    for (int kind = CHECKPOINT_M; kind < state->n_kinds; kind++)
        TRY(region_add(table, REGION_MOMENTS, device->place, DTYPE_F32, n, &state->kind_regions[kind], "%s",
                       checkpoint_kind_name((enum checkpoint_kind)kind)));
    return region_add(table, REGION_DATA, REGION_HOST, DTYPE_F32, CHECKPOINT_CHUNK, &state->bounce_region,
                      "bounce");
}

void state_bind(struct state *state, const struct region_table *table) {
    state->compute = region_data(table, state->params_region);
    state->grads = region_data(table, state->grads_region);
    for (int kind = 0; kind < state->n_kinds; kind++)
        state->kinds[kind] = region_data(table, state->kind_regions[kind]);
    state->bounce = region_data(table, state->bounce_region);
}

static float *element(const struct state *state, int kind, int unit, size_t index) {
    return (float *)state->kinds[kind] + state->params->units[unit].offset + index;
}

static enum status load_unit(struct state *state, struct stream *stream,
                             const struct checkpoint_source *source, int kind, int unit) {
    size_t n = state->params->units[unit].elements;
    for (size_t begin = 0; begin < n; begin += CHECKPOINT_CHUNK) {
        size_t end = n - begin < CHECKPOINT_CHUNK ? n : begin + CHECKPOINT_CHUNK;
        TRY(source->read(source->context, (enum checkpoint_kind)kind, unit, begin, end, state->bounce));
        TRY(state->device->copy(stream, element(state, kind, unit, begin), state->bounce,
                                (end - begin) * sizeof(float)));
        TRY(state->device->synchronize(stream));
    }
    return STATUS_OK;
}

enum status state_load(struct state *state, struct stream *stream, const struct checkpoint_source *source,
                       bool all_kinds) {
    const struct ops *ops = state->device->ops;
    size_t n = state->params->n_elements;
    for (int kind = 0; kind < state->n_kinds; kind++) {
        if (kind == CHECKPOINT_MASTER || all_kinds)
            for (int unit = 0; unit < state->params->n_units; unit++)
                TRY(load_unit(state, stream, source, kind, unit));
        else
            TRY(ops->fill(stream, &(struct fill_args){.out = state->kinds[kind], .n = n, .type = DTYPE_F32}));
    }
    if (state->type != DTYPE_F32)
        TRY(ops->cast(stream, &(struct cast_args){.out = state->compute,
                                                  .x = state->kinds[CHECKPOINT_MASTER],
                                                  .n = n,
                                                  .type = DTYPE_F32,
                                                  .out_type = state->type}));
    return state->device->synchronize(stream);
}

static enum status read_state(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                              float *out) {
    struct state_reader *reader = context;
    struct state *state = reader->state;
    TRY(state->device->copy(reader->stream, out, element(state, (int)kind, unit, begin),
                            (end - begin) * sizeof(float)));
    return state->device->synchronize(reader->stream);
}

struct checkpoint_source state_source(struct state_reader *reader) {
    return (struct checkpoint_source){reader, read_state};
}

enum status state_clear_grads(struct state *state, struct stream *stream) {
    return state->device->ops->fill(
        stream, &(struct fill_args){.out = state->grads, .n = state->params->n_elements, .type = DTYPE_F32});
}
