// One transformer block, forward and backward: what training (gpt.c) and generation (generate.c) share.
// Internal to model/.
//
// A block's tensors form four groups (enum block_group), each a matrix product and what precedes it:
//   GROUP_QKV        ln_1, c_attn, then attention itself    x      -> attention
//   GROUP_ATTN_PROJ  attn.c_proj, + x                       ...    -> middle (the residual stream)
//   GROUP_FC         ln_2, mlp.c_fc, GELU                   middle -> gelu
//   GROUP_FC_PROJ    mlp.c_proj, + middle                   gelu   -> out
#ifndef ZERO_MODEL_BLOCK_H
#define ZERO_MODEL_BLOCK_H

#include "model/runner.h"

// ---- activations

// Sets of a block's activations, as recomputation tells them apart (enum gpt_recompute).
enum block_activations {
    BLOCK_ATTENTION = 1, // queries, keys, values, attention's output and lse; ln_1's mean and rstd
    BLOCK_MLP = 2,       // what follows attention's output, except the next two
    BLOCK_NORMS = 4,     // outputs of both norms
    BLOCK_GELU = 8,      // GELU's output
    BLOCK_ALL = BLOCK_ATTENTION | BLOCK_MLP | BLOCK_NORMS | BLOCK_GELU
};

// A block's activations, in the order in which forward writes them.
// X(name, elements, type, set, whether only backward reads it); rows = B T.
#define BLOCK_BUFFERS(X)                                                                                     \
    X(ln1, rows *C, type, BLOCK_NORMS, false)                                                                \
    X(ln1_mean, rows, accumulation, BLOCK_ATTENTION, true)                                                   \
    X(ln1_rstd, rows, accumulation, BLOCK_ATTENTION, true)                                                   \
    X(qkv, rows * 3 * C, type, BLOCK_ATTENTION, false)                                                       \
    X(attention, rows *C, type, BLOCK_ATTENTION, false)                                                      \
    X(lse, rows *H, accumulation, BLOCK_ATTENTION, true)                                                     \
    X(middle, rows *C, type, BLOCK_MLP, false) /* residual stream between attention and MLP */               \
    X(ln2, rows *C, type, BLOCK_NORMS, false)                                                                \
    X(ln2_mean, rows, accumulation, BLOCK_MLP, true)                                                         \
    X(ln2_rstd, rows, accumulation, BLOCK_MLP, true)                                                         \
    X(fc, rows * 4 * C, type, BLOCK_MLP, true) /* before GELU */                                             \
    X(gelu, rows * 4 * C, type, BLOCK_GELU, false)

#define BLOCK_POINTER(name, elements, type, set, backward) void *name;
#define BLOCK_INDEX(name, elements, type, set, backward)   int name;
struct block_buffers {
    BLOCK_BUFFERS(BLOCK_POINTER)
};
struct block_regions {
    BLOCK_BUFFERS(BLOCK_INDEX)
};
#undef BLOCK_POINTER
#undef BLOCK_INDEX

// Adds the buffers of some of a block's activations to the table and writes their indices.
//   rows          B T
//   sets          of enum block_activations; the others' indices in `out` are left alone
//   for_backward  false: buffers that only backward reads are left out (index -1, pointer NULL)
//   label         their prefix in the plan
enum status block_regions_add(struct region_table *table, struct device *device,
                              const struct gpt_config *config, enum dtype type, size_t rows, unsigned sets,
                              bool for_backward, const char *label, struct block_regions *out) MUST_CHECK;
// Looks up the buffers in a bound table. table NULL: a dry run's buffers.
void block_buffers_find(const struct block_regions *regions, const struct region_table *table,
                        struct block_buffers *out);

// ---- forward

// The key-value cache of one block (generation). Each sequence has (positions, 2 C) elements: per position,
// its keys and then its values.
struct block_cache {
    void *keys_values; // NULL: no cache
    size_t stride;     // elements from one sequence to the next
    // The positions that each sequence of the pass holds. With T > 1 there is one sequence.
    int sequence, length;
    // With T = 1: (B) each, in the device's memory, as attention_decode has them.
    const int32_t *sequences, *lengths;
    size_t n_keys;
};

// One block on rows = B T positions. With a cache, B or T is 1: the keys and values of the T positions are
// appended to it, and each query attends to all positions up to its own.
struct block_args {
    const struct gpt_config *config;
    enum dtype type; // compute type
    int B, T;
    int unit;                    // the block's, 1 .. n_layer
    const struct param *tensors; // the unit's rows of the parameter table
    const void *params;          // of the unit, or for block_group_forward of the group
    const struct block_buffers *buffers;
    const void *x;        // (B, T, C)
    void *out;            // (B, T, C)
    const int32_t *first; // (B, T) of attention, or NULL; not with a cache
    struct block_cache cache;
};
// One group. Groups are called in order; only GROUP_FC_PROJ writes `out`.
enum status block_group_forward(struct runner *runner, const struct block_args *args,
                                enum block_group group) MUST_CHECK;
// The same, between the hooks' group_acquire and group_release. args->params: the unit's, as acquired.
enum status block_group_forward_acquired(struct runner *runner, const struct unit_hooks *hooks,
                                         const struct block_args *args, enum block_group group) MUST_CHECK;

// ---- backward

// Gradients of activations: buffers that all blocks share.
struct activation_gradients {
    void *dresidual; // (B, T, C) of the residual stream
    void *dbranch;   // (B, T, C) of a branch beside it
    void *dqkv;      // (B, T, 3 C)
    void *dfc;       // (B, T, 4 C)
    // (9 C) of a block's biases, or NULL where products add these to what is there. A GPU's write them; so
    // those of a further micro-batch wait here for one kernel that adds them.
    void *dbiases;
};

struct block_backward_args {
    struct block_args forward; // as in forward; params: the unit's, as acquired for backward
    struct unit_view view;     // the unit, as acquired for backward
    const struct activation_gradients *scratch;
    unsigned recomputed;  // sets of enum block_activations that forward did not keep
    struct gpt_next next; // what is acquired after this block
};
// Turns scratch->dresidual from the gradient of `out` into that of `x`, and adds to the unit's gradients.
// Recomputes what forward did not keep, as late as possible.
enum status block_backward(struct runner *runner, const struct unit_hooks *hooks,
                           const struct block_backward_args *args) MUST_CHECK;
// The group that block_backward acquires first.
enum block_group block_backward_first(unsigned recomputed);

#endif
