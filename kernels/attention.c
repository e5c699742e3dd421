#include "kernels/attention.h"

// Whether the heads at `k` directly follow the H heads at `q` in each row, so that both are ranges of one
// tensor.
static bool is_one_tensor(const void *q, size_t q_stride, const void *k, size_t k_stride, int H, int D,
                          enum dtype type) {
    const char *end = (const char *)q + (size_t)H * (size_t)D * dtype_size(type);
    return (const char *)k == end && q_stride == k_stride;
}

// ---- RoPE and attention_forward

// The keys of the call's own positions: the last T of k.
static const void *new_keys(const struct attention_forward_args *args) {
    const size_t cached = (size_t)(args->S - args->T) * args->k_stride;
    return (const char *)args->k + cached * dtype_size(args->type);
}

static struct rope_forward_args rotation_of_queries(const struct attention_forward_args *args) {
    const struct attention_rope *rope = &args->rope;
    return (struct rope_forward_args){.out = rope->rotated_q,
                                      .rstd = rope->rstd,
                                      .x = args->q,
                                      .q_weight = rope->q_weight,
                                      .k_weight = rope->k_weight,
                                      .table = rope->table,
                                      .B = args->B,
                                      .T = args->T,
                                      .H = args->H,
                                      .D = args->D,
                                      .x_stride = args->q_stride,
                                      .out_stride = rope->q_stride,
                                      .position = args->S - args->T,
                                      .norm = rope->norm,
                                      .epsilon = rope->epsilon,
                                      .type = args->type};
}

struct rope_forward_args attention_rope_keys(const struct attention_forward_args *args) {
    struct rope_forward_args keys = rotation_of_queries(args);
    keys.out = args->rope.rotated_k;
    keys.x = new_keys(args);
    keys.H = 0;
    keys.K = args->K;
    keys.x_stride = args->k_stride;
    keys.out_stride = args->rope.k_stride;
    return keys;
}

int attention_rope_forward(const struct attention_forward_args *args,
                           struct rope_forward_args calls[ATTENTION_ROPE_CALLS]) {
    const struct attention_rope *rope = &args->rope;
    if (!rope->table)
        return 0;
    calls[0] = rotation_of_queries(args);
    if (is_one_tensor(args->q, args->q_stride, new_keys(args), args->k_stride, args->H, args->D,
                      args->type) &&
        is_one_tensor(rope->rotated_q, rope->q_stride, rope->rotated_k, rope->k_stride, args->H, args->D,
                      args->type)) {
        calls[0].K = args->K;
        return 1;
    }
    calls[1] = attention_rope_keys(args);
    return 2;
}

struct attention_forward_args attention_of_rotated(const struct attention_forward_args *args) {
    struct attention_forward_args rotated = *args;
    const struct attention_rope *rope = &args->rope;
    if (!rope->table)
        return rotated;
    rotated.q = rope->rotated_q;
    rotated.q_stride = rope->q_stride;
    rotated.q_batch_stride = (size_t)args->T * rope->q_stride;
    if (args->S == args->T) { // otherwise the keys were rotated in place, in the cache
        rotated.k = rope->rotated_k;
        rotated.k_stride = rope->k_stride;
        rotated.k_batch_stride = (size_t)args->T * rope->k_stride;
    }
    rotated.rope.table = NULL;
    return rotated;
}

// ---- RoPE and attention_backward

int attention_rope_backward(const struct attention_backward_args *args,
                            struct rope_backward_args calls[ATTENTION_ROPE_CALLS]) {
    const struct attention_rope *rope = &args->rope;
    if (!rope->table)
        return 0;
    calls[0] = (struct rope_backward_args){.dx = args->dq,
                                           .dq_weight = rope->dq_weight,
                                           .dk_weight = rope->dk_weight,
                                           .dout = rope->drotated_q,
                                           .x = rope->norm ? args->q : NULL,
                                           .rstd = rope->rstd,
                                           .q_weight = rope->q_weight,
                                           .k_weight = rope->k_weight,
                                           .table = rope->table,
                                           .B = args->B,
                                           .T = args->T,
                                           .H = args->H,
                                           .K = args->K,
                                           .D = args->D,
                                           .dx_stride = args->q_stride,
                                           .dout_stride = rope->q_stride,
                                           .x_stride = args->q_stride,
                                           .norm = rope->norm,
                                           .beta_zero = rope->beta_zero,
                                           .type = args->type};
    if (rope->norm ||
        (is_one_tensor(args->dq, args->q_stride, args->dk, args->k_stride, args->H, args->D, args->type) &&
         is_one_tensor(rope->drotated_q, rope->q_stride, rope->drotated_k, rope->k_stride, args->H, args->D,
                       args->type)))
        return 1;
    calls[1] = calls[0];
    calls[0].K = 0;
    calls[1].H = 0;
    calls[1].dx = args->dk;
    calls[1].dout = rope->drotated_k;
    calls[1].dx_stride = args->k_stride;
    calls[1].dout_stride = rope->k_stride;
    return 2;
}

struct attention_backward_args attention_backward_of_rotated(const struct attention_backward_args *args) {
    struct attention_backward_args rotated = *args;
    const struct attention_rope *rope = &args->rope;
    if (!rope->table)
        return rotated;
    rotated.dq = rope->drotated_q;
    rotated.dk = rope->drotated_k;
    rotated.q = rope->rotated_q;
    rotated.k = rope->rotated_k;
    rotated.q_stride = rope->q_stride;
    rotated.k_stride = rope->k_stride;
    rotated.q_batch_stride = (size_t)args->T * rope->q_stride;
    rotated.k_batch_stride = (size_t)args->T * rope->k_stride;
    rotated.rope.table = NULL;
    return rotated;
}
