#include <stdlib.h>
#include <string.h>

#include "tests/ref/ref.h"

static enum status workspace_bytes(struct device *device, enum operation operation, const void *args,
                                   size_t *bytes) {
    (void)device, (void)operation, (void)args;
    *bytes = 0;
    return STATUS_OK;
}

#define REF_ENTRY(name) .name = ref_##name,
static const struct ops ref_ops = {OPERATIONS(REF_ENTRY).workspace_bytes = workspace_bytes};
#undef REF_ENTRY

static enum status memory_new(struct device *device, size_t bytes, const char *purpose, void **out) {
    (void)device;
    *out = NULL;
    if (bytes == 0)
        return STATUS_OK;
    const size_t padded = region_padded(bytes);
    *out = aligned_alloc(REGION_ALIGNMENT, padded);
    if (!*out)
        return FAIL(STATUS_FAILED, "out of memory: %s need %zu bytes", purpose, bytes);
    memset(*out, 0, padded);
    return STATUS_OK;
}

static void memory_delete(struct device *device, void *memory, size_t bytes) {
    (void)device, (void)bytes;
    free(memory);
}

static enum status copy(struct stream *stream, void *to, const void *from, size_t bytes) {
    (void)stream;
    if (bytes > 0)
        memmove(to, from, bytes);
    return STATUS_OK;
}

static enum status synchronize(struct stream *stream) {
    (void)stream;
    return STATUS_OK;
}

static void close_device(struct device *device) {
    free(device);
}

enum status ref_device_open(struct device **out) {
    struct device *device = malloc(sizeof *device);
    *out = NULL;
    if (!device)
        return FAIL(STATUS_FAILED, "out of memory for a device");
    *device = (struct device){.name = "ref",
                              .description = "plain loops in double, one thread",
                              .ops = &ref_ops,
                              .place = REGION_HOST,
                              .n_threads = 1,
                              .memory_new = memory_new,
                              .memory_delete = memory_delete,
                              .copy = copy,
                              .synchronize = synchronize,
                              .close = close_device};
    *out = device;
    return STATUS_OK;
}
