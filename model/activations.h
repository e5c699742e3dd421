// Activation checkpoints: the residual stream before each block and after the last one. Internal to model/.
//
// Checkpoint i (0 .. n_layer) is the input of block i and the output of block i - 1. Backward reads them in
// reverse. They stay on the device or, with offload_activations, in host memory, as in DeepSpeed's
// cpu_checkpointing and ZeRO-Infinity (arXiv 2104.07857).
//
// With offloading, the device holds two buffers; checkpoint i uses buffer i % 2.
// - Forward: block i reads checkpoint i. Its last operation writes checkpoint i + 1 over checkpoint i - 1,
//   after waiting until checkpoint i - 1 has been copied to the host. That copy began before block i - 1.
// - Backward: while block i + 1 runs, checkpoint i is copied back, over checkpoint i + 2, which no block
//   needs any more.
// - The last two checkpoints stay on the device, because backward begins with them.
//
// Copies run on a stream of their own. Events order them with the stream of the passes; the host does not
// wait for copies. When the passes' stream has finished a pass, the pass's copies have finished, too.
#ifndef ZERO_MODEL_ACTIVATIONS_H
#define ZERO_MODEL_ACTIVATIONS_H

#include "base/region.h"
#include "kernels/device.h"

#define ACTIVATIONS_IN_USE 2 // checkpoints that a block needs on the device: its input and its output

enum activations_place {
    ACTIVATIONS_DISCARDED, // no backward pass: checkpoints use two buffers in turn
    ACTIVATIONS_ON_DEVICE,
    ACTIVATIONS_ON_HOST // if the device is the CPU: the same as ACTIVATIONS_ON_DEVICE
};

struct activation_checkpoints {
    struct device *device;
    size_t bytes;     // of one checkpoint
    bool keeps_first; // checkpoint 0 is neither overwritten nor moved during a pass
    int lowest;       // lowest checkpoint that backward reads, not counting checkpoint 0 with keeps_first
    int n_buffers;    // number of `buffers`; activations_at maps checkpoints to them
    // Checkpoints `lowest` .. n_moved - 1 are moved to the host, except checkpoint 0 with keeps_first. If
    // n_moved is 0, none is.
    int n_moved;
    // (n_buffers + n_moved + 1) indices of the regions of `buffers`, then of `moved`, then of `first`; -1:
    // no region.
    int *regions;
    void **buffers; // (n_buffers) on the device
    void **moved;   // (n_moved) on the host: moved[i] is for checkpoint i; NULL if that is not moved
    // The buffer of checkpoint 0, if keeps_first is set and there are fewer `buffers` than checkpoints.
    // Else NULL.
    void *first;
    struct stream copies;  // runs the copies to and from the host
    struct event computed; // recorded on the passes' stream before each copy, which waits for it
    struct event copied[ACTIVATIONS_IN_USE]; // per device buffer: recorded on `copies` after each copy
};

// Adds the buffers to the region table. Each has `elements` elements of `type`.
//   lowest       lowest checkpoint that backward reads; the checkpoints below it use two buffers in turn
//   keeps_first  keep checkpoint 0, the token embedding, on the device for blocks that mix it in
//   prefix       prefix of the buffers' names in the plan
enum status activations_init(struct activation_checkpoints *activations, struct device *device,
                             struct region_table *table, int n_layer, enum dtype type, size_t elements,
                             enum activations_place place, int lowest, bool keeps_first,
                             const char *prefix) MUST_CHECK;
// Call once the table is bound: sets the pointers to the buffers and, if checkpoints are moved, creates the
// copy stream and the events. table NULL: sets the pointers to DRY_RUN_BUFFER, for a dry run.
enum status activations_bind(struct activation_checkpoints *activations,
                             const struct region_table *table) MUST_CHECK;
// No-op on a zeroed struct.
void activations_free(struct activation_checkpoints *activations);

// Returns the device buffer of checkpoint i.
void *activations_at(const struct activation_checkpoints *activations, int i);

// The next four functions issue the copies, and order them with a pass on `stream`. "Waits" means that the
// later operations of `stream` wait, not the host. A function does nothing if the checkpoint that it copies
// or waits for is not moved, or in a dry run (stream NULL).

// Forward, before checkpoint i is written over checkpoint i - 2: waits until checkpoint i - 2 has been
// copied to the host.
enum status activations_reserve(struct activation_checkpoints *activations, struct stream *stream,
                                int i) MUST_CHECK;
// Forward, after checkpoint i has been written: starts its copy to the host.
enum status activations_offload(struct activation_checkpoints *activations, struct stream *stream,
                                int i) MUST_CHECK;
// Backward, after the last use of checkpoint i + 2: starts to copy checkpoint i from the host back to the
// device, over checkpoint i + 2. Does nothing for i < 0.
enum status activations_prefetch(struct activation_checkpoints *activations, struct stream *stream,
                                 int i) MUST_CHECK;
// Backward, before checkpoint i is read: waits until it has been copied back to the device.
enum status activations_wait(struct activation_checkpoints *activations, struct stream *stream,
                             int i) MUST_CHECK;

#endif
