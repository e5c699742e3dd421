// Code shared by all families of decoders: a block's buffers, the order of backward within a block, and what
// backward recomputes. Used by training (gpt.c) and generation (generate.c). Internal to model/.
//
// A block has four sublayers (enum sublayer), each a matrix product with the operations before it. Only
// SUBLAYER_FC_PROJ writes `out`:
//   SUBLAYER_QKV        norm, queries, keys, values, attention   x      -> attention
//   SUBLAYER_ATTN_PROJ  attention's output projection, + x       ...    -> middle (the residual stream)
//   SUBLAYER_FC         norm, the MLP's first matrix             middle -> activated
//   SUBLAYER_FC_PROJ    its second, + middle                     ...    -> out
// A family may mix the token embedding into a block's x first, in SUBLAYER_QKV.
#ifndef ZERO_MODEL_DECODER_H
#define ZERO_MODEL_DECODER_H

#include "model/family.h"

// ---- activations

// The sets of a block's activations that recomputation distinguishes (enum gpt_recompute).
enum block_activations {
    BLOCK_ATTENTION = 1, // queries, keys, values, attention's output and lse; the first norm's mean and rstd
    BLOCK_MLP = 2,       // the activations after attention's output, except the next two sets
    BLOCK_NORMS = 4,     // outputs of both norms
    BLOCK_ACTIVATED = 8, // the output of the MLP's activation
    BLOCK_MIXED = 16,    // the block's mixed input, if it mixes; recomputed with the norms
    BLOCK_ALL = BLOCK_ATTENTION | BLOCK_MLP | BLOCK_NORMS | BLOCK_ACTIVATED | BLOCK_MIXED
};

// Adds buffers for some of a block's activations to the table and the list.
//   sets          of enum block_activations; pointers to other activations are not changed
//   for_backward  false: leaves out buffers that only backward reads
//   label         prefix of the buffers' names in the plan
//   blocks        (n) blocks that share the buffers
struct block_memory {
    const struct gpt_config *config;
    enum region_place place;
    enum dtype type;
    size_t rows; // B T
};
enum status block_buffers_add(struct buffer_list *buffers, struct region_table *table,
                              const struct block_memory *memory, unsigned sets, bool for_backward,
                              const char *label, struct block_buffers *blocks, int n) MUST_CHECK;

// Elements per row (position) of the gradients of activations; 0 if the family has no such gradient.
struct activation_widths {
    size_t dbranch, dqkv, drotated, dfc;
    size_t dembedding; // in the accumulation dtype
    size_t dbiases;    // per block, not per row
};
struct activation_widths activation_widths(const struct params *params);

// ---- a unit

// Describes a unit in a pass over N rows.
struct unit_pass unit_pass_of(struct runner *runner, const struct params *params, enum dtype type, int N,
                              int unit, struct unit_view view);

// ---- a block

// Turns scratch->dresidual from the gradient of `out` into the gradient of `x`, and adds to the unit's
// gradients. Recomputes activations that forward did not keep, as late as possible.
//   recomputed  sets of enum block_activations that forward did not keep
enum status block_backward(const struct block_pass *block, unsigned recomputed) MUST_CHECK;

#endif
