// RoPE as operations around attention: rope_forward before attention_forward, rope_backward after
// attention_backward. For devices and shapes whose attention kernels cannot rotate queries and keys as they
// load and store them.
#ifndef ZERO_KERNELS_ATTENTION_H
#define ZERO_KERNELS_ATTENTION_H

#include "kernels/ops.h"

#define ATTENTION_ROPE_CALLS 2

// The rope_forward calls to make before attention_forward: one call if queries and keys are ranges of one
// tensor, otherwise one for each. Returns the number of calls; 0 without a table.
int attention_rope_forward(const struct attention_forward_args *args,
                           struct rope_forward_args calls[ATTENTION_ROPE_CALLS]);
// The rope_forward call for the keys alone.
struct rope_forward_args attention_rope_keys(const struct attention_forward_args *args);
// The rope_backward calls to make after attention_backward: again one or two. Returns the number of calls.
int attention_rope_backward(const struct attention_backward_args *args,
                            struct rope_backward_args calls[ATTENTION_ROPE_CALLS]);

// The attention_forward call to make between them: on rotated queries and keys, without a table.
struct attention_forward_args attention_of_rotated(const struct attention_forward_args *args);
struct attention_backward_args attention_backward_of_rotated(const struct attention_backward_args *args);

#endif
