// Adjacent tensors with the same weight decay are updated by one call. The device's spans are issued first,
// so that it updates them while the host updates its own.
#include "zero/stages/optimizer.h"

#include <math.h>

#include "kernels/ops.h"
#include "zero/stages/adafactor.h"

void optimizer_init(struct optimizer *optimizer, const struct config *config, struct model_states *state) {
    static const enum optimizer_rule rules[] = {[CONFIG_OPTIMIZER_ADAMW] = OPTIMIZER_ADAMW,
                                                [CONFIG_OPTIMIZER_ADAM] = OPTIMIZER_ADAM,
                                                [CONFIG_OPTIMIZER_SGD] = OPTIMIZER_SGD,
                                                [CONFIG_OPTIMIZER_LION] = OPTIMIZER_LION};
    *optimizer =
        (struct optimizer){.config = config, .state = state, .adafactor = state->second_moments.n > 0};
    if (!optimizer->adafactor)
        optimizer->rule = rules[config->optimizer.type];
}

enum status optimizer_norm(struct optimizer *optimizer, struct stream *stream, double *norm) {
    struct model_states *state = optimizer->state;
    if (state->options.offload_optimizer)
        return offload_norm(&state->offload, norm);
    for (int i = 0; i < state->owned.n; i++)
        TRY(norm_add(&state->norm, stream, i, gradients_at(&state->gradients, &state->owned.spans[i])));
    return norm_finish(&state->norm, stream, state->comm, norm);
}

static enum status step_span(const struct optimizer *optimizer, const struct optimizer_call *call,
                             struct stream *stream, const struct placement_span *placed,
                             const struct decay_span *span, const float *grad, void *param) {
    const struct model_states *state = optimizer->state;
    const struct config *config = optimizer->config;
    bool sgd = optimizer->rule == OPTIMIZER_SGD;
    const struct optimizer_step_args args = {
        .rule = optimizer->rule,
        .from = model_states_optimizer_at(state, placed, span->offset, call->from),
        .to = model_states_optimizer_at(state, placed, span->offset, call->to),
        .param = param,
        .grad = grad + span->offset,
        .n = span->n,
        .first = state->params->units[placed->span.unit].offset + placed->span.begin + span->offset,
        .step = call->step,
        .lr = call->lr,
        .beta1 = sgd ? config->optimizer.momentum : config->optimizer.betas.value[0],
        .beta2 = config->optimizer.betas.value[1],
        .epsilon = config->optimizer.eps,
        .weight_decay = span->decay ? config->optimizer.weight_decay : 0,
        .grad_scale = call->grad_scale,
        .type = state->type,
        .grad_type = DTYPE_F32,
        .state_type = state->placement.moment_type};
    return stream->device->ops->optimizer_step(stream, &args);
}

static enum status step_on_device(const struct optimizer *optimizer, const struct optimizer_call *call,
                                  struct stream *stream, const struct placement_span *placed) {
    const struct model_states *state = optimizer->state;
    const float *grad = model_states_gradients_at(state, placed);
    struct decay_span span = {0};
    while ((span = placement_next_decay_span(state->params, placed, &span)).n > 0) {
        void *param = state->type == DTYPE_F32 ? NULL : model_states_params_at(state, placed, span.offset);
        TRY(step_span(optimizer, call, stream, placed, &span, grad, param));
    }
    return STATUS_OK;
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

enum status optimizer_bind(struct optimizer *optimizer) {
    struct model_states *state = optimizer->state;
    if (!state->options.offload_speculative)
        return STATUS_OK;
    TRY(speculation_new(step_ahead, optimizer, state->params->n_units, &optimizer->speculation));
    state->offload.on_sent = unit_sent;
    state->offload.on_sent_context = optimizer;
    return STATUS_OK;
}

void optimizer_free(struct optimizer *optimizer) {
    speculation_delete(optimizer->speculation);
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

// All rules but Adafactor: each element by itself.
static enum status update_elementwise(struct optimizer *optimizer, struct stream *stream,
                                      const struct optimizer_call *call) {
    struct model_states *state = optimizer->state;
    for (int i = 0; i < state->placement.n_spans; i++)
        if (!state->placement.spans[i].on_host)
            TRY(step_on_device(optimizer, call, stream, &state->placement.spans[i]));
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
