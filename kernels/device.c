// Code shared by all devices: wrappers for the functions that a device may lack. Backends use this file, so
// it must not refer to any backend.
#include "kernels/device.h"

void device_close(struct device *device) {
    if (device)
        device->close(device);
}

// ---- wrappers of struct gpu_functions; device->gpu is NULL on the CPU

enum status device_memory_available(struct device *device, size_t *bytes) {
    *bytes = 0;
    return device->gpu ? device->gpu->memory_available(device, bytes) : STATUS_OK;
}

enum status device_pin(struct device *device, void *memory, size_t bytes) {
    return device->gpu && bytes > 0 ? device->gpu->pin(device, memory, bytes) : STATUS_OK;
}

void device_unpin(struct device *device, void *memory) {
    if (device->gpu && memory)
        device->gpu->unpin(device, memory);
}

enum status stream_init(struct stream *stream, struct device *device) {
    *stream = (struct stream){.device = device};
    return device->gpu ? device->gpu->stream_open(device, &stream->queue) : STATUS_OK;
}

void stream_free(struct stream *stream) {
    if (stream->queue)
        stream->device->gpu->stream_close(stream->device, stream->queue);
    *stream = (struct stream){0};
}

void stream_drain(struct stream *stream) {
    if (stream->queue)
        (void)stream->device->synchronize(stream);
}

enum status event_init(struct event *event, struct device *device) {
    *event = (struct event){.device = device};
    return device->gpu ? device->gpu->event_open(device, &event->mark) : STATUS_OK;
}

enum status event_init_timed(struct event *event, struct device *device) {
    *event = (struct event){.device = device};
    return device->gpu ? device->gpu->timer_open(device, &event->mark) : STATUS_OK;
}

enum status event_seconds(const struct event *from, const struct event *to, double *seconds) {
    *seconds = 0;
    return from->mark && to->mark ? from->device->gpu->timer_seconds(from, to, seconds) : STATUS_OK;
}

void event_free(struct event *event) {
    if (event->mark)
        event->device->gpu->event_close(event->device, event->mark);
    *event = (struct event){0};
}

enum status event_record(struct event *event, struct stream *stream) {
    return event->mark ? event->device->gpu->event_record(event, stream) : STATUS_OK;
}

enum status event_wait(struct event *event, struct stream *stream) {
    return event->mark ? event->device->gpu->event_wait(event, stream) : STATUS_OK;
}

enum status event_synchronize(struct event *event) {
    return event->mark ? event->device->gpu->event_synchronize(event) : STATUS_OK;
}

enum status event_query(const struct event *event, bool *happened) {
    *happened = true;
    return event->mark ? event->device->gpu->event_query(event, happened) : STATUS_OK;
}

enum status device_enter(struct device *device) {
    return device->gpu ? device->gpu->enter(device) : STATUS_OK;
}

enum status device_identity(struct device *device, char out[DEVICE_IDENTITY_BYTES]) {
    out[0] = 0;
    return device->gpu ? device->gpu->identify(device, out) : STATUS_OK;
}

bool device_has_graphs(const struct device *device) {
    return device->gpu != NULL;
}

enum status graph_begin(struct stream *stream) {
    return stream->device->gpu->graph_begin(stream);
}

enum status graph_end(struct stream *stream, struct graph *graph) {
    *graph = (struct graph){.device = stream->device};
    return stream->device->gpu->graph_end(stream, &graph->work);
}

enum status graph_launch(struct graph *graph, struct stream *stream) {
    return graph->device->gpu->graph_launch(stream, graph->work);
}

void graph_free(struct graph *graph) {
    if (graph->work)
        graph->device->gpu->graph_close(graph->device, graph->work);
    *graph = (struct graph){0};
}
