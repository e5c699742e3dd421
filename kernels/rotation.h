// The rotations of attention_forward and attention_backward with a table, as calls of their own: for devices
// whose attention does not rotate what it loads and stores.
#ifndef ZERO_KERNELS_ROTATION_H
#define ZERO_KERNELS_ROTATION_H

#include <string.h>

#include "kernels/ops.h"

// Of the queries, in place: before attention_forward.
static inline struct rope_forward_args rotation_of_queries(const struct attention_forward_args *args) {
    struct rope_forward_args rope;
    memset(&rope, 0, sizeof rope);
    rope.x = rope.out = args->q;
    rope.table = args->table;
    rope.B = args->B;
    rope.T = args->T;
    rope.H = args->H;
    rope.D = args->D;
    rope.x_stride = rope.out_stride = args->q_stride;
    rope.position = args->S - args->T;
    rope.type = args->type;
    return rope;
}

// Of the gradients of queries (which 0) or keys (1), back, in place: after attention_backward.
static inline struct rope_backward_args rotation_of_gradients(const struct attention_backward_args *args,
                                                              int which) {
    struct rope_backward_args rope;
    memset(&rope, 0, sizeof rope);
    rope.dx = which ? args->dk : args->dq;
    rope.dout = rope.dx;
    rope.table = args->table;
    rope.B = args->B;
    rope.T = args->T;
    rope.H = which ? 0 : args->H;
    rope.K = which ? args->K : 0;
    rope.D = args->D;
    rope.dx_stride = rope.dout_stride = which ? args->k_stride : args->q_stride;
    rope.type = args->type;
    return rope;
}

#endif
