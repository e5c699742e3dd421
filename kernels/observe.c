// The device's table of operations is replaced by one that calls the original and then the observer.
#include "kernels/observe.h"

#include <assert.h>
#include <stddef.h>

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
