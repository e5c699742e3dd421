#include "model/unsharded.h"

static enum status acquire(void *context, struct stream *stream, int unit, enum gpt_pass pass,
                           struct gpt_next next, struct unit_view *view) {
    const struct unsharded *unsharded = context;
    (void)stream, (void)next;
    size_t offset = unsharded->params->units[unit].offset;
    *view = (struct unit_view){0};
    if (pass != GPT_BACKWARD_GRADS)
        view->params = (const char *)unsharded->weights + offset * dtype_size(unsharded->type);
    if (pass != GPT_FORWARD)
        view->grads = (char *)unsharded->grads + offset * dtype_size(unsharded->grad_type);
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
