// The layers of a block, each with forward and backward: plain functions on the operations of kernels/ops.h.
// They take tensors and sizes from the parameter table; a layer has a bias, and a norm a weight, if the table
// has one. Internal to model/.
#ifndef ZERO_MODEL_LAYERS_H
#define ZERO_MODEL_LAYERS_H

#include "model/runner.h"

// What a block computes, in order, each with its tensors.
enum sublayer {
    SUBLAYER_QKV,       // norm, queries, keys, values, attention
    SUBLAYER_ATTN_PROJ, // attention's output projection
    SUBLAYER_FC,        // norm, the MLP's first matrix
    SUBLAYER_FC_PROJ,   // its second
    N_SUBLAYERS
};

// ---- a unit in a pass

// Dropout in a training pass. The mask depends on the seed, the unit, the place in the block, the number of
// the sequence and the position in it.
struct dropout {
    float p;                   // 0: none
    uint64_t seed;             // seed of the run
    const uint64_t *sequences; // (B) numbers of the sequences in the run, in device memory
    int T;
    void *gradient; // ddropped of struct activation_gradients
};

// The gradients of a block's biases that are in scratch, to be added later.
struct bias_gradients {
    struct add_span spans[ADD_SPANS_MOST];
    int n;
    size_t elements; // sum over all spans
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
    // Collects the gradients of biases. NULL: products add to them. On a GPU products overwrite them, so with
    // several micro-batches they are collected in scratch for one kernel that adds them.
    struct bias_gradients *later;
    int unit;                      // number of the unit
    const struct dropout *dropout; // NULL: none
};

// A tensor of the unit (enum *_param), or NULL if the unit has none.
const struct param *layer_tensor(const struct unit_pass *u, int tensor);
const void *layer_weight(const struct unit_pass *u, int tensor);
// NULL also of a frozen tensor.
void *layer_gradient(const struct unit_pass *u, int tensor);

// out = x W^T + b; rows are OC elements apart.
enum status linear(const struct unit_pass *u, int weight, const void *x, void *out) MUST_CHECK;
// out = residual + dropout(x W^T + b): the end of a branch, added to the residual stream.
enum status linear_add(const struct unit_pass *u, int weight, const void *x, const void *residual,
                       void *out) MUST_CHECK;
// The gradient of x W^T + b in linear_add, given that of its output: `dout` itself or, with dropout, a buffer
// that all branches share.
enum status linear_add_gradient(const struct unit_pass *u, int weight, const void *dout,
                                const void **gradient) MUST_CHECK;
// out = f(x W^T + b). `before`, the input of f, is kept for backward unless it is NULL.
enum status linear_activated(const struct unit_pass *u, int weight, const void *x, enum activation activation,
                             void *before, void *out) MUST_CHECK;
// The gradient of the input.
enum status linear_input_backward(const struct unit_pass *u, int weight, const void *dout,
                                  void *dx) MUST_CHECK;
// The gradients of the weight and the bias.
enum status linear_weight_backward(const struct unit_pass *u, int weight, const void *dout,
                                   const void *x) MUST_CHECK;
// Both gradients. With an activation, x = f(before), and dx is the gradient of `before`.
enum status linear_backward(const struct unit_pass *u, int weight, const void *dout, const void *x,
                            enum activation activation, const void *before, void *dx) MUST_CHECK;

// out = residual + dropout(x), (N, C); residual NULL: zero. Without dropout it is a no-op, because `out` is
// then already complete: the embeddings, or a linear layer's output with the residual.
//   sublayer  the place in the unit; 0 in the unit of the embeddings
//   out       may be x
enum status drop(const struct unit_pass *u, int sublayer, const void *x, const void *residual,
                 void *out) MUST_CHECK;
// dx = the gradient of x; dx may be dout. No-op without dropout.
enum status drop_backward(const struct unit_pass *u, int sublayer, const void *dout, void *dx) MUST_CHECK;

// Layer normalization with a mean, or RMS normalization (mean NULL in the family's buffers).
struct norm_buffers {
    void *out, *mean, *rstd; // mean and rstd are NULL if no backward follows
};
enum status norm(const struct unit_pass *u, int weight, const void *x,
                 const struct norm_buffers *kept) MUST_CHECK;
// dx = dresidual + the gradient of x; dresidual NULL: zero.
//   recomputes  also writes the norm's output to kept->out again
enum status norm_backward(const struct unit_pass *u, int weight, const void *x,
                          const struct norm_buffers *kept, const void *dout, const void *dresidual, void *dx,
                          bool recomputes) MUST_CHECK;

// ---- a block in a pass

// A block's activations (decoder.h lists their sizes). NULL if the family has none, or if only backward would
// read them and there is no backward.
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
    void *dbranch;    // (B, T, max(C, H D)) gradient in a branch
    void *dqkv;       // (B, T, (H + 2K) D)
    void *drotated;   // (B, T, (H + K) D), with qk_norm
    void *dfc;        // (B, T, F or 2 F)
    void *dbiases;    // gradients of a block's biases, or NULL if products add to earlier gradients
    void *ddropped;   // (B, T, C), with dropout: gradient of a branch's output with the mask applied
    void *dembedding; // (B, T, C) in the accumulation dtype: gradient of the token embedding, if blocks mix
                      // it in
};

// The key-value cache of one block, for generation. Each sequence has (positions, 2 K D) elements: for each
// position the keys and then the values.
struct block_cache {
    void *keys_values; // NULL: no cache
    size_t stride;     // elements from one sequence to the next
    // With T > 1 there is one sequence; `length` is the number of positions in its cache.
    int sequence, length;
    // With T = 1: (B) each, in device memory, as for attention_decode.
    const int32_t *sequences, *lengths;
    size_t n_keys;
};

// One block on rows = B T positions. With a cache, B or T is 1: the keys and values of the positions are
// appended to the cache, and each query attends to all positions up to its own.
struct block_pass {
    struct unit_pass unit;
    int block; // number of the block, from 0
    int B, T;
    const struct block_buffers *buffers;
    const void *x; // (B, T, C)
    void *out;     // (B, T, C)
    // The token embedding (block 0's x), if blocks mix it in; and the tokens, for value embeddings.
    const void *embedding; // (B, T, C)
    const int32_t *tokens; // (B, T)
    const int32_t *first;  // (B, T) as in attention_forward; with T = 1 and a cache attention_decode; or NULL
    const void *rope;      // the table of attention_rope, or NULL
    enum attention_kernel attention;
    struct block_cache cache;
    // Backward: turns scratch->dresidual from the gradient of `out` into that of `x`.
    const struct activation_gradients *scratch;
    bool recomputes_norm, recomputes_activation; // forward did not keep these outputs
};

// The input of the block's branches: x or, if the block mixes, buffers->mixed.
const void *block_input(const struct block_pass *a);
// buffers->mixed = residual_weight x + embedding_weight embedding. No-op for a block that does not mix.
enum status mix(const struct block_pass *a) MUST_CHECK;
// Turns dresidual from the gradient of the mixed input into that of x, and adds to the gradient of the
// embedding.
enum status mix_backward(const struct block_pass *a) MUST_CHECK;

// Projects the norm's output x to queries, keys and values. With a cache and T > 1, keys and values go
// directly to the cache.
enum status project_qkv(const struct block_pass *a, const void *x) MUST_CHECK;
// Adds the value embeddings of the pass's tokens to the values. No-op for a block without them.
enum status add_value_embedding(const struct block_pass *a) MUST_CHECK;
// Adds the gradient of the values to that of the value embedding. Call it after attend_backward.
enum status value_embedding_backward(const struct block_pass *a) MUST_CHECK;
// Causal attention to buffers->attention. Queries and keys are first normalized, if the config asks for it,
// and rotated.
enum status attend(const struct block_pass *a) MUST_CHECK;
// Computes the gradients of queries, keys and values from scratch->dbranch, the gradient of attention's
// output.
enum status attend_backward(const struct block_pass *a) MUST_CHECK;
// Attention's output projection, added to block_input and written to buffers->middle; its backward turns
// dresidual into dbranch.
enum status attention_project(const struct block_pass *a) MUST_CHECK;
enum status attention_project_backward(const struct block_pass *a) MUST_CHECK;

// The norm before the MLP, the MLP's first matrix and the activation, to buffers->activated. Not for a gated
// MLP.
enum status mlp_up(const struct block_pass *a) MUST_CHECK;
// Backward of the first matrix and the norm: from dfc, added to dresidual.
enum status mlp_up_backward(const struct block_pass *a) MUST_CHECK;
// The MLP's second matrix, added to the residual stream, to `out`.
enum status mlp_down(const struct block_pass *a) MUST_CHECK;
// Backward of the second matrix and the activation: from dresidual to dfc. Not for a gated MLP.
enum status mlp_down_backward(const struct block_pass *a) MUST_CHECK;
// SwiGLU: from buffers->fc (gate, up) to buffers->activated.
enum status gated(const struct block_pass *a) MUST_CHECK;
// Turns the gradient in buffers->activated into scratch->dfc. With recomputes_activation, also recomputes
// gated's output in buffers->activated.
enum status gated_backward(const struct block_pass *a) MUST_CHECK;

#endif
