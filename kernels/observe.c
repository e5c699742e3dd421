// The device's table of operations is replaced by one that calls the original and then the observer.
#include "kernels/observe.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static struct {
    struct device *device; // NULL: none is watched
    const struct ops *ops; // its own
    struct ops observed;   // that it has meanwhile
    observe_operation *function;
    void *context;
} watch;

static enum status report(struct stream *stream, enum operation operation, const void *args,
                          enum status status) {
    if (status == STATUS_OK)
        status = stream->device->synchronize(stream);
    return status == STATUS_OK ? watch.function(watch.context, stream, operation, args) : status;
}

#define OBSERVED_FUNCTION(name)                                                                              \
    static enum status observed_##name(struct stream *stream, const struct name##_args *args) {              \
        return report(stream, OP_##name, args, watch.ops->name(stream, args));                               \
    }
OPERATIONS(OBSERVED_FUNCTION)
#undef OBSERVED_FUNCTION

static const struct ops observed_ops = {
#define OBSERVED_ENTRY(name) .name = observed_##name,
    OPERATIONS(OBSERVED_ENTRY)
#undef OBSERVED_ENTRY
};

void observe_begin(struct device *device, observe_operation *function, void *context) {
    assert(!watch.device);
    watch.device = device;
    watch.ops = device->ops;
    watch.observed = observed_ops;
    watch.observed.workspace_bytes = device->ops->workspace_bytes;
    watch.observed.launches = device->ops->launches;
    watch.function = function;
    watch.context = context;
    device->ops = &watch.observed;
}

void observe_end(struct device *device) {
    assert(watch.device == device);
    device->ops = watch.ops;
    watch.device = NULL;
}

// ---- run.debug_sync

struct debug_sync {
    const struct ops *ops;   // the device's original functions
    struct ops synchronized; // the ones it has meanwhile
    enum status (*copy)(struct stream *stream, void *to, const void *from, size_t bytes);
};

// After a call: waits, and says of a failure what caused it. An operation of several kernels may notice the
// failure of its first one itself.
static enum status finish(struct stream *stream, const char *name, enum status status) {
    char message[STATUS_MESSAGE_BYTES];
    if (status == STATUS_OK)
        status = stream->device->synchronize(stream);
    if (status != STATUS_FAILED)
        return status;
    snprintf(message, sizeof message, "%s", status_message());
    status_clear();
    return FAIL(status, "run.debug_sync: %s failed on the device: %s", name, message);
}

#define SYNCHRONIZED_FUNCTION(name)                                                                          \
    static enum status synchronized_##name(struct stream *stream, const struct name##_args *args) {          \
        return finish(stream, #name, stream->device->debug_sync->ops->name(stream, args));                   \
    }
OPERATIONS(SYNCHRONIZED_FUNCTION)
#undef SYNCHRONIZED_FUNCTION

static enum status synchronized_workspace_bytes(struct device *device, enum operation operation,
                                                const void *args, size_t *bytes) {
    return device->debug_sync->ops->workspace_bytes(device, operation, args, bytes);
}

static const struct ops synchronized_ops = {
#define SYNCHRONIZED_ENTRY(name) .name = synchronized_##name,
    OPERATIONS(SYNCHRONIZED_ENTRY)
#undef SYNCHRONIZED_ENTRY
        .workspace_bytes = synchronized_workspace_bytes,
};

static enum status synchronized_copy(struct stream *stream, void *to, const void *from, size_t bytes) {
    return finish(stream, "a copy", stream->device->debug_sync->copy(stream, to, from, bytes));
}

enum status debug_sync_begin(struct device *device) {
    if (device->place == REGION_HOST)
        return STATUS_OK;
    device->debug_sync = malloc(sizeof *device->debug_sync);
    if (!device->debug_sync)
        return FAIL(STATUS_FAILED, "out of memory for run.debug_sync");
    *device->debug_sync = (struct debug_sync){device->ops, synchronized_ops, device->copy};
    device->debug_sync->synchronized.launches = device->ops->launches; // issues nothing
    device->ops = &device->debug_sync->synchronized;
    device->copy = synchronized_copy;
    return STATUS_OK;
}

void debug_sync_end(struct device *device) {
    if (!device || !device->debug_sync)
        return;
    device->ops = device->debug_sync->ops;
    device->copy = device->debug_sync->copy;
    free(device->debug_sync);
    device->debug_sync = NULL;
}
