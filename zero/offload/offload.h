// Optimizer offload (ZeRO-Offload, arXiv 2101.06840), for a device with its own memory: gradients move to the
// host while backward computes the next units, and updated parameters move back while the host updates the
// next chunk. Each direction has a stream. Every function is a no-op without offload_optimizer unless it says
// otherwise.
//
// Gradients, per unit:
//   1. backward finishes them on the caller's stream
//   2. comm reduces them. Stages 0 and 1: into an array that they keep anyway. Stages 2 and 3: this rank's
//      unit shard goes into one of two staging buffers on the device.
//   3. `to_host` sums their squares (last micro-batch) and copies them: the host's spans to the host, the
//      device's spans from a staging buffer to the device's shard.
// With several micro-batches in stages 2 and 3, the sum so far is copied back into the staging buffer first,
// so that additions happen on the device in the same order as without offload, and give the same bits.
//
// Parameters: the host waits for a unit's gradients, updates it, and copies it on `to_device`. The caller's
// stream waits for `to_device` at the end of the step.
#ifndef ZERO_ZERO_OFFLOAD_OFFLOAD_H
#define ZERO_ZERO_OFFLOAD_OFFLOAD_H

#include "zero/offload/placement.h"
#include "zero/optimizer/rules/norm.h"

#define OFFLOAD_BUFFERS 2 // staging and upload buffers are used in turn

// Elements that the host updates, and copies to the device, at a time.
#define OFFLOAD_CHUNK ((size_t)4 << 20)

// Where reduced gradients are on the device: in an array of all units, or of this rank's shard.
struct offload_source {
    float *data;
    bool whole;
};

// A staging buffer on the device, for the reduced gradients of one unit shard.
struct staging_buffer {
    int region;
    float *data;
    struct event reduced, loaded; // the unit was reduced into it; the earlier sum is in it
};

// Gradients on their way to the host.
struct gradient_offload {
    struct stream stream;
    struct offload_source source; // stages 2 and 3: of the device's spans only
    int region;
    float *grads; // on the host: gradients of the host's spans
    struct staging_buffer staging[OFFLOAD_BUFFERS];
    struct event reached;         // stage 0: all sums are gathered
    struct event summed;          // squares of the last unit
    struct event *copied;         // (n_units) the unit's gradients are where they are kept until the update
    bool last;                    // this micro-batch is the step's last
    bool accumulating;            // this micro-batch adds to earlier ones
    int pending_from, pending_to; // units whose reduction was issued last, downwards; from < 0: none
    comm_work work;               // of that reduction
};

// An upload buffer on the host, for parameters on their way to the device.
struct upload_buffer {
    int region;
    void *data;
    struct event sent; // it is free again
};

// Parameters on their way to the device.
struct param_offload {
    struct stream stream;
    struct upload_buffer buffers[OFFLOAD_BUFFERS];
    size_t n_sent;                   // chunks so far
    struct event requested, arrived; // offload_upload_stream; offload_params_wait
};

struct offload {
    const struct stage *stage;
    const struct placement *placement;
    struct norm *norm;
    struct gradient_offload to_host;
    struct param_offload to_device;
};

static inline bool offload_is_on(const struct offload *offload) {
    return offload->stage->options.offload_optimizer;
}
// True if gradients pass through staging buffers.
static inline bool offload_uses_staging(const struct offload *offload) {
    return offload_is_on(offload) && stage_shards_grads(offload->stage->config);
}
// How many gradients of this rank's shard stay on the device. Without offload all of them.
static inline size_t offload_device_elements(const struct offload *offload) {
    return offload_uses_staging(offload) ? offload->placement->device.elements
                                         : stage_shard_elements(offload->stage);
}

// Adds regions to `table`. Call offload_free also after a failure.
//   norm   may be initialized later
enum status offload_init(struct offload *offload, const struct stage *stage,
                         const struct placement *placement, struct norm *norm,
                         struct region_table *table) MUST_CHECK;
// Finds the regions, and creates the streams and events.
//   source   where gradients are reduced to; in stages 2 and 3 where those of the device's spans are kept
enum status offload_bind(struct offload *offload, const struct region_table *table,
                         struct offload_source source) MUST_CHECK;
void offload_free(struct offload *offload);

// ---- gradients, device to host

// Call before each micro-batch.
//   last           it is the step's last
//   accumulating   its gradients are added to those of earlier micro-batches, which were sent already
enum status offload_begin(struct offload *offload, bool last, bool accumulating) MUST_CHECK;
// The staging buffer into which a unit is to be reduced, at offsets in its unit shard. Later work on `stream`
// may write to it. Only with offload_uses_staging.
enum status offload_staging(struct offload *offload, struct stream *stream, int unit, float **out) MUST_CHECK;
// The reductions of all units from `unit` up have been issued.
//   work   handle of the last of them
enum status offload_reduced(struct offload *offload, struct stream *stream, int unit,
                            comm_work work) MUST_CHECK;
// All units are reduced and, in stage 0, gathered: sends the rest. Later work on `stream` sees the gradients
// of the device's spans.
enum status offload_finish(struct offload *offload, struct stream *stream) MUST_CHECK;
// The global norm. Does not wait for copies that are still running. Only with offload_optimizer.
enum status offload_norm(struct offload *offload, double *norm) MUST_CHECK;
// Blocks the host until a unit's gradients have arrived. Only with offload_optimizer.
enum status offload_wait(struct offload *offload, int unit) MUST_CHECK;
// The gradients of a span of the host.
static inline float *offload_gradients_at(const struct offload *offload,
                                          const struct placement_span *placed) {
    return offload->to_host.grads + placed->at;
}

// ---- parameters, host to device. Only with offload_optimizer

// The buffer to which the host writes parameters of a span, from its element `offset` on: at most
// OFFLOAD_CHUNK. *out is NULL if the master weights themselves are sent (fp32).
enum status offload_params_buffer(struct offload *offload, const struct placement_span *placed, size_t offset,
                                  void **out) MUST_CHECK;
// Copies n of them to `to` on the device; a no-op with NULL (offload_param).
enum status offload_params_send(struct offload *offload, const struct placement_span *placed, size_t offset,
                                size_t n, void *to) MUST_CHECK;
// The stream that copies parameters to the device, after it was made to wait for the work issued on `stream`
// so far. With offload_param, stage 3 copies and gathers on it, so that both overlap with compute.
enum status offload_upload_stream(struct offload *offload, struct stream *stream,
                                  struct stream **out) MUST_CHECK;
// Later work on `stream` sees all parameters that were sent.
enum status offload_params_wait(struct offload *offload, struct stream *stream) MUST_CHECK;

#endif
