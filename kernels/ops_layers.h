// The operations of a model's layers: embeddings, norms, linear layers, activations, rotary embedding,
// attention and the loss. Marks on the fields, types, layout and determinism are those of kernels/ops.h.
#ifndef ZERO_KERNELS_OPS_LAYERS_H
#define ZERO_KERNELS_OPS_LAYERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"

// Token and position embeddings: out[b,t,:] = wte[tokens[b,t],:] + wpe[position + t,:]. Without wpe, the
// token embedding only. With `accumulate`, out[b,t,:] += wte[tokens[b,t],:], as for value embeddings.
struct embedding_forward_args {
    void *out;             // [w] (B, T, C) type, rows out_stride apart; with accumulate [rw]
    const void *wte;       // [r] (V, C) type
    const void *wpe;       // [r] (P, C) type, P >= position + T; or NULL
    const int32_t *tokens; // [r] (B, T), each in [0, V)
    int B, T, C, V;
    size_t out_stride; // >= C
    bool accumulate;   // requires wpe to be NULL
    int position;      // position of t = 0: 0 in training, the length of the key-value cache in generation
    const int32_t *positions; // [r] (B) replaces `position` by one for each sequence; or NULL
    enum dtype type;
};

// dwte[tokens[b,t],:] += dout[b,t,:] for every (b, t); dwpe[t,:] += sum over b of dout[b,t,:].
// Determinism: each row of dwte is summed in order of (b, t).
struct embedding_backward_args {
    void *dwte;            // [+] (V, C) fp32, or NULL
    void *dwpe;            // [+] (P, C) fp32; with beta_zero [w], and rows from T on become 0; or NULL
    const void *dout;      // [r] (B, T, C) type, rows dout_stride apart
    const int32_t *tokens; // [r] (B, T)
    int B, T, C, V;
    size_t dout_stride; // >= C
    int P;              // >= T
    bool beta_zero;     // dwpe is overwritten instead of added to; dwte is always added to
    enum dtype type;
};

// Layer normalization over the last dimension (Ba et al., arXiv 1607.06450):
// out = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var + epsilon), var biased (divided by C).
struct layernorm_forward_args {
    void *out;          // [w] (N, C) type; may be x itself
    void *mean, *rstd;  // [w] (N) fp32, or both NULL when no backward follows
    const void *x;      // [r] (N, C) type
    const void *weight; // [r] (C) type
    const void *bias;   // [r] (C) type
    int N, C;
    float epsilon;
    enum dtype type;
};

// dx = dresidual + (the gradient of layernorm_forward's x). dresidual is the gradient that bypasses the
// normalization on the residual stream; adding it here saves a separate operation. If `out` is not NULL, the
// output of layernorm_forward is recomputed from x and written to it, bit for bit.
struct layernorm_backward_args {
    void *dx;                // [w] (N, C) type; may be dresidual itself, but not dout
    void *dweight, *dbias;   // [+] (C) fp32; each may be NULL
    const void *dout;        // [r] (N, C) type
    const void *dresidual;   // [r] (N, C) type, or NULL for zero
    const void *x;           // [r] (N, C) type
    const void *weight;      // [r] (C) type
    const void *mean, *rstd; // [r] (N) fp32
    void *out;               // [w] (N, C) type, or NULL
    const void *bias;        // [r] (C) type; not read if `out` is NULL
    int N, C;
    bool beta_zero; // dweight and dbias are overwritten instead of added to
    enum dtype type;
};

// Root mean square normalization over the last dimension (Zhang and Sennrich, arXiv 1910.07467):
// out = x rstd weight, rstd = 1 / sqrt(mean of x^2 + epsilon).
struct rmsnorm_forward_args {
    void *out;          // [w] (N, C) type; may be x itself
    void *rstd;         // [w] (N) fp32, or NULL when no backward follows
    const void *x;      // [r] (N, C) type
    const void *weight; // [r] (C) type, or NULL for ones
    int N, C;
    float epsilon;
    enum dtype type;
};

// dx = dresidual + (the gradient of rmsnorm_forward's x). dresidual and `out` are as in layernorm_backward.
struct rmsnorm_backward_args {
    void *dx;              // [w] (N, C) type; may be dresidual itself, but not dout
    void *dweight;         // [+] (C) fp32, or NULL; must be NULL if weight is NULL
    const void *dout;      // [r] (N, C) type
    const void *dresidual; // [r] (N, C) type, or NULL for zero
    const void *x;         // [r] (N, C) type
    const void *weight;    // [r] (C) type, or NULL for ones
    const void *rstd;      // [r] (N) fp32
    void *out;             // [w] (N, C) type, or NULL
    int N, C;
    bool beta_zero; // dweight is overwritten instead of added to
    enum dtype type;
};

enum activation { ACTIVATION_NONE, ACTIVATION_GELU, ACTIVATION_RELU_SQUARED };

// out = x weight^T + bias; then the activation is applied or the residual added. Sums are fp32.
// If pre_activation is not NULL, the activation is applied to the rounded value stored there. gelu_forward
// (or relu_squared_forward) of pre_activation then reproduces `out` bit for bit, except on a GPU if
// cuBLASLt's epilogue computes pre_activation and out.
struct linear_forward_args {
    void *out;            // [w] (N, OC) out_type, rows out_stride apart
    void *pre_activation; // [w] (N, OC) type: x weight^T + bias, or NULL; requires an activation
    const void *x;        // [r] (N, IC) type
    const void *weight;   // [r] (OC, IC) type
    const void *bias;     // [r] (OC) type, or NULL
    const void *residual; // [r] (N, OC) type, or NULL; not with an activation
    int N, IC, OC;
    int out_stride;             // >= OC; == OC with residual or an activation
    enum activation activation; // as gelu_forward and relu_squared_forward compute it
    enum dtype type;
    enum dtype out_type; // type, or fp32 (logits)
};

// dx = dout weight; dweight += dout^T x; dbias += column sums of dout. An output that is NULL is not
// computed. If pre_activation is not NULL, x is f(pre_activation), and dx is the gradient of pre_activation:
// dx = (dout weight) f'(pre_activation). The matrix product may be rounded to `type` before it is multiplied
// by f'.
struct linear_backward_args {
    void *dx;                   // [w] (N, IC) type, or NULL
    void *dweight;              // [+] (OC, IC) fp32, or NULL; [w] with beta_zero
    void *dbias;                // [+] (OC) fp32, or NULL; [w] with beta_zero or writes_dbias
    const void *dout;           // [r] (N, OC) type, rows dout_stride apart
    const void *x;              // [r] (N, IC) type; read for dweight
    const void *weight;         // [r] (OC, IC) type; read for dx
    const void *pre_activation; // [r] (N, IC) type; read for dx, or NULL
    enum activation activation; // f; read with pre_activation
    int N, IC, OC;
    int dout_stride;   // >= OC
    bool beta_zero;    // dweight and dbias are overwritten instead of added to (the GEMM's beta is 0, not 1)
    bool writes_dbias; // dbias is overwritten instead of added to
    enum dtype type;
};

// gelu(x) = 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel, arXiv 1606.08415;
// "gelu_new")
struct gelu_forward_args {
    void *out;     // [w] (n) type; may be x itself
    const void *x; // [r] (n) type
    size_t n;
    enum dtype type;
};

// dx = dout * gelu'(x)
struct gelu_backward_args {
    void *dx;         // [w] (n) type; may be dout itself
    const void *dout; // [r] (n) type
    const void *x;    // [r] (n) type: the input of gelu_forward
    size_t n;
    enum dtype type;
};

// relu_squared(x) = max(x, 0)^2 (So et al., arXiv 2109.08668)
struct relu_squared_forward_args {
    void *out;     // [w] (n) type; may be x itself
    const void *x; // [r] (n) type
    size_t n;
    enum dtype type;
};

// dx = dout * 2 max(x, 0)
struct relu_squared_backward_args {
    void *dx;         // [w] (n) type; may be dout itself
    const void *dout; // [r] (n) type
    const void *x;    // [r] (n) type: the input of relu_squared_forward
    size_t n;
    enum dtype type;
};

// The gated linear unit SwiGLU (Shazeer, arXiv 2002.05202): out = silu(gate) up, silu(z) = z / (1 + exp(-z)).
struct swiglu_forward_args {
    void *out;     // [w] (N, F) type
    const void *x; // [r] (N, 2 F) type: each row: F elements of gate, then F of up
    int N, F;
    enum dtype type;
};

// dx = the gradient of swiglu_forward's x. If `out` is not NULL, the output of swiglu_forward is recomputed
// from x and written to it, bit for bit.
struct swiglu_backward_args {
    void *dx;         // [w] (N, 2 F) type
    const void *dout; // [r] (N, F) type
    const void *x;    // [r] (N, 2 F) type
    void *out;        // [w] (N, F) type, or NULL; may be dout itself
    int N, F;
    enum dtype type;
};

// Rotary position embedding (Su et al., arXiv 2104.09864) of queries and keys, after an optional RMS
// normalization of each head (qk-norm). Row (b, t) of x has H query heads, then K key heads, of D elements
// each. H or K may be 0. y is x, or x rstd weight with `norm`. With (c, s) = table[p, i, :] at position
// p = position + t:
//   out[i]         = c y[i] - s y[i + D / 2]
//   out[i + D / 2] = c y[i + D / 2] + s y[i]     for i < D / 2 ("rotate half")
// The table determines base, scaling and partial rotation: pairs with c = 1 and s = 0 are left as they are.
// Errors, forward and backward: STATUS_UNSUPPORTED if the device has no kernel for D, or if the number of
// heads B T (H + K) exceeds the device's limit. The message names the maximum.
struct rope_forward_args {
    void *out;     // [w] (B, T, (H + K) D) type, rows out_stride apart; may be x itself
    void *rstd;    // [w] (B, T, H + K) fp32, or NULL without norm or when no backward follows
    const void *x; // [r] (B, T, (H + K) D) type, rows x_stride apart
    const void *q_weight, *k_weight; // [r] (D) type, or NULL for ones; read only with norm
    const void *table;               // [r] (P, D / 2, 2) fp32, P >= position + T
    int B, T, H, K, D;
    size_t x_stride, out_stride;
    int position;             // position of t = 0
    const int32_t *positions; // [r] (B) replaces `position` by one for each sequence; or NULL
    bool norm;
    float epsilon;
    enum dtype type;
};

// dx = the gradient of rope_forward's x. t = 0 is at position 0 in all sequences.
struct rope_backward_args {
    void *dx;                    // [w] (B, T, (H + K) D) type, rows dx_stride apart; may be dout itself
    void *dq_weight, *dk_weight; // [+] (D) fp32; each may be NULL, and must be if its weight is NULL
    const void *dout;            // [r] (B, T, (H + K) D) type, rows dout_stride apart
    const void *x;               // [r] with norm: the x of rope_forward, rows x_stride apart; else NULL
    const void *rstd;            // [r] with norm: (B, T, H + K) fp32
    const void *q_weight, *k_weight, *table; // as in rope_forward
    int B, T, H, K, D;
    size_t dx_stride, dout_stride, x_stride;
    bool norm;
    bool beta_zero; // dq_weight and dk_weight are overwritten instead of added to
    enum dtype type;
};

// Rotary position embedding of attention's queries and keys, after an optional RMS normalization of each
// head, as rope_forward computes it for the call's T positions. Each device either fuses it into its
// attention kernels or calls rope_forward and rope_backward (kernels/attention.h). If table is NULL, q and
// k are not rotated, and no other field is read.
struct attention_rope {
    const void *table;               // [r] (P, D / 2, 2) fp32, P >= S; or NULL
    const void *q_weight, *k_weight; // [r] (D) type, or NULL for ones; read only with norm
    bool norm;
    float epsilon;
    // The queries and keys that attention multiplies: (B, T, H * D) and (B, T, K * D) type, consecutive
    // sequences T positions apart. [w] in forward, [r] in backward. rotated_q may be q itself, and
    // rotated_k the last T positions of k. With S > T, rotated_k must be those positions.
    void *rotated_q, *rotated_k;
    size_t q_stride, k_stride; // between positions of rotated q and k; without norm, equal to q's and k's
    // With norm: (B, T, H + K) fp32, [w] in forward, [r] in backward. NULL if no backward follows.
    void *rstd;

    // The fields below are for backward only.

    // [w] Scratch for the gradients of rotated_q and rotated_k, with q_stride and k_stride. May be dq and dk.
    void *drotated_q, *drotated_k;
    void *dq_weight, *dk_weight; // [+] (D) fp32; NULL if the weights are NULL
    bool beta_zero;              // dq_weight and dk_weight are overwritten instead of added to
};

// Which kernels compute attention, on a device that has several. Results agree up to rounding.
enum attention_kernel {
    ATTENTION_FLASH, // this project's kernels
    ATTENTION_CUDNN, // cuDNN's for 16-bit types with S == T, otherwise this project's
};

// Causal scaled dot-product attention with grouped key-value heads (Ainslie et al., arXiv 2305.13245). Query
// head h reads columns [h * D, (h + 1) * D) of a row of q, and the columns of head g = h / (H / K) in rows of
// k and v:
//   out[b,i,h] = sum over j of softmax_j(q[b,i,h] . k[b,j,g] / sqrt(D)) v[b,j,g]
// for j from the lowest position that the query sees up to its own, S - T + i. The lowest is first[b,i] (the
// start of the query's document) or, with a window, S - T + i - window + 1, whichever is larger. Kernels
// multiply blocks of queries by blocks of keys, with an online softmax (FlashAttention, arXiv 2205.14135;
// FlashAttention-2, 2307.08691), so the (T, S) scores are never stored. A pair of blocks is skipped if none
// of its queries sees any of its keys.
// q, k and v may be column ranges of one (B, T, (H + 2 K) D) tensor; k and v may be a key-value cache
// (S > T). Devices that multiply 16-bit numbers round exp(score - max) to `type` before the product with v.
// With rope.table, q and the last T positions of k are first normalized and rotated, with the same bits as
// rope_forward at position S - T + t. Keys in a cache are already rotated.
// Errors, forward and backward: STATUS_UNSUPPORTED if the device has no kernel for the head dimension D.
// The message names the largest supported one.
struct attention_forward_args {
    void *out;         // [w] (B, T, H * D) type, dense
    void *lse;         // [w] (B, H, T) fp32: log of the sum of exp of the scaled scores, or NULL
    const void *q;     // [r] (B, T, H * D) type
    const void *k, *v; // [r] (B, S, K * D) type
    size_t q_stride, k_stride, v_stride; // between positions
    // Between sequences. With rope.table, q_batch_stride is T * q_stride, and k_batch_stride T * k_stride.
    size_t q_batch_stride, k_batch_stride, v_batch_stride;
    // [r] (B, T), or NULL for zeros: the first position that each query sees, as an index into the S
    // positions of k and v, cached ones included. At most the query's own index, S - T + t. Must not decrease
    // within a sequence.
    const int32_t *first;
    int B, T, S, H, D; // queries are the last T of the S positions; S >= T
    int K;             // key-value heads; H is a multiple of K
    int window;        // maximum number of positions that a query sees, its own included; 0: no limit
    struct attention_rope rope;
    enum attention_kernel kernel;
    enum dtype type;
};

// Gradients of attention_forward with S == T, from the lse and the rotated queries and keys that it saved.
// dq, dk and dv have the strides of q, k and v. With rope.table, dq and dk are the gradients of the unrotated
// q and k, with the same bits as rope_backward; q and k are then read only with norm.
struct attention_backward_args {
    void *dq, *dk, *dv;                  // [w] (B, T, H * D), (B, T, K * D), (B, T, K * D) type
    const void *dout;                    // [r] (B, T, H * D) type, dense
    const void *out;                     // [r] (B, T, H * D) type, dense: the output of attention_forward
    const void *lse;                     // [r] (B, H, T) fp32
    const void *q, *k, *v;               // [r] as in attention_forward
    size_t q_stride, k_stride, v_stride; // between positions of q and dq, of k and dk, of v and dv
    // Between sequences of these tensors. With rope.table, q_batch_stride is T * q_stride, and
    // k_batch_stride T * k_stride.
    size_t q_batch_stride, k_batch_stride, v_batch_stride;
    const int32_t *first; // [r] (B, T) as in attention_forward, or NULL
    int B, T, H, D;
    int K, window;              // as in attention_forward
    struct attention_rope rope; // with norm, q and k must be ranges of one tensor: k is q + H * D. The same
                                // holds for the rotated queries and keys, and for their gradients
    enum attention_kernel kernel;
    enum dtype type;
};

// Attention of one new position per sequence, for sequences of different lengths in a key-value cache. Writes
// the position's key and value to the cache, then attends to all positions of the sequence up to it. With s =
// sequences[b] and n = lengths[b]:
//   keys[s,n,:] = k[b,:]; values[s,n,:] = v[b,:];
//   out[b,h] = sum over j <= n of softmax_j(q[b,h] . keys[s,j,g] / sqrt(D)) values[s,j,g], g = h / (H / K),
// for j from first[b] on, or with a window from n - window + 1 on if that is larger. Earlier keys and values
// are not read. With rope.table, q and k are first normalized and rotated at position n, as by rope_forward,
// and rounded to `type`.
// Determinism: a sequence's result does not depend on the other sequences, their number or their lengths.
// Errors: STATUS_UNSUPPORTED as in attention_forward.
struct attention_decode_args {
    void *out;                // [w] (B, H * D) type, dense
    void *keys, *values;      // [rw] (sequences, positions, K * D) type: the cache
    const void *q, *k, *v;    // [r] (B, H * D), (B, K * D), (B, K * D) type
    const int32_t *sequences; // [r] (B), all different
    const int32_t *lengths;   // [r] (B) positions in the cache before the call, may be 0
    const int32_t *first;     // [r] (B) first position that each query sees, <= lengths[b]; NULL: zeros
    size_t q_stride, k_stride, v_stride; // between sequences of q, k and v
    size_t cache_stride;                 // between positions of keys, and of values
    size_t cache_batch_stride;           // between sequences of keys, and of values
    // The number of positions that a query sees, summed over the sequences. Given here because `lengths`
    // and `first` may be in device memory.
    size_t n_keys;
    int B, H, D;
    int K, window;              // as in attention_forward
    struct attention_rope rope; // only the fields up to epsilon are read
    enum dtype type;
};

// A weighted sum of two tensors: out = x_weight[0] x + y_weight[0] y. Used by modded-nanogpt, which mixes a
// block's input with the token embedding.
struct mix_forward_args {
    void *out;                       // [w] (n) type; may be x itself
    const void *x, *y;               // [r] (n) type
    const void *x_weight, *y_weight; // [r] (1) type
    size_t n;
    enum dtype type;
};

// dx = x_weight[0] dout; dy += y_weight[0] dout;
// dx_weight[0] += sum of dout x; dy_weight[0] += sum of dout y.
// Determinism: the two sums do not depend on the number of threads or processors. Each block of MIX_BLOCK
// elements is summed separately; the blocks' sums are added in double, in an order that depends on n only.
#define MIX_BLOCK 4096
struct mix_backward_args {
    void *dx;                        // [w] (n) type; may be dout itself
    void *dy;                        // [+] (n) fp32, or NULL; [w] with dy_zero
    void *dx_weight, *dy_weight;     // [+] (1) fp32; each may be NULL
    const void *dout, *x, *y;        // [r] (n) type
    const void *x_weight, *y_weight; // [r] (1) type
    size_t n;
    bool dy_zero;   // dy is overwritten instead of added to
    bool beta_zero; // dx_weight and dy_weight are overwritten instead of added to
    enum dtype type;
};

// Dropout (Srivastava et al., JMLR 2014): out = residual + x mask / (1 - p). An element of the mask is 0 with
// probability p, otherwise 1.
// Determinism: an element's mask depends on `key`, the number of its sequence, its position in the sequence
// and its column (kernels/dropout.h). It does not depend on the device, the number of ranks or the division
// into micro-batches. So backward repeats forward's mask, and every ZeRO stage gives the same masks.
struct dropout_forward_args {
    void *out;                 // [w] (N, C) type; may be x or residual
    const void *x;             // [r] (N, C) type
    const void *residual;      // [r] (N, C) type, or NULL for zero
    const uint64_t *sequences; // [r] (ceil(N / rows_per_sequence)) number of each sequence in the run
    int N, C;
    int rows_per_sequence; // row n is position n % rows_per_sequence of sequence n / rows_per_sequence
    uint64_t key;          // derived from the seed and the dropout's place in the model
    float p;               // in [0, 1)
    enum dtype type;
};

// dx = dout mask / (1 - p)
struct dropout_backward_args {
    void *dx;         // [w] (N, C) type; may be dout itself
    const void *dout; // [r] (N, C) type
    const uint64_t *sequences;
    int N, C, rows_per_sequence; // as in dropout_forward
    uint64_t key;
    float p;
    enum dtype type;
};

// out = cap tanh(x / cap): applies soft_cap to logits, as cross_entropy does, for generation.
struct soft_cap_args {
    void *out;     // [w] (N, V) type, rows `stride` apart; may be x itself
    const void *x; // [r] (N, V) type, rows `stride` apart
    int N, V, stride;
    float cap; // > 0
    enum dtype type;
};

// Softmax cross-entropy and its gradient, in one pass over the logits:
// losses[n] = lse(logits[n,:]) - logits[n, targets[n]];
// dlogits[n,:] = (softmax(logits[n,:]) - onehot(targets[n])) * scale. The arithmetic is fp32 and double
// whatever the types; losses are computed from the logits as stored, rounded to logits_type.
// Four options change the loss. dlogits is always the gradient of the resulting loss.
//   soft_cap         logits become soft_cap tanh(logits / soft_cap) first (Gemma 2, arXiv 2408.00118)
//   label_smoothing  e: the loss becomes (1 - e) loss + e (its mean over all V targets), as in PyTorch
//   z_loss           z: z lse^2 is added to the loss (PaLM, arXiv 2204.02311)
//   weights          multiply a row's loss and dlogits. With weight 0 both are 0, whatever the logits are
struct cross_entropy_args {
    void *losses;       // [w] (N) fp32; with soft_cap, NaN if a logit is infinite, as the cap would hide it
    void *dlogits;      // [w] (N, V + n_zeros) type, rows dlogits_stride apart, or NULL (evaluation)
    const void *logits; // [r] (N, V) logits_type, rows logits_stride apart; may be dlogits itself when
                        // types and strides are equal
    const int32_t *targets; // [r] (N), each in [0, V)
    const void *weights;    // [r] (N) fp32, each finite and at least 0; or NULL: all are 1
    int N, V;
    int n_zeros; // columns of dlogits after the first V that become 0: padding for products that read them
    int logits_stride, dlogits_stride; // >= V, >= V + n_zeros; columns beyond are not touched
    // Factor of dlogits: loss scale / (sum of the step's weights, over all ranks and micro-batches).
    float scale;
    const void *scale_from;                  // [r] (1) fp32: replaces `scale`; or NULL
    float soft_cap, label_smoothing, z_loss; // 0: none
    enum dtype type;
    enum dtype logits_type; // fp32, or type
};

#endif
