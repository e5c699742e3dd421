// See zero/comm/self.h.
#include "zero/comm/self.h"

#include <stdlib.h>

#include "kernels/ops.h"

enum status comm_bulk_alone(struct stream *stream, const struct comm_call *call) {
    struct comm_cursor cursor = {.transfer = call->transfer};
    comm_transfer_owners(call->transfer, 1, &cursor.span, NULL);
    const struct device *device = stream->device;
    size_t size = call->operation == COMM_REDUCE_SCATTER ? sizeof(float) : dtype_size(call->type);
    for (struct comm_span span; (span = comm_transfer_next(&cursor, SIZE_MAX)).elements > 0;) {
        const void *in = (const char *)call->in + span.in * size;
        void *out = (char *)call->out + span.out * size;
        const struct add_args sum = {.out = out, .x = out, .y = in, .n = span.elements, .type = DTYPE_F32};
        if (call->accumulate)
            TRY(device->ops->add(stream, &sum));
        else if (out != in)
            TRY(device->copy(stream, out, in, span.elements * size));
    }
    return STATUS_OK;
}

static void self_close(struct comm *comm, enum status status) {
    (void)comm, (void)status;
}

// comm.c answers every other collective of one rank itself.
static const struct comm_backend self_backend = {.name = "self", .close = self_close};

enum status comm_open_self(struct comm **out) {
    *out = calloc(1, sizeof **out);
    if (!*out)
        return FAIL(STATUS_FAILED, "out of memory for a communicator");
    **out = (struct comm){.backend = &self_backend, .world = 1, .local_world = 1, .eager = true};
    return STATUS_OK;
}
