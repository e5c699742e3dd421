// Optimizer offload (ZeRO-Offload, arXiv 2101.06840), for a device with its own memory. Gradients move to the
// host while backward computes the next units. Updated parameters move back while the host updates the next
// chunk. Each direction has a stream. Without offload_optimizer every function is a no-op, unless noted.
//
// Gradients, per unit:
//   1. Backward completes them on the caller's stream.
//   2. comm reduces them. Stages 0 and 1: into the array that they keep anyway. Stages 2 and 3: into one of
//      two staging buffers on the device, which receives this rank's unit shard.
//   3. `to_host` computes their sums of squares (last micro-batch) and copies them: the host's spans to the
//      host, the device's spans from the staging buffer to the device's shard.
// With several micro-batches in stages 2 and 3, the sum so far is first copied back into the staging buffer.
// All additions then happen on the device in the same order as without offload, and give the same bits.
//
// Parameters: the host waits for a unit's gradients, updates it, and copies it on `to_device`. The caller's
// stream waits for `to_device` at the end of the step.
#ifndef ZERO_ZERO_OFFLOAD_OFFLOAD_H
#define ZERO_ZERO_OFFLOAD_OFFLOAD_H

#include "zero/offload/placement.h"
#include "zero/optimizer/rules/norm.h"

#define OFFLOAD_BUFFERS 2 // staging and upload buffers alternate

// Elements that the host updates and copies to the device at a time.
#define OFFLOAD_CHUNK ((size_t)4 << 20)

// Where reduced gradients are on the device: in an array of all units, or in one of this rank's shard.
struct offload_source {
    float *data;
    bool whole;
};

// A staging buffer on the device, for the reduced gradients of one unit shard.
struct staging_buffer {
    int region;
    float *data;
    struct event reduced, loaded; // done: the reduction into it; loading the earlier sum
};

// Gradients being copied to the host.
struct gradient_offload {
    struct stream stream;
    struct offload_source source; // stages 2 and 3: the device's spans only
    int region;
    float *grads; // host memory: gradients of the host's spans
    struct staging_buffer staging[OFFLOAD_BUFFERS];
    struct event reached; // stage 0: all sums have been gathered
    struct event summed;  // the squares of the last unit have been summed
    struct event *copied; // (n_units) the unit's gradients are in the place where the update reads them
    bool last;            // this micro-batch is the step's last
    bool accumulating;    // this micro-batch adds to earlier ones
    int pending_from, pending_to; // the units reduced last, in descending order; from < 0: none
    comm_work work;               // handle of that reduction
};

// A host buffer for parameters being copied to the device.
struct upload_buffer {
    int region;
    void *data;
    struct event sent; // the copy is done: the buffer is free
};

// Parameters being copied to the device.
struct param_offload {
    struct stream stream;
    struct upload_buffer buffers[OFFLOAD_BUFFERS];
    size_t n_sent;                   // chunks sent so far
    struct event requested, arrived; // for offload_upload_stream and offload_params_wait
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
// Returns how many gradients of this rank's shard stay on the device; all of them without offload.
static inline size_t offload_device_elements(const struct offload *offload) {
    return offload_uses_staging(offload) ? offload->placement->device.elements
                                         : stage_trained_elements(offload->stage);
}

// Adds regions to `table`. Call offload_free after a failure too.
//   norm   may be initialized later
enum status offload_init(struct offload *offload, const struct stage *stage,
                         const struct placement *placement, struct norm *norm,
                         struct region_table *table) MUST_CHECK;
// Binds the regions, and creates the streams and events.
//   source   where gradients are reduced to; in stages 2 and 3, where the device's spans are kept
enum status offload_bind(struct offload *offload, const struct region_table *table,
                         struct offload_source source) MUST_CHECK;
void offload_free(struct offload *offload);

// ---- gradients, device to host

// Call before each micro-batch.
//   last           this is the step's last micro-batch
//   accumulating   its gradients are added to those of earlier micro-batches, which were already sent
enum status offload_begin(struct offload *offload, bool last, bool accumulating) MUST_CHECK;
// Returns the staging buffer for reducing a unit; offsets are in its unit shard. Later work on `stream` may
// write to the buffer. Only with offload_uses_staging.
enum status offload_staging(struct offload *offload, struct stream *stream, int unit, float **out) MUST_CHECK;
// Reports that the reductions of all units from `unit` up have been issued.
//   work   handle of the last reduction
enum status offload_reduced(struct offload *offload, struct stream *stream, int unit,
                            comm_work work) MUST_CHECK;
// Sends the remaining units. Call it once all units are reduced and, in stage 0, gathered. Later work on
// `stream` sees the gradients of the device's spans.
enum status offload_finish(struct offload *offload, struct stream *stream) MUST_CHECK;
// Returns the global gradient norm. Does not wait for running copies. Only with offload_optimizer.
enum status offload_norm(struct offload *offload, double *norm) MUST_CHECK;
// Blocks the host until a unit's gradients have arrived. Only with offload_optimizer.
enum status offload_wait(struct offload *offload, int unit) MUST_CHECK;
// Returns the gradients of one of the host's spans.
static inline float *offload_gradients_at(const struct offload *offload,
                                          const struct placement_span *placed) {
    return offload->to_host.grads + placed->at;
}

// ---- parameters, host to device. Only with offload_optimizer

// Returns the buffer for the host to write a span's parameters to, starting at the span's element `offset`:
// at most OFFLOAD_CHUNK elements. *out is NULL if the master weights themselves are sent (fp32).
enum status offload_params_buffer(struct offload *offload, const struct placement_span *placed, size_t offset,
                                  void **out) MUST_CHECK;
// Copies n of the parameters to `to` on the device. No-op if `to` is NULL (offload_param).
enum status offload_params_send(struct offload *offload, const struct placement_span *placed, size_t offset,
                                size_t n, void *to) MUST_CHECK;
// Returns the stream that copies parameters to the device, and makes it wait for the work issued on `stream`
// so far. With offload_param, stage 3 copies and gathers on it, so that both overlap with compute.
enum status offload_upload_stream(struct offload *offload, struct stream *stream,
                                  struct stream **out) MUST_CHECK;
// Makes later work on `stream` see all parameters that were sent.
enum status offload_params_wait(struct offload *offload, struct stream *stream) MUST_CHECK;

#endif
