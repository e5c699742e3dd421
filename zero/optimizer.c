// Walks the tensors of each span; neighbours with the same weight decay are updated by one call.
#include "zero/optimizer.h"

#include <math.h>
#include <string.h>

#include "kernels/ops.h"

size_t optimizer_span_partials(size_t elements) {
    return (elements + SUM_SQUARES_BLOCK - 1) / SUM_SQUARES_BLOCK;
}

static size_t span_partials(const struct stage_span *span) {
    return optimizer_span_partials(span->end - span->begin);
}

enum status optimizer_init(struct optimizer *optimizer, const struct config *config, struct state *state,
                           struct region_table *table) {
    *optimizer = (struct optimizer){.config = config, .state = state};
    for (int i = 0; i < state->n_owned; i++)
        optimizer->n_partials += span_partials(&state->owned[i]);
    TRY(region_add(table, REGION_DATA, state->device->place, DTYPE_F64, optimizer->n_partials,
                   &optimizer->partials_region, "norm"));
    return region_add(table, REGION_DATA, REGION_HOST, DTYPE_F64, optimizer->n_partials,
                      &optimizer->host_region, "norm on host");
}

void optimizer_bind(struct optimizer *optimizer, const struct region_table *table) {
    optimizer->partials = region_data(table, optimizer->partials_region);
    optimizer->host_partials = region_data(table, optimizer->host_region);
}

enum status optimizer_norm(struct optimizer *optimizer, struct stream *stream, double *norm) {
    struct state *state = optimizer->state;
    double *partial = optimizer->partials;
    for (int i = 0; i < state->n_owned; i++) {
        const struct stage_span *span = &state->owned[i];
        TRY(state->device->ops->sum_squares(
            stream, &(struct sum_squares_args){.partial = partial,
                                               .x = gradients_at(&state->gradients, span),
                                               .n = span->end - span->begin,
                                               .type = DTYPE_F32}));
        partial += span_partials(span);
    }
    TRY(state->device->copy(stream, optimizer->host_partials, optimizer->partials,
                            optimizer->n_partials * sizeof(double)));
    TRY(state->device->synchronize(stream));
    double sum = 0;
    for (size_t i = 0; i < optimizer->n_partials; i++)
        sum += optimizer->host_partials[i];
    TRY(comm_sum(state->comm, &sum, 1));
    *norm = sqrt(sum);
    return STATUS_OK;
}

// One call's stretch of a span, from `offset` elements after its begin.
struct stretch {
    const struct stage_span *span;
    size_t offset, n;
    bool decay;
};

static enum status update_stretch(const struct optimizer *optimizer, struct stream *stream,
                                  const struct stretch *stretch, int64_t step, double lr, float grad_scale) {
    const struct state *state = optimizer->state;
    const struct config *config = optimizer->config;
    char *param = NULL;
    if (state->type != DTYPE_F32)
        param = (char *)parameters_at(&state->parameters, stretch->span) +
                stretch->offset * dtype_size(state->type);
    float *kinds[N_CHECKPOINT_KINDS] = {NULL};
    for (int kind = 0; kind < state->n_kinds; kind++)
        kinds[kind] = state_at(state, kind, stretch->span) + stretch->offset;
    double decay = stretch->decay ? config->optimizer.weight_decay : 0;
    const float *grad = gradients_at(&state->gradients, stretch->span) + stretch->offset;
    bool adamw = strcmp(config->optimizer.type, "adamw") == 0;
    struct optimizer_state kept = {
        .master = kinds[CHECKPOINT_MASTER], .m = kinds[CHECKPOINT_M], .v = kinds[CHECKPOINT_V]};
    return state->device->ops->optimizer_step(
        stream, &(struct optimizer_step_args){.rule = adamw ? OPTIMIZER_ADAMW : OPTIMIZER_SGD,
                                              .from = kept,
                                              .to = kept,
                                              .param = param,
                                              .grad = grad,
                                              .n = stretch->n,
                                              .step = step,
                                              .lr = lr,
                                              .beta1 = adamw ? config->optimizer.betas.value[0]
                                                             : config->optimizer.momentum,
                                              .beta2 = adamw ? config->optimizer.betas.value[1] : 0,
                                              .epsilon = config->optimizer.eps,
                                              .weight_decay = decay,
                                              .grad_scale = grad_scale,
                                              .type = state->type});
}

// The tensors that the span touches, cut to it. Padding between tensors is zero and stays so.
static enum status update_span(const struct optimizer *optimizer, struct stream *stream,
                               const struct stage_span *span, int64_t step, double lr, float grad_scale) {
    const struct params *params = optimizer->state->params;
    const struct param_unit *unit = &params->units[span->unit];
    struct stretch stretch = {.span = span};
    for (int i = unit->first_param; i < unit->first_param + unit->n_params; i++) {
        const struct param *param = &params->params[i];
        size_t begin = param->offset > span->begin ? param->offset : span->begin;
        size_t end =
            param->offset + param->elements < span->end ? param->offset + param->elements : span->end;
        if (begin >= end)
            continue;
        if (stretch.n > 0 && param->decay != stretch.decay) {
            TRY(update_stretch(optimizer, stream, &stretch, step, lr, grad_scale));
            stretch.n = 0;
        }
        if (stretch.n == 0)
            stretch = (struct stretch){.span = span, .offset = begin - span->begin, .decay = param->decay};
        stretch.n = end - span->begin - stretch.offset;
    }
    return stretch.n > 0 ? update_stretch(optimizer, stream, &stretch, step, lr, grad_scale) : STATUS_OK;
}

enum status optimizer_update(struct optimizer *optimizer, struct stream *stream, int64_t step, double lr,
                             double norm, double loss_scale) {
    struct state *state = optimizer->state;
    double clip = optimizer->config->train.gradient_clipping;
    double clipping = clip > 0 && clip < norm + 1e-6 ? clip / (norm + 1e-6) : 1;
    float grad_scale = (float)(clipping / loss_scale);
    for (int i = 0; i < state->n_updated; i++)
        TRY(update_span(optimizer, stream, &state->updated[i], step, lr, grad_scale));
    return parameters_updated(&state->parameters, stream);
}
