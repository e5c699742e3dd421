// RoPE as operations around attention: rope_forward before attention_forward, rope_backward after
// attention_backward. Used on devices, and for shapes, whose attention kernels cannot rotate queries and
// keys themselves.
#ifndef ZERO_KERNELS_ATTENTION_H
#define ZERO_KERNELS_ATTENTION_H

#include "kernels/ops.h"

#define ATTENTION_ROPE_CALLS 2

// Sets `calls` to the rope_forward calls to make before attention_forward: one call if queries and keys are
// ranges of one tensor, otherwise one for each. Returns the number of calls; 0 if rope.table is NULL.
int attention_rope_forward(const struct attention_forward_args *args,
                           struct rope_forward_args calls[ATTENTION_ROPE_CALLS]);
// Returns the rope_forward call for the keys alone.
struct rope_forward_args attention_rope_keys(const struct attention_forward_args *args);
// Sets `calls` to the rope_backward calls to make after attention_backward, one or two as above. Returns the
// number of calls; 0 if rope.table is NULL.
int attention_rope_backward(const struct attention_backward_args *args,
                            struct rope_backward_args calls[ATTENTION_ROPE_CALLS]);

// Return the attention call to make together with these rope calls: on the rotated queries and keys, with
// rope.table set to NULL. Without a table, `args` unchanged.
struct attention_forward_args attention_of_rotated(const struct attention_forward_args *args);
struct attention_backward_args attention_backward_of_rotated(const struct attention_backward_args *args);

#endif
