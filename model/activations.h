// Activation checkpoints: the residual stream before each block and after the last one. Internal to model/.
//
// Checkpoint i (0 .. n_layer) is the input of block i and the output of block i - 1. Backward reads them in
// reverse. They stay on the device or, with offload_activations, in host memory, as in DeepSpeed's
// cpu_checkpointing and ZeRO-Infinity (arXiv 2104.07857).
//
// With offloading, the device holds two buffers; checkpoint i uses buffer i % 2.
// - Forward: a block reads one buffer and writes the other. The checkpoint that is overwritten was copied to
//   the host while the previous block ran, and has until the last operation of this block to finish.
// - Backward: checkpoint i is copied back while block i + 1 runs, into the buffer that block i + 2 no longer
//   needs.
// - The last two checkpoints are never moved: backward begins with them.
//
// Copies run on a stream of their own. Events order them with the stream of the passes; the host waits for
// none. Once the passes' stream has finished a pass, its copies have finished too.
#ifndef ZERO_MODEL_ACTIVATIONS_H
#define ZERO_MODEL_ACTIVATIONS_H

#include "base/region.h"
#include "kernels/device.h"

#define ACTIVATIONS_IN_USE 2 // checkpoints that a block needs on the device: its input and its output

enum activations_place {
    ACTIVATIONS_DISCARDED, // no backward pass: only the two in use have memory
    ACTIVATIONS_ON_DEVICE,
    ACTIVATIONS_ON_HOST // the same as ON_DEVICE on a device whose memory is the host's
};

struct activation_checkpoints {
    struct device *device;
    size_t bytes;     // of one checkpoint
    bool keeps_first; // checkpoint 0 has a buffer of its own
    int lowest;       // the first checkpoint that backward reads, but for checkpoint 0 where it is kept
    int n_buffers;    // on the device: activations_at
    int n_moved;      // checkpoints `lowest` .. n_moved - 1 are copied to the host
    int *regions;     // (n_buffers, then n_moved, then the first's)
    void **buffers, **moved; // (n_buffers) on the device, (n_moved) on the host
    void *first;             // of checkpoint 0, where the buffers would be reused and it is kept
    struct stream copies;    // runs the copies to and from the host
    struct event computed;   // on the passes' stream: a buffer has been written, or is no longer read
    struct event copied[ACTIVATIONS_IN_USE]; // on `copies`: the last copy to or from a buffer
};

// Adds the buffers to the table: each has `elements` elements of `type`.
//   lowest       the first checkpoint that backward reads; those below alternate between its buffer and the
//                next one
//   keeps_first  checkpoint 0 stays on the device throughout, for blocks that mix it in
//   prefix       of the buffers' names
enum status activations_init(struct activation_checkpoints *activations, struct device *device,
                             struct region_table *table, int n_layer, enum dtype type, size_t elements,
                             enum activations_place place, int lowest, bool keeps_first,
                             const char *prefix) MUST_CHECK;
// Looks up the buffers once the table is bound, and opens the copy stream. table NULL: a dry run's buffers.
enum status activations_bind(struct activation_checkpoints *activations,
                             const struct region_table *table) MUST_CHECK;
// No-op on a zeroed struct.
void activations_free(struct activation_checkpoints *activations);

// The device buffer of checkpoint i.
void *activations_at(const struct activation_checkpoints *activations, int i);

// The four calls below order the copies with the passes on `stream`. Each is a no-op where checkpoint i is
// not moved, for i < 0, and in a dry run (stream NULL).

// Forward, before checkpoint i is written: waits until its buffer has been copied out.
enum status activations_reserve(struct activation_checkpoints *activations, struct stream *stream,
                                int i) MUST_CHECK;
// Forward, after checkpoint i was written: starts its copy to the host.
enum status activations_offload(struct activation_checkpoints *activations, struct stream *stream,
                                int i) MUST_CHECK;
// Backward, after the last use of checkpoint i + 2: starts the copy of checkpoint i back into that buffer.
enum status activations_prefetch(struct activation_checkpoints *activations, struct stream *stream,
                                 int i) MUST_CHECK;
// Backward, before checkpoint i is read: waits for the copy back.
enum status activations_wait(struct activation_checkpoints *activations, struct stream *stream,
                             int i) MUST_CHECK;

#endif
