// Replaces the device's functions with wrappers that call the observers. The innermost observer calls the
// original function.
#include "kernels/observe.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "kernels/cost.h"

struct observer {
    observe_function *function;
    void *context;
    struct observer *inner; // NULL: the device's own functions
};

struct observed {
    const struct ops *ops; // the device's own functions
    enum status (*copy)(struct stream *stream, void *to, const void *from, size_t bytes);
    enum status (*synchronize)(struct stream *stream);
    struct ops observed_ops; // the device's functions while it is observed
    struct observer *outermost;
};

enum status observe_proceed(struct observed_call *call) {
    const struct observer *observer = call->next;
    const struct observed *own = call->stream->device->observed;
    if (observer) {
        call->next = observer->inner;
        return observer->function(observer->context, call);
    }
    if (call->kind == OBSERVED_COPY)
        return own->copy(call->stream, call->to, call->from, call->bytes);
    if (call->kind == OBSERVED_WAIT)
        return own->synchronize(call->stream);
    switch (call->operation) {
#define OWN_OPERATION(name)                                                                                  \
    case OP_##name:                                                                                          \
        return own->ops->name(call->stream, call->args);
        OPERATIONS(OWN_OPERATION)
#undef OWN_OPERATION
    default:
        return STATUS_OK;
    }
}

static enum status observe(struct observed_call call) {
    call.next = call.stream->device->observed->outermost;
    return observe_proceed(&call);
}

#define OBSERVED_FUNCTION(name)                                                                              \
    static enum status observed_##name(struct stream *stream, const struct name##_args *args) {              \
        return observe((struct observed_call){.stream = stream, .operation = OP_##name, .args = args});      \
    }
OPERATIONS(OBSERVED_FUNCTION)
#undef OBSERVED_FUNCTION

static enum status observed_copy(struct stream *stream, void *to, const void *from, size_t bytes) {
    return observe((struct observed_call){
        .stream = stream, .kind = OBSERVED_COPY, .to = to, .from = from, .bytes = bytes});
}

static enum status observed_synchronize(struct stream *stream) {
    return observe((struct observed_call){.stream = stream, .kind = OBSERVED_WAIT});
}

static struct observed *wrap(struct device *device) {
    struct observed *observed = allocate(1, sizeof *observed);
    *observed = (struct observed){.ops = device->ops,
                                  .copy = device->copy,
                                  .synchronize = device->synchronize,
                                  .observed_ops = {
#define OBSERVED_ENTRY(name) .name = observed_##name,
                                      OPERATIONS(OBSERVED_ENTRY)
#undef OBSERVED_ENTRY
                                          .workspace_bytes = device->ops->workspace_bytes,
                                      .launches = device->ops->launches}};
    device->ops = &observed->observed_ops;
    device->copy = observed_copy;
    device->synchronize = observed_synchronize;
    return observed;
}

void observe_begin(struct device *device, observe_function *function, void *context) {
    if (!device->observed)
        device->observed = wrap(device);
    struct observer *observer = allocate(1, sizeof *observer);
    *observer = (struct observer){function, context, device->observed->outermost};
    device->observed->outermost = observer;
}

void observe_end(struct device *device, observe_function *function) {
    struct observed *observed = device ? device->observed : NULL;
    if (!observed)
        return;
    struct observer **link = &observed->outermost, *ended;
    while (*link && (*link)->function != function)
        link = &(*link)->inner;
    if ((ended = *link))
        *link = ended->inner;
    free(ended);
    if (observed->outermost)
        return;
    device->ops = observed->ops;
    device->copy = observed->copy;
    device->synchronize = observed->synchronize;
    device->observed = NULL;
    free(observed);
}

// ---- run.debug_sync

// Waits for the device after an operation or copy, and names it in the error message if it failed. The
// failure may also come from the operation itself: one of several kernels may report that an earlier one
// failed.
static enum status wait_after(void *context, struct observed_call *call) {
    (void)context;
    char message[STATUS_MESSAGE_BYTES];
    enum status status = observe_proceed(call);
    if (call->kind == OBSERVED_WAIT)
        return status;
    if (status == STATUS_OK)
        status = call->stream->device->observed->synchronize(call->stream);
    if (status != STATUS_FAILED)
        return status;
    snprintf(message, sizeof message, "%s", status_message());
    status_clear();
    return FAIL(status, "run.debug_sync: %s failed on the device: %s",
                call->kind == OBSERVED_COPY ? "a copy" : operation_name(call->operation), message);
}

void debug_sync_begin(struct device *device) {
    if (device->place != REGION_HOST)
        observe_begin(device, wait_after, NULL);
}

void debug_sync_end(struct device *device) {
    observe_end(device, wait_after);
}
