#include "model/unsharded.h"

#include <stdlib.h>

#include "base/alloc.h"

static void **list_tensors(const struct params *params, const void *base, enum dtype type) {
    void **tensors = allocate((size_t)params->n_params, sizeof *tensors);
    for (int i = 0; i < params->n_params; i++) {
        const struct param *param = &params->params[i];
        const char *unit = (const char *)base + params->units[param->unit].offset * dtype_size(type);
        tensors[i] = tensor_at(param, unit, type);
    }
    return tensors;
}

void unsharded_init(struct unsharded *unsharded, const struct params *params, enum dtype type,
                    const void *weights, enum dtype grad_type, void *grads) {
    *unsharded = (struct unsharded){.params = params,
                                    .weights = list_tensors(params, weights, type),
                                    .grads = grads ? list_tensors(params, grads, grad_type) : NULL};
}

void unsharded_free(struct unsharded *unsharded) {
    free(unsharded->weights);
    free(unsharded->grads);
    *unsharded = (struct unsharded){0};
}

static enum status acquire(void *context, struct stream *stream, int unit, enum gpt_pass pass,
                           struct unit_view *view) {
    const struct unsharded *unsharded = context;
    (void)stream;
    int first = unsharded->params->units[unit].first_param;
    *view = (struct unit_view){.params = pass == GPT_BACKWARD_GRADS ? NULL : unsharded->weights + first,
                               .grads = gpt_pass_adds_grads(pass) ? unsharded->grads + first : NULL};
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

struct unit_hooks unsharded_hooks(struct unsharded *unsharded) {
    return (struct unit_hooks){
        .context = unsharded, .params_acquire = acquire, .params_release = release, .grads_ready = ready};
}
