// The layers of a block, each with forward and backward: plain functions on the operations of
// kernels/ops.h. They take tensors and sizes from the parameter table. A linear layer has a bias only if
// the table has one, and a norm has a weight only if the table has one. Internal to model/.
#ifndef ZERO_MODEL_LAYERS_H
#define ZERO_MODEL_LAYERS_H

#include "model/runner.h"

// The four steps of a block, in forward order.
enum sublayer {
    SUBLAYER_QKV,       // norm, queries, keys, values, attention
    SUBLAYER_ATTN_PROJ, // attention's output projection, added to the residual stream
    SUBLAYER_FC,        // norm, the MLP's first matrix, the activation
    SUBLAYER_FC_PROJ,   // the MLP's second matrix, added to the residual stream
    N_SUBLAYERS
};

// ---- a unit in a pass

// Dropout in a training pass. The mask of an element depends on the seed, the unit, the sublayer, the
// sequence's number, the position in the sequence, and the column.
struct dropout {
    float p;                   // probability; 0: no dropout
    uint64_t seed;             // seed of the run
    const uint64_t *sequences; // (B) numbers of the sequences: gpt_inputs.sequences, in device memory
    int T;
    void *gradient; // buffer for linear_add_gradient: activation_gradients.ddropped
};

// Gradients of a block's biases that products have written to scratch memory. One operation adds them all
// to the unit's gradients at the end of the block's backward.
struct bias_gradients {
    struct add_span spans[ADD_SPANS_MOST]; // (n) where to add each gradient, in their order in `scratch`
    int n;
    size_t elements; // of all n gradients
    void *scratch;   // (elements) the gradients, one after another, in the accumulation dtype
};

struct unit_pass {
    struct runner *runner;
    const struct gpt_config *config;
    enum dtype type;             // compute type
    int N;                       // rows: positions of the pass
    const struct param *tensors; // the unit's rows of the parameter table
    const signed char *index;    // param_unit.index of the unit
    struct unit_view view;
    // NULL: products add to the gradients of biases, or overwrite them if view.beta_zero is set. Otherwise
    // products write the gradients of biases to later->scratch. This is used on a GPU, where products can
    // only overwrite a bias's gradient, for all micro-batches of a step but the first.
    struct bias_gradients *later;
    int unit;                      // number of the unit
    const struct dropout *dropout; // NULL: none
};

// Return a tensor of the unit (enum *_param): its row of the parameter table, its values, and its gradient.
// NULL if the unit does not have the tensor.
const struct param *layer_tensor(const struct unit_pass *u, int tensor);
const void *layer_weight(const struct unit_pass *u, int tensor);
void *layer_gradient(const struct unit_pass *u, int tensor); // NULL also if the tensor is frozen

// In the functions below, `weight` names the tensor W (enum *_param). The bias b is the tensor that follows
// it in the enum; b = 0 if the unit has none.

// out = x W^T + b
enum status linear(const struct unit_pass *u, int weight, const void *x, void *out) MUST_CHECK;
// out = residual + dropout(x W^T + b). Ends a branch (attention or MLP) and adds it to the residual stream.
enum status linear_add(const struct unit_pass *u, int weight, const void *x, const void *residual,
                       void *out) MUST_CHECK;
// Computes the gradient of linear_add's x W^T + b.
//   dout      gradient of linear_add's output
//   gradient  [out] the result: `dout` itself or, with dropout, a buffer that all branches share
enum status linear_add_gradient(const struct unit_pass *u, int weight, const void *dout,
                                const void **gradient) MUST_CHECK;
// out = f(before), where before = x W^T + b and f is `activation`.
//   before  [out] x W^T + b, which backward needs; NULL: not written
enum status linear_activated(const struct unit_pass *u, int weight, const void *x, enum activation activation,
                             void *before, void *out) MUST_CHECK;
// Computes dx, the gradient of a linear layer's input.
enum status linear_input_backward(const struct unit_pass *u, int weight, const void *dout,
                                  void *dx) MUST_CHECK;
// Adds to the gradients of a linear layer's weight and bias, or overwrites them if view.beta_zero is set.
enum status linear_weight_backward(const struct unit_pass *u, int weight, const void *dout,
                                   const void *x) MUST_CHECK;
// Computes the gradients of a linear layer's input (dx), weight and bias. With an activation f, where
// x = f(before), dx is the gradient of `before` instead of x.
enum status linear_backward(const struct unit_pass *u, int weight, const void *dout, const void *x,
                            enum activation activation, const void *before, void *dx) MUST_CHECK;

// out = residual + dropout(x), (N, C); residual NULL: zero. Without dropout it is a no-op, because `out` is
// then already complete: the embeddings, or a linear layer's output with the residual.
//   sublayer  the sublayer that ends with this dropout; 0 for the embeddings
//   out       may be x
enum status drop(const struct unit_pass *u, int sublayer, const void *x, const void *residual,
                 void *out) MUST_CHECK;
// dx = the gradient of drop's x. dx may be dout. No-op without dropout.
enum status drop_backward(const struct unit_pass *u, int sublayer, const void *dout, void *dx) MUST_CHECK;

// The output of a norm, and its statistics for backward.
struct norm_buffers {
    void *out, *mean, *rstd; // mean and rstd: NULL if no backward follows; mean: NULL for RMSNorm, too
};
// kept->out = norm(x): layer normalization if the parameter table has a bias for the norm, else RMSNorm.
//   weight  enum *_param of the norm's weight; its bias, if any, is the next tensor of the enum
enum status norm(const struct unit_pass *u, int weight, const void *x,
                 const struct norm_buffers *kept) MUST_CHECK;
// dx = dresidual + the gradient of norm's x; dresidual NULL: zero. Also computes the gradients of the
// norm's weight and bias.
//   recomputes  also recompute the norm's output in kept->out
enum status norm_backward(const struct unit_pass *u, int weight, const void *x,
                          const struct norm_buffers *kept, const void *dout, const void *dresidual, void *dx,
                          bool recomputes) MUST_CHECK;

// ---- a block in a pass

// A block's activations for B sequences of T positions. Letters: C = n_embd, H = n_head, K = n_kv_head,
// D = head_dim, F = intermediate_size. A pointer is NULL if the model has no such activation, or if only
// backward would read it and there is no backward.
struct block_buffers {
    void *mixed;             // (B, T, C) the block's input mixed with the token embedding
    struct norm_buffers ln1; // the norm before attention
    void *qkv;               // (B, T, (H + 2K) D) queries, keys and values
    void *rotated;           // with qk_norm: (B, T, (H + K) D) normalized and rotated queries and keys
    void *qk_rstd;           // with qk_norm: (B, T, H + K) rstd of the norm of each head
    void *attention;         // (B, T, H D) attention's output
    void *lse;               // (B, H, T) log-sum-exp of attention's scores
    void *middle;            // (B, T, C) the residual stream between attention and MLP
    struct norm_buffers ln2; // the norm before the MLP
    void *fc;                // input of the activation: (B, T, F) or, for SwiGLU, (B, T, 2 F) gate and up
    void *activated;         // (B, T, F) output of the activation
};
// Buffers of the gradients of activations, which all blocks share. The comments say of which activations.
// Letters are as in struct block_buffers.
struct activation_gradients {
    void *dresidual;  // (B, T, C) of the residual stream
    void *dbranch;    // (B, T, max(C, H D)) of a norm's output, or of attention's output
    void *dqkv;       // (B, T, (H + 2K) D) of qkv
    void *drotated;   // with qk_norm: (B, T, (H + K) D) of rotated
    void *dfc;        // (B, T, F or 2 F) of fc
    void *dbiases;    // scratch of struct bias_gradients; NULL on the CPU
    void *ddropped;   // with dropout: (B, T, C) of a branch's output before dropout
    void *dembedding; // if blocks mix: (B, T, C) of the token embedding, in the accumulation dtype
};

// The key-value cache of one block, for generation. Each sequence has (positions, 2 K D) elements: for each
// position the keys and then the values.
struct block_cache {
    void *keys_values; // NULL: no cache
    size_t stride;     // elements from one sequence to the next
    // With T > 1: the pass's only sequence, and the number of positions in its cache before the pass.
    int sequence, length;
    // With T = 1: each sequence's number in the cache, and the number of positions in its cache before the
    // pass. (B) in device memory.
    const int32_t *sequences, *lengths;
    size_t n_keys; // with T = 1: number of positions that a sequence attends to, summed over all sequences
};

// One block in a pass over B T positions. With a cache, B or T is 1: the keys and values of the positions
// are appended to the cache, and each query attends to cached positions up to its own.
struct block_pass {
    struct unit_pass unit;
    int block; // number of the block, from 0
    int B, T;
    const struct block_buffers *buffers;
    const void *x;         // (B, T, C) the block's input
    void *out;             // (B, T, C) the block's output
    const void *embedding; // (B, T, C) the token embedding (block 0's x), for blocks that mix it in
    const int32_t *tokens; // (B, T) for value embeddings
    const int32_t *first;  // (B, T) first position that each position attends to; NULL: 0 for all
    const void *rope;      // the table of attention_rope, or NULL
    enum attention_kernel attention;
    struct block_cache cache;
    const struct activation_gradients *scratch; // for backward
    // What backward recomputes, because forward did not keep it.
    bool recomputes_norm;       // the output of the sublayer's norm
    bool recomputes_activation; // the output of the MLP's activation
};

// The input of the block's branches: x or, if the block mixes, buffers->mixed.
const void *block_input(const struct block_pass *a);
// buffers->mixed = residual_weight * x + embedding_weight * embedding. No-op for a block that does not mix.
enum status mix(const struct block_pass *a) MUST_CHECK;
// Replaces the gradient of the mixed input, in scratch->dresidual, by the gradient of x. Adds to the
// gradient of the token embedding (scratch->dembedding) and to those of the two weights. No-op for a block
// that does not mix.
enum status mix_backward(const struct block_pass *a) MUST_CHECK;

// Projects the norm's output x to queries, keys and values, in buffers->qkv. With a cache and T > 1, keys
// and values are written directly to the cache instead.
enum status project_qkv(const struct block_pass *a, const void *x) MUST_CHECK;
// Adds the value embeddings of the pass's tokens to the values. No-op for a block without them.
enum status add_value_embedding(const struct block_pass *a) MUST_CHECK;
// Adds the gradient of the values, from scratch->dqkv, to the value embedding's gradient. Call it after
// attend_backward.
enum status value_embedding_backward(const struct block_pass *a) MUST_CHECK;
// Computes causal attention into buffers->attention. Queries and keys are first normalized (with qk_norm)
// and rotated (with RoPE).
enum status attend(const struct block_pass *a) MUST_CHECK;
// Computes scratch->dqkv, the gradients of queries, keys and values, from scratch->dbranch, the gradient of
// attention's output.
enum status attend_backward(const struct block_pass *a) MUST_CHECK;
// buffers->middle = block_input + attention's output projection
enum status attention_project(const struct block_pass *a) MUST_CHECK;
// Computes scratch->dbranch, the gradient of attention's output, from scratch->dresidual, the gradient of
// buffers->middle. Also computes the gradients of the projection's weight and bias.
enum status attention_project_backward(const struct block_pass *a) MUST_CHECK;

// Computes buffers->activated from buffers->middle: the norm, the MLP's first matrix and the activation.
// Not for a gated MLP.
enum status mlp_up(const struct block_pass *a) MUST_CHECK;
// Backward of the norm and the MLP's first matrix, also of a gated MLP. Computes the gradient of
// buffers->middle, the norm's input, from scratch->dfc, and adds it to scratch->dresidual.
enum status mlp_up_backward(const struct block_pass *a) MUST_CHECK;
// out = buffers->middle + the MLP's second matrix applied to buffers->activated
enum status mlp_down(const struct block_pass *a) MUST_CHECK;
// Backward of the MLP's second matrix and of the activation. Computes scratch->dfc from scratch->dresidual,
// the gradient of `out`. Not for a gated MLP.
enum status mlp_down_backward(const struct block_pass *a) MUST_CHECK;
// SwiGLU: buffers->activated = silu(gate) * up, where buffers->fc has gate and up.
enum status gated(const struct block_pass *a) MUST_CHECK;
// Computes scratch->dfc from the gradient of gated's output, which is in buffers->activated. With
// recomputes_activation, replaces that gradient by gated's output, which it recomputes.
enum status gated_backward(const struct block_pass *a) MUST_CHECK;

#endif
