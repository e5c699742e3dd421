// Attention's RoPE (struct attention_rope) as calls of its own, rope_forward before attention and
// rope_backward after it: for devices and shapes whose attention kernels do not rotate what they load and
// store.
#ifndef ZERO_KERNELS_ATTENTION_H
#define ZERO_KERNELS_ATTENTION_H

#include "kernels/ops.h"

#define ATTENTION_ROPE_CALLS 2

// The calls before attention_forward: one where queries and keys are ranges of one tensor, else one for each.
// Returns how many; 0 without a table.
int attention_rope_forward(const struct attention_forward_args *args,
                           struct rope_forward_args calls[ATTENTION_ROPE_CALLS]);
// That of the keys alone.
struct rope_forward_args attention_rope_keys(const struct attention_forward_args *args);
// The calls after attention_backward, in the same way.
int attention_rope_backward(const struct attention_backward_args *args,
                            struct rope_backward_args calls[ATTENTION_ROPE_CALLS]);

// What is left of attention beside these calls: that of rotated queries and keys, without a table.
struct attention_forward_args attention_of_rotated(const struct attention_forward_args *args);
struct attention_backward_args attention_backward_of_rotated(const struct attention_backward_args *args);

#endif
