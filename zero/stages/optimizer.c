// All spans of the device are updated by one call, issued before the host updates its own.
#include "zero/stages/optimizer.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/optimizer_constants.h"
#include "zero/stages/adafactor.h"

// ---- planning and binding

static bool is_next_on_device(const struct placement *placement, int *i) {
    while (*i < placement->n_spans && placement->spans[*i].on_host)
        ++*i;
    return *i < placement->n_spans;
}

// Adjacent tensors with the same weight decay are one span.
static int count_spans(const struct optimizer *optimizer) {
    const struct placement *placement = &optimizer->state->placement;
    int n = 0;
    for (int i = 0; is_next_on_device(placement, &i); i++)
        for (struct decay_span span = {0};
             (span = placement_next_decay_span(optimizer->state->params, &placement->spans[i], &span)).n > 0;)
            n++;
    return n;
}

enum status optimizer_init(struct optimizer *optimizer, const struct config *config,
                           struct model_states *state, struct region_table *table) {
    static const enum optimizer_rule rules[] = {[CONFIG_OPTIMIZER_ADAMW] = OPTIMIZER_ADAMW,
                                                [CONFIG_OPTIMIZER_ADAM] = OPTIMIZER_ADAM,
                                                [CONFIG_OPTIMIZER_SGD] = OPTIMIZER_SGD,
                                                [CONFIG_OPTIMIZER_LION] = OPTIMIZER_LION};
    *optimizer =
        (struct optimizer){.config = config, .state = state, .adafactor = state->second_moments.n > 0};
    TRY(step_control_plan(&optimizer->control, state->world, state->device, table));
    if (optimizer->adafactor)
        return STATUS_OK;
    const bool sgd = config->optimizer.type == CONFIG_OPTIMIZER_SGD;
    optimizer->rule = rules[config->optimizer.type];
    optimizer->spans = (struct optimizer_spans_args){.rule = optimizer->rule,
                                                     .n_spans = count_spans(optimizer),
                                                     .n_moments = state->placement.n_kinds - 1,
                                                     .has_param = state->type != DTYPE_F32,
                                                     .beta1 = sgd ? config->optimizer.momentum
                                                                  : config->optimizer.betas.value[0],
                                                     .beta2 = config->optimizer.betas.value[1],
                                                     .epsilon = config->optimizer.eps,
                                                     .weight_decay = config->optimizer.weight_decay,
                                                     .type = state->type,
                                                     .grad_type = DTYPE_F32,
                                                     .state_type = state->placement.moment_type};
    // A rank's spans of a unit are apart or contiguous, so no tensor begins two. Sized alike on all ranks, as
    // plans look only at those with the most and the fewest elements.
    assert(optimizer->spans.n_spans <= state->params->n_params);
    return region_add(table, REGION_DATA, state->device->place, DTYPE_U8,
                      (size_t)state->params->n_params * sizeof *optimizer->spans.spans,
                      &optimizer->spans_region, "optimizer: table of spans");
}

static void list_spans(struct optimizer *optimizer, struct optimizer_span *spans) {
    const struct model_states *state = optimizer->state;
    const struct placement *placement = &state->placement;
    struct optimizer_spans_args *all = &optimizer->spans;
    for (int i = 0; is_next_on_device(placement, &i); i++) {
        const struct placement_span *placed = &placement->spans[i];
        for (struct decay_span span = {0};
             (span = placement_next_decay_span(state->params, placed, &span)).n > 0;) {
            *spans++ = (struct optimizer_span){
                .state = model_states_optimizer_at(state, placed, span.offset, placement->current),
                .param = all->has_param ? model_states_params_at(state, placed, span.offset) : NULL,
                .grad = model_states_gradients_at(state, placed) + span.offset,
                .n = span.n,
                .first = state->params->units[placed->span.unit].offset + placed->span.begin + span.offset,
                .first_tile = all->n_tiles,
                .decay = span.decay};
            all->n += span.n;
            all->n_tiles += (span.n + OPTIMIZER_TILE - 1) / OPTIMIZER_TILE;
        }
    }
}

// Lists the spans that the device updates, in its memory.
static enum status bind_spans(struct optimizer *optimizer, const struct region_table *table) {
    struct device *device = optimizer->state->device;
    struct stream stream;
    const size_t bytes = (size_t)optimizer->spans.n_spans * sizeof *optimizer->spans.spans;
    if (bytes == 0)
        return STATUS_OK;
    struct optimizer_span *spans = malloc(bytes);
    if (!spans)
        return FAIL(STATUS_FAILED, "out of memory for a table of %d spans", optimizer->spans.n_spans);
    list_spans(optimizer, spans);
    void *there = region_data(table, optimizer->spans_region);
    optimizer->spans.spans = there;
    optimizer->spans.plan = &optimizer->control.memory->plan;
    optimizer->spans.result = &optimizer->control.memory->result;
    enum status status = stream_init(&stream, device);
    if (status == STATUS_OK)
        status = device->copy(&stream, there, spans, bytes);
    if (status == STATUS_OK)
        status = device->synchronize(&stream);
    stream_free(&stream);
    free(spans);
    return status;
}

// ---- the norm

static enum status add_norms(struct optimizer *optimizer, struct stream *stream) {
    struct model_states *state = optimizer->state;
    for (int i = 0; i < state->owned.n; i++)
        TRY(norm_add(&state->norm, stream, i, gradients_at(&state->gradients, &state->owned.spans[i])));
    return STATUS_OK;
}

enum status optimizer_norm(struct optimizer *optimizer, struct stream *stream, double *norm) {
    struct model_states *state = optimizer->state;
    if (state->options.offload_optimizer)
        return offload_norm(&state->offload, norm);
    TRY(add_norms(optimizer, stream));
    return norm_finish(&state->norm, stream, state->comm, norm);
}

enum status optimizer_losses(struct optimizer *optimizer, struct stream *stream, double *sum) {
    return step_control_losses(&optimizer->control, stream, sum);
}

// ---- updates of the host

// The arguments that all spans share. decay: weight decay applies.
static struct optimizer_step_args step_args(const struct optimizer *optimizer, int64_t step, double lr,
                                            bool decay) {
    const struct optimizer_spans_args *spans = &optimizer->spans;
    return (struct optimizer_step_args){.rule = spans->rule,
                                        .step = step,
                                        .lr = lr,
                                        .beta1 = spans->beta1,
                                        .beta2 = spans->beta2,
                                        .epsilon = spans->epsilon,
                                        .weight_decay = decay ? spans->weight_decay : 0,
                                        .type = spans->type,
                                        .grad_type = spans->grad_type,
                                        .state_type = spans->state_type};
}

static enum status step_span(const struct optimizer *optimizer, const struct optimizer_call *call,
                             struct stream *stream, const struct placement_span *placed,
                             const struct decay_span *span, const float *grad, void *param) {
    const struct model_states *state = optimizer->state;
    struct optimizer_step_args args = step_args(optimizer, call->step, call->lr, span->decay);
    args.from = model_states_optimizer_at(state, placed, span->offset, call->from);
    args.to = model_states_optimizer_at(state, placed, span->offset, call->to);
    args.param = param;
    args.grad = grad + span->offset;
    args.n = span->n;
    args.first = state->params->units[placed->span.unit].offset + placed->span.begin + span->offset;
    args.grad_scale = call->grad_scale;
    return stream->device->ops->optimizer_step(stream, &args);
}

// Each chunk is copied to the device while the next is updated. send: false for a speculative step, whose
// parameters are sent only when it is accepted.
static enum status step_on_host(const struct optimizer *optimizer, const struct optimizer_call *call,
                                const struct placement_span *placed, bool send) {
    struct model_states *state = optimizer->state;
    struct offload *offload = &state->offload;
    struct stream host = {.device = state->host};
    struct decay_span span = {0};
    while ((span = placement_next_decay_span(state->params, placed, &span)).n > 0)
        for (size_t done = 0; done < span.n; done += OFFLOAD_CHUNK) {
            size_t left = span.n - done;
            struct decay_span chunk = {.offset = span.offset + done,
                                       .n = left < OFFLOAD_CHUNK ? left : OFFLOAD_CHUNK,
                                       .decay = span.decay};
            void *param;
            TRY(offload_params_buffer(offload, placed, chunk.offset, call->to, &param));
            TRY(step_span(optimizer, call, &host, placed, &chunk, model_states_gradients_at(state, placed),
                          param));
            if (send)
                TRY(offload_params_send(offload, placed, chunk.offset, chunk.n, call->to,
                                        model_states_params_at(state, placed, chunk.offset)));
        }
    return STATUS_OK;
}

static enum status step_unit(const struct optimizer *optimizer, const struct optimizer_call *call, int unit,
                             bool send) {
    struct model_states *state = optimizer->state;
    const struct placement *placement = &state->placement;
    TRY(offload_wait(&state->offload, unit));
    for (int i = placement->first_span[unit]; i < placement->first_span[unit + 1]; i++)
        if (placement->spans[i].on_host)
            TRY(step_on_host(optimizer, call, &placement->spans[i], send));
    return STATUS_OK;
}

// ---- speculative steps

static enum status step_ahead(void *context, int unit) {
    const struct optimizer *optimizer = context;
    return step_unit(optimizer, &optimizer->expected, unit, false);
}

static void unit_sent(void *context, int unit) {
    struct optimizer *optimizer = context;
    speculation_give(optimizer->speculation, unit);
}

enum status optimizer_bind(struct optimizer *optimizer, const struct region_table *table) {
    struct model_states *state = optimizer->state;
    TRY(step_control_bind(&optimizer->control, table));
    TRY(bind_spans(optimizer, table));
    if (!state->options.offload_speculative)
        return STATUS_OK;
    TRY(speculation_new(step_ahead, optimizer, state->params->n_units, &optimizer->speculation));
    state->offload.on_sent = unit_sent;
    state->offload.on_sent_context = optimizer;
    return STATUS_OK;
}

void optimizer_free(struct optimizer *optimizer) {
    speculation_delete(optimizer->speculation);
    step_control_free(&optimizer->control);
    *optimizer = (struct optimizer){0};
}

static struct optimizer_call call_of(const struct optimizer *optimizer, int64_t step, double lr,
                                     double factor) {
    const struct placement *placement = &optimizer->state->placement;
    return (struct optimizer_call){.step = step,
                                   .lr = lr,
                                   .grad_scale = (float)factor,
                                   .from = placement->current,
                                   .to = placement->double_buffered ? 1 - placement->current
                                                                    : placement->current};
}

void optimizer_expect(struct optimizer *optimizer, int64_t step, double lr, double loss_scale) {
    optimizer->expected = call_of(optimizer, step, lr, 1 / loss_scale);
}

static bool is_as_expected(const struct optimizer *optimizer, const struct optimizer_call *call) {
    const struct optimizer_call *expected = &optimizer->expected;
    return call->step == expected->step && call->lr == expected->lr &&
           call->grad_scale == expected->grad_scale && call->to == expected->to;
}

// Makes the copy that was written the current one, and sends its parameters.
static enum status accept(struct optimizer *optimizer, const struct optimizer_call *call) {
    struct model_states *state = optimizer->state;
    struct placement *placement = &state->placement;
    for (int i = 0; i < placement->n_spans; i++) {
        const struct placement_span *placed = &placement->spans[i];
        if (placed->on_host)
            TRY(offload_params_send(&state->offload, placed, 0, placed->span.end - placed->span.begin,
                                    call->to, model_states_params_at(state, placed, 0)));
    }
    placement->current = call->to;
    if (state->options.offload_param)
        parameters_set_shard(&state->parameters, placement_host_params(placement));
    return STATUS_OK;
}

// ---- a step

// Units in the order in which their gradients arrive.
static enum status step_host(struct optimizer *optimizer, const struct optimizer_call *call) {
    int n_units = optimizer->state->params->n_units, n_done = 0;
    if (optimizer->speculation)
        TRY(speculation_wait(optimizer->speculation, &n_done));
    optimizer->stepped_ahead = n_done == n_units && is_as_expected(optimizer, call);
    for (int unit = n_units - 1; unit >= 0 && !optimizer->stepped_ahead; unit--)
        TRY(step_unit(optimizer, call, unit, !optimizer->speculation));
    return optimizer->speculation ? accept(optimizer, call) : STATUS_OK;
}

struct update_plan optimizer_plan(const struct optimizer *optimizer, int64_t step, double lr,
                                  double loss_scale, double n_tokens) {
    struct update_plan plan = {.step = step,
                               .lr = lr,
                               .loss_scale = loss_scale,
                               .loss_factor = (float)(loss_scale / n_tokens),
                               .allowed = 1};
    for (int decay = 0; decay < 2; decay++) {
        const struct optimizer_step_args args = step_args(optimizer, step, lr, decay);
        plan.constants[decay] = optimizer_constants_of(&args);
    }
    return plan;
}

// All rules but Adafactor: each element by itself.
static enum status update_elementwise(struct optimizer *optimizer, struct stream *stream,
                                      const struct optimizer_call *call) {
    struct model_states *state = optimizer->state;
    if (optimizer->spans.n_spans > 0) {
        const struct update_plan plan = optimizer_plan(optimizer, call->step, call->lr, 1, 1);
        const struct update_result result = {.grad_scale = call->grad_scale};
        TRY(step_control_set(&optimizer->control, stream, &plan, &result));
        TRY(state->device->ops->optimizer_spans(stream, &optimizer->spans));
    }
    return state->options.offload_optimizer ? step_host(optimizer, call) : STATUS_OK;
}

enum status optimizer_update(struct optimizer *optimizer, struct stream *stream, int64_t step, double lr,
                             double norm, double loss_scale) {
    struct model_states *state = optimizer->state;
    double clip = optimizer->config->train.gradient_clipping;
    double clipping = clip > 0 && clip < norm + 1e-6 ? clip / (norm + 1e-6) : 1;
    const struct optimizer_call call = call_of(optimizer, step, lr, clipping / loss_scale);
    if (optimizer->adafactor)
        TRY(adafactor_update(state, stream,
                             &(struct adafactor_call){.config = optimizer->config,
                                                      .step = call.step,
                                                      .lr = call.lr,
                                                      .norm = norm * clipping,
                                                      .grad_scale = call.grad_scale}));
    else
        TRY(update_elementwise(optimizer, stream, &call));
    if (state->options.offload_optimizer)
        TRY(offload_params_wait(&state->offload, stream));
    return parameters_gather_updated(&state->parameters, stream);
}

// Nothing changed, but plans count the same communication in every step.
enum status optimizer_skip(struct optimizer *optimizer, struct stream *stream) {
    int n_done;
    optimizer->stepped_ahead = false;
    if (optimizer->speculation)
        TRY(speculation_wait(optimizer->speculation, &n_done));
    if (optimizer->adafactor)
        TRY(adafactor_skip(optimizer->state));
    return parameters_gather_updated(&optimizer->state->parameters, stream);
}

// ---- a step that the device decides on

bool optimizer_decides_on_device(const struct optimizer *optimizer) {
    const struct model_states *state = optimizer->state;
    return comm_on_device(state->comm) && !state->options.offload_optimizer && !optimizer->adafactor;
}

enum status optimizer_begin(struct optimizer *optimizer, struct stream *stream, int slot,
                            const struct update_plan plans[2]) {
    return step_control_begin(&optimizer->control, stream, slot, plans);
}

enum status optimizer_decide(struct optimizer *optimizer, struct stream *stream) {
    struct model_states *state = optimizer->state;
    TRY(add_norms(optimizer, stream));
    TRY(norm_sum(&state->norm, stream, &optimizer->control.memory->sums[1]));
    TRY(step_control_decide(&optimizer->control, state->comm, stream,
                            optimizer->config->train.gradient_clipping));
    if (optimizer->spans.n_spans > 0)
        TRY(state->device->ops->optimizer_spans(stream, &optimizer->spans));
    return parameters_gather_updated(&state->parameters, stream);
}

enum status optimizer_send(struct optimizer *optimizer, struct stream *stream, int slot) {
    return step_control_send(&optimizer->control, stream, slot);
}

enum status optimizer_receive(struct optimizer *optimizer, int slot, struct update_result *result,
                              double *seconds) {
    return step_control_receive(&optimizer->control, slot, result, seconds);
}

double *optimizer_loss_sum(const struct optimizer *optimizer) {
    return &optimizer->control.memory->sums[0];
}

const float *optimizer_loss_factor(const struct optimizer *optimizer) {
    return &optimizer->control.memory->plan.loss_factor;
}
