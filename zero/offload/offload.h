// The way between a device with memory of its own and the host that keeps optimizer state for it
// (ZeRO-Offload, arXiv 2101.06840): gradients go out unit by unit while backward computes the next, updated
// parameters come back while the host updates the next. Each way has a stream.
//
// Stages 0 and 1 copy gradients from where they were reduced. In stages 2 and 3, which keep no more than a
// shard, a unit's share is reduced into one of two staging buffers and dealt out from there: the host's part
// to the host, the rest to the device's shard. Between micro-batches what was added up comes back into the
// staging buffer first: sums are taken on the device, in the order that they have without offload.
//
// Order. Gradients: ready on the caller's stream -> reduced (comm) -> `out`: squares summed, copied. The host
// waits for a unit's copy, steps, and gives parameters to `in`; the caller's stream waits for `in` at the
// end.
#ifndef ZERO_ZERO_OFFLOAD_OFFLOAD_H
#define ZERO_ZERO_OFFLOAD_OFFLOAD_H

#include "zero/comm/comm.h"
#include "zero/offload/placement.h"
#include "zero/partition/norm.h"

#define OFFLOAD_BUFFERS 2 // that units, and pieces of parameters, take in turn

// Where gradients stand once they are reduced: in an array of all units, or of the shard.
struct offload_source {
    float *data;
    bool whole;
};

struct offload {
    const struct params *params;
    const struct stage_options *options;
    const struct stage_spans *owned;
    const struct placement *placement;
    struct device *device;
    enum dtype type;              // of parameters
    struct comm *comm;            // from offload_bind on
    struct norm *norm;            //
    struct offload_source source; // stages 0 and 1
    float *device_shard;          // stages 2 and 3: gradients of the device's parts
    int grads_region, staging_regions[OFFLOAD_BUFFERS], upload_regions[OFFLOAD_BUFFERS];
    float *grads;                          // of the host's parts
    float *staging[OFFLOAD_BUFFERS];       // on the device
    void *upload_buffers[OFFLOAD_BUFFERS]; // parameters on their way to the device
    size_t n_uploads;                      // sent so far
    struct stream to_host, to_device;
    struct event reduced[OFFLOAD_BUFFERS], loaded[OFFLOAD_BUFFERS], sent[OFFLOAD_BUFFERS], summed, reached,
        requested;
    struct event *copied; // (n_units) its gradients are where they are kept
    // Called, if not NULL, when a unit of the last micro-batch is on its way to the host.
    void (*on_sent)(void *context, int unit);
    void *on_sent_context;
    bool last, accumulating;      // the micro-batch: of the step; adds to what is kept
    int pending_from, pending_to; // units being reduced, from the higher down; from < to: none
    comm_work work;               // of their reduction
};

// Elements that the host steps, and sends, at a time.
#define OFFLOAD_CHUNK ((size_t)4 << 20)

static inline bool offload_is_on(const struct offload *offload) {
    return offload->options->offload_optimizer;
}
// Whether a unit's share passes through staging buffers.
static inline bool offload_uses_staging(const struct offload *offload) {
    return offload_is_on(offload) && offload->options->stage >= 2;
}

// Elements of this rank's gradient shard that stay on the device, of shard_elements: what the host updates
// leaves through the staging buffers.
static inline size_t offload_device_elements(const struct offload *offload, size_t shard_elements) {
    return offload_uses_staging(offload) ? offload->placement->device.elements : shard_elements;
}

// Adds regions; without offload none. What it is given must outlive it. Free with offload_free, also after a
// failure.
enum status offload_init(struct offload *offload, const struct params *params,
                         const struct stage_options *options, const struct stage_spans *owned,
                         const struct placement *placement, enum dtype type, struct device *device,
                         struct region_table *table) MUST_CHECK;
// Finds the regions and makes the streams and events.
enum status offload_bind(struct offload *offload, const struct region_table *table, struct comm *comm,
                         struct norm *norm, struct offload_source source, float *device_shard) MUST_CHECK;
void offload_free(struct offload *offload);

// ---- gradients, out; all of it does nothing without offload

// Before a micro-batch. last: of the step; accumulating: its gradients are added to what is kept.
enum status offload_begin(struct offload *offload, struct stream *stream, bool last,
                          bool accumulating) MUST_CHECK;
// Where a unit's share is to be reduced, at offsets from the share's begin; for work on `stream`, and later.
enum status offload_staging(struct offload *offload, struct stream *stream, int unit, float **out) MUST_CHECK;
// All units from `unit` up are being reduced, or were; work: of the call that was the last for them.
enum status offload_reduced(struct offload *offload, struct stream *stream, int unit,
                            comm_work work) MUST_CHECK;
// All units were reduced and, in stage 0, gathered: sends what was not sent. Later work on `stream` sees the
// device's parts.
enum status offload_finish(struct offload *offload, struct stream *stream) MUST_CHECK;
// The norm, while copies may still be under way.
enum status offload_norm(struct offload *offload, double *norm) MUST_CHECK;
// Waits until a unit's gradients are on the host.
enum status offload_wait(struct offload *offload, int unit) MUST_CHECK;
// Gradients of a part of the host's.
static inline const float *offload_gradients_at(const struct offload *offload,
                                                const struct placement_span *placed) {
    return offload->grads + placed->at;
}

// ---- parameters, back

// Where the host is to write n parameters of a placed, from its element `offset` on: at most OFFLOAD_CHUNK.
// *out is NULL where the master weights themselves are sent. copy: of the state that the step gives.
enum status offload_params_buffer(struct offload *offload, const struct placement_span *placed, size_t offset,
                                  int copy, void **out) MUST_CHECK;
// They are written: sends them to `to`, their place on the device (NULL where they stay on the host).
enum status offload_params_send(struct offload *offload, const struct placement_span *placed, size_t offset,
                                size_t n, int copy, void *to) MUST_CHECK;
// The stream that copies parameters to the device, after it was made to wait for the work issued on `stream`
// so far. With offload_param, stage 3 copies and gathers on it, so that it overlaps with compute.
enum status offload_upload_stream(struct offload *offload, struct stream *stream,
                                  struct stream **out) MUST_CHECK;
// Later work on `stream` sees all that was sent.
enum status offload_params_wait(struct offload *offload, struct stream *stream) MUST_CHECK;

#endif
