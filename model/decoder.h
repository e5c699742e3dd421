// Code shared by all families of decoders: a block's buffers, the order of backward within a block, and what
// backward recomputes. Used by training (gpt.c) and generation (generate.c). Internal to model/.
//
// A block has four sublayers (enum sublayer), each a matrix product with the operations around it. On the
// right: its main inputs and its output (struct block_pass, struct block_buffers).
//   SUBLAYER_QKV        norm, queries, keys, values, attention      x                 -> attention
//   SUBLAYER_ATTN_PROJ  attention's output projection, added to x   attention, x      -> middle
//   SUBLAYER_FC         norm, the MLP's first matrix, activation    middle            -> activated
//   SUBLAYER_FC_PROJ    the MLP's second matrix, added to middle    activated, middle -> out
// Only SUBLAYER_FC_PROJ writes `out`. Until then the memory of `out` may hold an older activation
// checkpoint (activations.h). In families that mix the token embedding into x, SUBLAYER_QKV does so first;
// x above is then the mix.
#ifndef ZERO_MODEL_DECODER_H
#define ZERO_MODEL_DECODER_H

#include "model/family.h"

// ---- the buffers of a block's activations

// Sets of a block's activations. The levels of recomputation (enum gpt_recompute) differ in the sets that
// backward recomputes. Each set lists members of struct block_buffers.
enum block_activations {
    BLOCK_ATTENTION = 1, // qkv, rotated, qk_rstd, attention, lse; mean and rstd of ln1
    BLOCK_MLP = 2,       // middle, fc; mean and rstd of ln2
    BLOCK_NORMS = 4,     // the outputs of ln1 and ln2
    BLOCK_ACTIVATED = 8, // activated
    BLOCK_MIXED = 16,    // mixed
    BLOCK_ALL = BLOCK_ATTENTION | BLOCK_MLP | BLOCK_NORMS | BLOCK_ACTIVATED | BLOCK_MIXED
};

// The size, type and place of a block's buffers.
struct block_memory {
    const struct gpt_config *config;
    enum region_place place;
    enum dtype type;
    size_t rows; // positions of a pass: B * T
};
// Adds buffers for some of a block's activations to the region table, and lists the pointers to them
// (members of `blocks`) in `buffers`.
//   sets          the activations: bits of enum block_activations. Pointers to others stay unchanged
//   for_backward  false: leaves out buffers that only backward reads
//   label         prefix of the buffers' names in the plan
//   blocks        (n) the blocks that share these buffers: the pointers of all n are set to the same memory
enum status block_buffers_add(struct buffer_list *buffers, struct region_table *table,
                              const struct block_memory *memory, unsigned sets, bool for_backward,
                              const char *label, struct block_buffers *blocks, int n) MUST_CHECK;

// Sizes of the buffers of struct activation_gradients: elements per row (position), except dbiases. 0: the
// model has no such gradient.
struct activation_widths {
    size_t dbranch, dqkv, drotated, dfc; // in the compute dtype
    size_t dembedding;                   // in the accumulation dtype
    size_t dbiases;                      // elements of all biases of a block; in the accumulation dtype
};
struct activation_widths activation_widths(const struct params *params);

// ---- a unit's arguments of the layers

// Returns the unit_pass with which layers.h's functions run a unit, in a pass over N rows (positions). Its
// `dropout` is NULL.
struct unit_pass unit_pass_of(struct runner *runner, const struct params *params, enum dtype type, int N,
                              int unit, struct unit_view view);

// ---- backward of a block

// Runs backward of a block. Replaces the gradient of block->out, in block->scratch->dresidual, by the
// gradient of block->x. Adds to the gradients of the block's parameters.
//   recomputed  the activations that forward did not keep, and that are therefore recomputed: bits of enum
//               block_activations
enum status block_backward(const struct block_pass *block, unsigned recomputed) MUST_CHECK;

#endif
