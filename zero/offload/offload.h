// Optimizer offload (ZeRO-Offload, arXiv 2101.06840), for a device with its own memory. Gradients are
// copied to the host while backward computes the next units. Updated parameters are copied back while the
// host updates the next chunk. Each direction has its own stream. Without offload_optimizer every function
// is a no-op, unless noted.
//
// Gradients, per unit:
//   1. Backward completes them on the caller's stream.
//   2. zero/comm reduces them. Stages 0 and 1: into the array that they keep anyway. Stages 2 and 3: into
//      one of two staging buffers on the device, which receives this rank's unit shard.
//   3. The stream to_host.stream computes their sums of squares (last micro-batch) and copies them: the
//      host's spans to the host, the device's spans from the staging buffer to the device's shard.
// With several micro-batches in stages 2 and 3, the sum of the earlier ones is first copied back into the
// staging buffer. All additions then happen on the device in the same order as without offload, and give
// the same bits. If the rank computes several logical ranks, partial sums are copied like this, and added up
// where they are stored (partial_sums.h); the squares are then summed after the last addition.
//
// Parameters, per unit: the host waits for the unit's gradients, updates the unit, and copies it on
// to_device.stream. The caller's stream waits for to_device.stream at the end of the step.
#ifndef ZERO_ZERO_OFFLOAD_OFFLOAD_H
#define ZERO_ZERO_OFFLOAD_OFFLOAD_H

#include "zero/offload/placement.h"
#include "zero/optimizer/rules/norm.h"
#include "zero/partition/partial_sums.h"

#define OFFLOAD_BUFFERS 2 // number of staging buffers, and of upload buffers; they are used in turn

// Elements that the host updates and copies to the device at a time.
#define OFFLOAD_CHUNK ((size_t)4 << 20)

// Where reduced gradients are on the device.
struct offload_source {
    float *data;
    bool whole; // true: `data` holds all units; false: this rank's shard
};

// A staging buffer on the device, for the reduced gradients of one unit shard.
struct staging_buffer {
    int region;
    float *data;
    struct event reduced; // the reduction into the buffer is done
    struct event loaded;  // the sum of earlier micro-batches is in the buffer
};

// Gradients being copied to the host.
struct gradient_offload {
    struct stream stream;
    // The reduced gradients on the device. In stages 2 and 3 they are only those of the device's spans.
    struct offload_source source;
    const struct partial_sums *on_device; // with staging: the sums of the device's spans
    struct partial_sums on_host;          // the sums of the host's spans, in host memory
    struct staging_buffer staging[OFFLOAD_BUFFERS];
    struct event reached; // stage 0: all sums have been gathered
    struct event summed;  // the squares of the unit sent last have been summed
    struct event *copied; // (n_units) each unit's gradients have been copied to where the update reads them
    bool last;            // this micro-batch is the step's last
    struct logical_micro_batch at;       // this micro-batch
    struct logical_micro_batch unfolded; // the last one after which partial_sums_fold is due; zero: none
    // Units that are being reduced and not sent yet: pending_from (-1: none) down to pending_to.
    int pending_from, pending_to;
    comm_work work; // handle of the last reduction of these units
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
    size_t n_sent;          // number of chunks sent so far
    struct event requested; // offload_upload_stream: the caller's earlier work is done
    struct event arrived;   // offload_params_wait: all copies issued so far are done
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
// Returns for how many elements of this rank's shard the device keeps gradients between micro-batches. With
// staging, it does so only for the device's spans; otherwise for all of the shard.
static inline size_t offload_device_elements(const struct offload *offload) {
    return offload_uses_staging(offload) ? offload->placement->device.elements
                                         : stage_trained_elements(offload->stage);
}

// Adds regions to `table`. Call offload_free after a failure too.
//   norm   the call only stores the pointer; *norm may be initialized later
enum status offload_init(struct offload *offload, const struct stage *stage,
                         const struct placement *placement, struct norm *norm,
                         struct region_table *table) MUST_CHECK;
// Binds the regions, and creates the streams and events.
//   source   the device array of reduced gradients; in stages 2 and 3, only those of the device's spans
//   sums     in stages 2 and 3: the sums that the source is the shard of
enum status offload_bind(struct offload *offload, const struct region_table *table,
                         struct offload_source source, const struct partial_sums *sums) MUST_CHECK;
void offload_free(struct offload *offload);

// ---- gradients, device to host

// Call before each micro-batch.
//   last   this is the step's last micro-batch
enum status offload_begin(struct offload *offload, bool last,
                          const struct logical_micro_batch *at) MUST_CHECK;
// Returns the staging buffer into which a unit is to be reduced; it holds this rank's unit shard. Later
// work on `stream` may write to the buffer. Only with offload_uses_staging.
enum status offload_staging(struct offload *offload, struct stream *stream, int unit, float **out) MUST_CHECK;
// Call it when the reductions of `unit` and of all higher units have been issued.
//   work   handle of the last of these reductions
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
    return offload->to_host.on_host.shard + placed->at;
}

// ---- parameters, host to device. Only with offload_optimizer

// Returns where the host is to write a span's parameters in the compute type: at most OFFLOAD_CHUNK
// elements, from the span's element `offset` on. *out is NULL with fp32, because then the master weights
// themselves are sent.
enum status offload_params_buffer(struct offload *offload, const struct placement_span *placed, size_t offset,
                                  void **out) MUST_CHECK;
// Copies n parameters of the span, from element `offset` on, to `to` on the device. With offload_param `to`
// is NULL: no-op.
enum status offload_params_send(struct offload *offload, const struct placement_span *placed, size_t offset,
                                size_t n, void *to) MUST_CHECK;
// Returns the stream that copies parameters to the device, and makes it wait for the work issued on `stream`
// so far. With offload_param, stage 3 copies and gathers on it, so that both overlap with compute.
enum status offload_upload_stream(struct offload *offload, struct stream *stream,
                                  struct stream **out) MUST_CHECK;
// Makes later work on `stream` see all parameters that were sent.
enum status offload_params_wait(struct offload *offload, struct stream *stream) MUST_CHECK;

#endif
