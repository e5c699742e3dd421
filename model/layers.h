// The layers of a block, each forward and backward: plain functions over the operations of kernels/ops.h that
// take their tensors and sizes from the table of parameters. A layer has a bias, or a norm its weight, where
// the table has one. Internal to model/.
#ifndef ZERO_MODEL_LAYERS_H
#define ZERO_MODEL_LAYERS_H

#include "model/runner.h"

// What a block computes, in order, each with its tensors.
enum block_group {
    GROUP_QKV,       // norm, queries, keys, values, attention
    GROUP_ATTN_PROJ, // attention's output projection
    GROUP_FC,        // norm, the MLP's first matrix
    GROUP_FC_PROJ,   // its second
    N_BLOCK_GROUPS
};

// ---- a unit in a pass

// Dropout in a pass of training. Where it is applied, the mask depends on the seed, the unit, the block's
// group, the number of the sequence and the position in it.
struct dropout {
    float p;                   // 0: none
    uint64_t seed;             // of the run
    const uint64_t *sequences; // (B) their numbers in the run, in the device's memory
    int T;
    void *gradient; // ddropped of struct activation_gradients
};

// The gradients of a block's biases that wait in scratch to be added.
struct bias_gradients {
    struct add_span spans[ADD_SPANS_MOST];
    int n;
    size_t elements; // of all spans
    void *scratch;
};

struct unit_pass {
    struct runner *runner;
    const struct gpt_config *config;
    enum dtype type;             // compute type
    int N;                       // rows: positions of the pass
    const struct param *tensors; // the unit's rows of the parameter table
    const signed char *index;    // of the unit (struct param_unit)
    struct unit_view view;
    // Takes the gradients of biases. NULL: products add to them. A GPU's products write them, so those of a
    // further micro-batch wait for one kernel that adds them.
    struct bias_gradients *later;
    int unit;                      // its number
    const struct dropout *dropout; // NULL: none
};

// A tensor of the unit (enum *_param), or NULL where the unit has none.
const struct param *layer_tensor(const struct unit_pass *u, int tensor);
const void *layer_weight(const struct unit_pass *u, int tensor);
// NULL also of a frozen tensor.
void *layer_gradient(const struct unit_pass *u, int tensor);

// out = x W^T + b, rows OC apart.
enum status linear(const struct unit_pass *u, int weight, const void *x, void *out) MUST_CHECK;
// out = residual + dropout(x W^T + b): the end of a branch beside the residual stream.
enum status linear_add(const struct unit_pass *u, int weight, const void *x, const void *residual,
                       void *out) MUST_CHECK;
// The gradient of linear_add's x W^T + b, from that of its output: `dout` itself, or with dropout a buffer
// that all branches share.
enum status linear_add_gradient(const struct unit_pass *u, int weight, const void *dout,
                                const void **gradient) MUST_CHECK;
// out = f(x W^T + b); `before`, what f is applied to, is kept for backward unless NULL.
enum status linear_activated(const struct unit_pass *u, int weight, const void *x, enum activation activation,
                             void *before, void *out) MUST_CHECK;
// Gradients of the input.
enum status linear_input_backward(const struct unit_pass *u, int weight, const void *dout,
                                  void *dx) MUST_CHECK;
// Gradients of the weight and its bias.
enum status linear_weight_backward(const struct unit_pass *u, int weight, const void *dout,
                                   const void *x) MUST_CHECK;
// Both. With an activation, x = f(before), and dx is the gradient of `before`.
enum status linear_backward(const struct unit_pass *u, int weight, const void *dout, const void *x,
                            enum activation activation, const void *before, void *dx) MUST_CHECK;

// out = residual + dropout(x), (N, C); residual NULL: zero. Without dropout a no-op, for an `out` that is
// whole by then: the embeddings, or a linear layer's with its residual.
//   group  the place in the unit; 0 in that of the embeddings
//   out    may be x
enum status drop(const struct unit_pass *u, int group, const void *x, const void *residual,
                 void *out) MUST_CHECK;
// dx = the gradient of x; dx may be dout. No-op without dropout.
enum status drop_backward(const struct unit_pass *u, int group, const void *dout, void *dx) MUST_CHECK;

// Layer normalization with a mean, or RMS normalization (mean NULL in the family's buffers).
struct norm_buffers {
    void *out, *mean, *rstd; // mean, rstd: NULL when no backward follows
};
enum status norm(const struct unit_pass *u, int weight, const void *x,
                 const struct norm_buffers *kept) MUST_CHECK;
// dx = dresidual + the gradient of x; dresidual NULL: zero.
//   recomputes  also writes norm's output again, to kept->out
enum status norm_backward(const struct unit_pass *u, int weight, const void *x,
                          const struct norm_buffers *kept, const void *dout, const void *dresidual, void *dx,
                          bool recomputes) MUST_CHECK;

// ---- a block in a pass

// A block's activations (decoder.h lists their sizes). NULL where the family has none, or only backward would
// read it and there is none.
struct block_buffers {
    void *mixed;             // (B, T, C) the block's input mixed with the token embedding
    struct norm_buffers ln1; // before attention
    void *qkv;               // (B, T, (H + 2K) D)
    void *rotated, *qk_rstd; // with qk_norm: (B, T, (H + K) D) rotated queries and keys; (B, T, H + K)
    void *attention, *lse;   // (B, T, H D), (B, H, T)
    void *middle;            // (B, T, C) the residual stream between attention and MLP
    struct norm_buffers ln2; // before the MLP
    void *fc;                // (B, T, F) before the activation; (B, T, 2 F) gate and up
    void *activated;         // (B, T, F)
};
// Gradients of activations: buffers that all blocks share.
struct activation_gradients {
    void *dresidual;  // (B, T, C) of the residual stream
    void *dbranch;    // (B, T, max(C, H D)) of a branch beside it
    void *dqkv;       // (B, T, (H + 2K) D)
    void *drotated;   // (B, T, (H + K) D), with qk_norm
    void *dfc;        // (B, T, F or 2 F)
    void *dbiases;    // of a block's biases, or NULL where products add to what is there
    void *ddropped;   // (B, T, C), with dropout: of what a branch adds, where its mask is applied
    void *dembedding; // (B, T, C) in the accumulation dtype: of the token embedding, where blocks mix it in
};

// The key-value cache of one block (generation). Each sequence has (positions, 2 K D) elements: per position,
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
struct block_pass {
    struct unit_pass unit;
    int block; // its number, from 0
    int B, T;
    const struct block_buffers *buffers;
    const void *x; // (B, T, C)
    void *out;     // (B, T, C)
    // The token embedding, i.e. block 0's x, where blocks mix it in; and the tokens, for value embeddings.
    const void *embedding; // (B, T, C)
    const int32_t *tokens; // (B, T)
    const int32_t *first;  // (B, T) of attention_forward; with T = 1 and a cache of attention_decode; or NULL
    const void *rope;      // the table of attention_rope, or NULL
    enum attention_kernel attention;
    struct block_cache cache;
    // Backward: turns scratch->dresidual from the gradient of `out` into that of `x`.
    const struct activation_gradients *scratch;
    bool recomputes_norm, recomputes_activation; // forward did not keep their outputs
};

// The input of the block's sublayers: x or, where the block mixes, buffers->mixed.
const void *block_input(const struct block_pass *a);
// buffers->mixed = residual_weight x + embedding_weight embedding. No-op for a block that does not mix.
enum status mix(const struct block_pass *a) MUST_CHECK;
// From dresidual, the gradient of the mixed input, to that of x; adds to the embedding's.
enum status mix_backward(const struct block_pass *a) MUST_CHECK;

// The fused projection of queries, keys and values, from the norm's output x. With a cache and T > 1 keys and
// values go directly to the cache.
enum status project_qkv(const struct block_pass *a, const void *x) MUST_CHECK;
// Adds the value embeddings of the pass's tokens to the values. No-op for a block without them.
enum status add_value_embedding(const struct block_pass *a) MUST_CHECK;
// Adds to their gradient that of the values, after attend_backward.
enum status value_embedding_backward(const struct block_pass *a) MUST_CHECK;
// Causal attention, to buffers->attention, of queries and keys that are normalized where the config has it,
// and rotated.
enum status attend(const struct block_pass *a) MUST_CHECK;
// From scratch->dbranch, the gradient of attention's output, to those of queries, keys and values.
enum status attend_backward(const struct block_pass *a) MUST_CHECK;
// Attention's output projection, added to block_input, to buffers->middle; and back, from dresidual to
// dbranch.
enum status attention_project(const struct block_pass *a) MUST_CHECK;
enum status attention_project_backward(const struct block_pass *a) MUST_CHECK;

// The norm before the MLP, its first matrix and activation, to buffers->activated. Not of a gated MLP.
enum status mlp_up(const struct block_pass *a) MUST_CHECK;
// The first matrix back, and the norm: from dfc to dresidual, which is added to.
enum status mlp_up_backward(const struct block_pass *a) MUST_CHECK;
// Its second matrix, added to the residual stream, to `out`.
enum status mlp_down(const struct block_pass *a) MUST_CHECK;
// The second matrix and the activation back: from dresidual to dfc. Not of a gated MLP.
enum status mlp_down_backward(const struct block_pass *a) MUST_CHECK;
// SwiGLU: from buffers->fc (gate, up) to buffers->activated.
enum status gated(const struct block_pass *a) MUST_CHECK;
// From the gradient in buffers->activated to scratch->dfc. With recomputes_activation, buffers->activated
// becomes gated's output again.
enum status gated_backward(const struct block_pass *a) MUST_CHECK;

#endif
