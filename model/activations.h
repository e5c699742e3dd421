// The residual stream before each block and after the last (0 .. n_layer): where it waits for backward.
// Inside the model; not for other folders. Kept on the device, or (offload_activations) in host memory, as
// DeepSpeed's cpu_checkpointing and ZeRO-Infinity (arXiv 2104.07857) have it: copied out while the next block
// computes, and back a block ahead of its use.
//
// Two buffers are then enough on the device. Residual i is in buffer i % 2: a block reads one and writes the
// other, whose former residual has been copying out for the whole block before, and all of this one but its
// last operation. In backward the block after it is done with the buffer that the block before it needs. The
// last two residuals never leave: backward begins with them.
//
// Copies run on a stream of their own, ordered with the passes' by events; the host waits for none. When the
// passes' stream has done its work, so have the copies.
#ifndef ZERO_MODEL_ACTIVATIONS_H
#define ZERO_MODEL_ACTIVATIONS_H

#include "base/region.h"
#include "kernels/device.h"

#define RESIDUALS_IN_USE 2 // at any time: what a block reads, and what it writes

// RESIDUALS_NOT_KEPT: no backward pass follows, and only what is in use is there.
enum residuals_keeping { RESIDUALS_NOT_KEPT, RESIDUALS_ON_DEVICE, RESIDUALS_ON_HOST };

struct residuals {
    struct device *device;
    size_t bytes;            // of one
    int n_buffers;           // residual i is in buffer i % n_buffers
    int n_moved;             // residuals 0 .. n_moved - 1 wait on the host
    int *regions;            // (n_buffers, then n_moved)
    void **buffers, **moved; // (n_buffers), (n_moved)
    struct stream copies;    // of what is moved
    struct event computed;   // on the passes' stream: a buffer was written, or is no longer read
    struct event copied[RESIDUALS_IN_USE]; // on `copies`: to or from a buffer
};

// Adds the buffers to the table, each of so many elements of a type. RESIDUALS_ON_HOST where memory is the
// host's is RESIDUALS_ON_DEVICE.
enum status residuals_init(struct residuals *residuals, struct device *device, struct region_table *table,
                           int n_layer, enum dtype type, size_t elements,
                           enum residuals_keeping keeping) MUST_CHECK;
// Finds the buffers, and opens the stream where copies will be; table NULL: buffers of a dry run.
enum status residuals_bind(struct residuals *residuals, const struct region_table *table) MUST_CHECK;
// Zeroed ones are left alone.
void residuals_free(struct residuals *residuals);

// Where residual i is while it is in use.
void *residual_at(const struct residuals *residuals, int i);

// In passes that backward follows: before residual i is written, and after. stream NULL (a dry run):
// nothing.
enum status residuals_make_room(struct residuals *residuals, struct stream *stream, int i) MUST_CHECK;
enum status residuals_move_out(struct residuals *residuals, struct stream *stream, int i) MUST_CHECK;
// In backward: when residual i + 2 was used for the last time (i < 0: there is none to fetch), and before i
// is read.
enum status residuals_fetch(struct residuals *residuals, struct stream *stream, int i) MUST_CHECK;
enum status residuals_await(struct residuals *residuals, struct stream *stream, int i) MUST_CHECK;

#endif
