// One operation per rule updates all spans of the device. These operations are issued before the host
// updates its own spans.
#include "zero/optimizer/optimizer.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "kernels/update.h"
#include "zero/optimizer/averaging.h"

// ---- planning and binding

static bool is_next_on_device(const struct placement *placement, int *i) {
    while (*i < placement->n_spans && placement->spans[*i].on_host)
        ++*i;
    return *i < placement->n_spans;
}

// A span that the device updates element by element.
struct device_span {
    int i; // index in placement.spans of the span that contains it
    struct group_span span;
};

// Moves *at to the next span that the device updates element by element; begin with {0}. Returns false at the
// end. Adjacent tensors of one optimizer group form one span.
static bool next_device_span(const struct optimizer *optimizer, struct device_span *at) {
    const struct optimizer_group *groups = optimizer->state->groups.groups;
    const struct placement *placement = &optimizer->state->placement;
    for (; is_next_on_device(placement, &at->i); at->i++, at->span = (struct group_span){0})
        while ((at->span = placement_next_group_span(placement, &placement->spans[at->i], &at->span)).n > 0)
            if (optimizer_group_is_elementwise(&groups[at->span.group]))
                return true;
    return false;
}

static enum optimizer_rule rule_of(const struct optimizer *optimizer, const struct group_span *span) {
    return optimizer->state->groups.groups[span->group].rule;
}

// Sets, for each elementwise rule, the arguments that its groups share. Groups with the same rule differ only
// in learning rate and weight decay. Also counts the spans of each rule. Returns false if no group has an
// elementwise rule.
static bool init_rules(struct optimizer *optimizer) {
    const struct stage *stage = &optimizer->state->stage;
    const struct optimizer_groups *groups = &optimizer->state->groups;
    bool any = false;
    for (int i = 0; i < groups->n; i++) {
        const struct optimizer_group *group = &groups->groups[i];
        if (!optimizer_group_is_elementwise(group))
            continue;
        const struct optimizer_step_args step = optimizer_group_step(stage->config, group, 1, 0);
        optimizer->spans[group->rule] =
            (struct optimizer_spans_args){.rule = step.rule,
                                          .n_moments = group->n_moments,
                                          .has_param = stage->type != DTYPE_F32,
                                          .beta1 = step.beta1,
                                          .beta2 = step.beta2,
                                          .epsilon = step.epsilon,
                                          .type = stage->type,
                                          .grad_type = DTYPE_F32,
                                          .state_type = optimizer->state->placement.moment_type};
        any = true;
    }
    for (struct device_span at = {0}; next_device_span(optimizer, &at); optimizer->n_spans++)
        optimizer->spans[rule_of(optimizer, &at.span)].n_spans++;
    return any;
}

enum status optimizer_init(struct optimizer *optimizer, struct model_states *state,
                           struct region_table *table) {
    const struct stage *stage = &state->stage;
    *optimizer = (struct optimizer){.state = state};
    TRY(step_control_init(&optimizer->control, stage, table));
    TRY(muon_init(&optimizer->muon, state, table));
    if (!init_rules(optimizer))
        return STATUS_OK;
    // A rank has at most one span that begins in each tensor. The size is an upper bound that is the same
    // on all ranks, because plans look only at the ranks with the most and the fewest elements.
    assert(optimizer->n_spans <= stage->params->n_params);
    return region_add(table, REGION_DATA, stage->device->place, DTYPE_U8,
                      (size_t)stage->params->n_params * sizeof *optimizer->spans->spans,
                      &optimizer->spans_region, "optimizer: table of spans");
}

static struct optimizer_span span_at(const struct optimizer *optimizer, const struct device_span *at) {
    const struct model_states *state = optimizer->state;
    const struct placement_span *placed = &state->placement.spans[at->i];
    const struct optimizer_group *group = &state->groups.groups[at->span.group];
    const size_t offset = at->span.offset;
    return (struct optimizer_span){
        .state = model_states_optimizer_at(state, placed, offset),
        .param = state->stage.type == DTYPE_F32 ? NULL : model_states_params_at(state, placed, offset),
        .grad = model_states_gradients_at(state, placed) + offset,
        .n = at->span.n,
        .first = state->stage.params->units[placed->span.unit].offset + placed->span.begin + offset,
        .lr_scale = group->lr_scale,
        .weight_decay = group->weight_decay,
        .group = at->span.group};
}

// Lists the spans of each rule, one rule after another. `there` is the address of the lists in device memory.
static void list_spans(struct optimizer *optimizer, struct optimizer_span *spans,
                       const struct optimizer_span *there) {
    size_t first = 0;
    for (int rule = 0; rule < N_OPTIMIZER_RULES; rule++) {
        struct optimizer_spans_args *all = &optimizer->spans[rule];
        all->spans = there + first;
        all->plan = &optimizer->control.memory->plan;
        all->result = &optimizer->control.memory->result;
        for (struct device_span at = {0}; all->n_spans > 0 && next_device_span(optimizer, &at);) {
            if ((int)rule_of(optimizer, &at.span) != rule)
                continue;
            struct optimizer_span *span = &spans[first++];
            *span = span_at(optimizer, &at);
            span->first_tile = all->n_tiles;
            all->n += span->n;
            all->n_tiles += (span->n + OPTIMIZER_TILE - 1) / OPTIMIZER_TILE;
        }
    }
}

// Writes the list of the spans that the device updates to device memory.
static enum status bind_spans(struct optimizer *optimizer, const struct region_table *table,
                              struct stream *stream) {
    if (optimizer->n_spans == 0)
        return STATUS_OK;
    struct optimizer_span *spans = allocate((size_t)optimizer->n_spans, sizeof *spans);
    void *there = region_data(table, optimizer->spans_region);
    list_spans(optimizer, spans, there);
    enum status status =
        stream->device->copy(stream, there, spans, (size_t)optimizer->n_spans * sizeof *spans);
    if (status == STATUS_OK)
        status = stream->device->synchronize(stream);
    free(spans);
    return status;
}

enum status optimizer_bind(struct optimizer *optimizer, const struct region_table *table) {
    struct stream stream;
    TRY(step_control_bind(&optimizer->control, table));
    struct step_memory *memory = optimizer->control.memory;
    norm_bind(&optimizer->state->norm, table, optimizer->control.sums);
    if (optimizer->n_spans == 0 && optimizer->muon.rounds.n_rounds == 0)
        return STATUS_OK;
    TRY(stream_init(&stream, optimizer->state->stage.device));
    enum status status = bind_spans(optimizer, table, &stream);
    if (status == STATUS_OK)
        status = muon_bind(&optimizer->muon, table, &stream, &memory->plan, &memory->result);
    stream_free(&stream);
    return status;
}

void optimizer_free(struct optimizer *optimizer) {
    muon_free(&optimizer->muon);
    step_control_free(&optimizer->control);
    *optimizer = (struct optimizer){0};
}

// ---- the norm

static enum status add_norms(struct optimizer *optimizer, struct stream *stream) {
    struct model_states *state = optimizer->state;
    const struct owned_spans *owned = &state->stage.owned_trained;
    for (int i = 0; i < owned->n; i++)
        TRY(norm_add(&state->norm, stream, gradients_at(&state->gradients, &owned->spans[i]),
                     owned->spans[i].end - owned->spans[i].begin));
    return STATUS_OK;
}

enum status optimizer_norm(struct optimizer *optimizer, struct stream *stream, double *norm) {
    struct model_states *state = optimizer->state;
    if (state->stage.options.offload_optimizer)
        return offload_norm(&state->offload, norm);
    TRY(add_norms(optimizer, stream));
    return norm_finish(&state->norm, stream, norm);
}

// ---- updates on the host

static enum status step_span(const struct optimizer *optimizer, const struct step_message *decision,
                             struct stream *stream, const struct placement_span *placed,
                             const struct group_span *span, void *param) {
    const struct model_states *state = optimizer->state;
    struct optimizer_step_args args = optimizer_group_step(
        state->stage.config, &state->groups.groups[span->group], decision->plan.step, decision->plan.lr);
    args.state = model_states_optimizer_at(state, placed, span->offset);
    args.param = param;
    args.grad = model_states_gradients_at(state, placed) + span->offset;
    args.n = span->n;
    args.first = state->stage.params->units[placed->span.unit].offset + placed->span.begin + span->offset;
    args.grad_scale = decision->result.grad_scale;
    args.average_weight = decision->plan.average_weight;
    args.type = state->stage.type;
    args.grad_type = DTYPE_F32;
    args.state_type = state->placement.moment_type;
    return stream->device->ops->optimizer_step(stream, &args);
}

// Updates a span in chunks. Each chunk is copied to the device while the next one is updated.
static enum status step_on_host(const struct optimizer *optimizer, const struct step_message *decision,
                                const struct placement_span *placed) {
    struct model_states *state = optimizer->state;
    struct offload *offload = &state->offload;
    struct stream host = {.device = state->stage.host};
    struct group_span span = {0};
    while ((span = placement_next_group_span(&state->placement, placed, &span)).n > 0) {
        for (size_t done = 0; done < span.n; done += OFFLOAD_CHUNK) {
            size_t left = span.n - done;
            struct group_span chunk = {.offset = span.offset + done,
                                       .n = left < OFFLOAD_CHUNK ? left : OFFLOAD_CHUNK,
                                       .group = span.group};
            void *param;
            TRY(offload_params_buffer(offload, placed, chunk.offset, &param));
            TRY(step_span(optimizer, decision, &host, placed, &chunk, param));
            TRY(offload_params_send(offload, placed, chunk.offset, chunk.n,
                                    model_states_params_at(state, placed, chunk.offset)));
        }
    }
    return STATUS_OK;
}

static enum status step_unit(const struct optimizer *optimizer, const struct step_message *decision,
                             int unit) {
    struct model_states *state = optimizer->state;
    const struct placement *placement = &state->placement;
    TRY(offload_wait(&state->offload, unit));
    for (int i = placement->first_span[unit]; i < placement->first_span[unit + 1]; i++)
        if (placement->spans[i].on_host && !placement->spans[i].is_frozen)
            TRY(step_on_host(optimizer, decision, &placement->spans[i]));
    return STATUS_OK;
}

// ---- updates on host and device

// Updates the host's spans, unit by unit in the order in which gradients become ready.
static enum status step_host(const struct optimizer *optimizer, const struct step_message *decision) {
    for (int unit = optimizer->state->stage.params->n_units - 1; unit >= 0; unit--)
        TRY(step_unit(optimizer, decision, unit));
    return STATUS_OK;
}

struct update_plan optimizer_plan(const struct optimizer *optimizer, int64_t step, double lr,
                                  double loss_scale, double weighted_targets) {
    struct update_plan plan = {.step = step,
                               .lr = lr,
                               .loss_scale = loss_scale,
                               .loss_factor = (float)(loss_scale / weighted_targets)};
    for (int i = 0; i < optimizer->state->groups.n; i++) {
        const struct optimizer_step_args args = optimizer_group_step(
            optimizer->state->stage.config, &optimizer->state->groups.groups[i], step, lr);
        plan.constants[i] = optimizer_constants_of(&args);
    }
    return plan;
}

static enum status update_on_device(const struct optimizer *optimizer, struct stream *stream) {
    for (int rule = 0; rule < N_OPTIMIZER_RULES; rule++)
        if (optimizer->spans[rule].n_spans > 0)
            TRY(stream->device->ops->optimizer_spans(stream, &optimizer->spans[rule]));
    return muon_update(&optimizer->muon, stream);
}

enum status optimizer_update(struct optimizer *optimizer, struct stream *stream,
                             const struct update_plan *plan, const struct update_result *result) {
    struct model_states *state = optimizer->state;
    const struct step_message decision = {.plan = *plan, .result = *result};
    if (optimizer->n_spans > 0 || optimizer->muon.rounds.n_rounds > 0) {
        TRY(step_control_send_decision(&optimizer->control, stream, &decision));
        TRY(update_on_device(optimizer, stream));
    }
    if (state->stage.options.offload_optimizer) {
        TRY(step_host(optimizer, &decision));
        TRY(offload_params_wait(&state->offload, stream));
    }
    TRY(average_update(state, stream, NULL, NULL, plan->average_weight));
    return parameters_gather_updated(&state->parameters, stream);
}

// Communicates as an update does, but changes nothing. Plans assume this communication in every step.
enum status optimizer_skip(struct optimizer *optimizer, struct stream *stream) {
    TRY(muon_skip(&optimizer->muon, stream));
    return parameters_gather_updated(&optimizer->state->parameters, stream);
}

// ---- a step on which the device decides

bool optimizer_decides_on_device(const struct optimizer *optimizer) {
    const struct model_states *state = optimizer->state;
    return comm_on_device(state->stage.comm) && !state->stage.options.offload_optimizer;
}

enum status optimizer_decide(struct optimizer *optimizer, struct stream *stream) {
    struct model_states *state = optimizer->state;
    struct step_memory *memory = optimizer->control.memory;
    TRY(add_norms(optimizer, stream));
    TRY(norm_end(&state->norm, stream));
    TRY(step_control_decide(&optimizer->control, stream));
    TRY(update_on_device(optimizer, stream));
    TRY(average_update(state, stream, &memory->plan, &memory->result, 0));
    return parameters_gather_updated(&state->parameters, stream);
}
