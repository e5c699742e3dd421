// The catalogue of operations. One list makes the argument tables, the backend's struct and the prototypes,
// so a backend that lacks an operation does not link. Each operation takes a stream and one argument struct.
//
// Types. `type` is the compute type of parameters and activations (fp32, bf16 or fp16). Statistics, losses,
// gradients of parameters, master weights and optimizer state are fp32. Results are computed in fp32 and
// rounded to `type` once, to nearest even; what is then beyond the type's range (65504 in fp16) becomes
// infinite, never the largest number. With type DTYPE_F64 (kernels/ref only) every floating tensor of the
// call, statistics and gradients included, is double. Tensors are
// row-major and dense unless a stride says otherwise; strides are in elements. Pointers are aligned to the
// element only. [r] read, [w] written, [rw] read and written, [+] added to (gradients accumulate). Inputs and
// outputs must not overlap unless said so. A pointer marked "or NULL" may be left out. Determinism: the same
// call on the same device with the same thread count gives the same bits. Errors: STATUS_FAILED when a
// library under it fails. Shapes are the caller's promise (asserted in debug builds).
#ifndef ZERO_KERNELS_OPS_H
#define ZERO_KERNELS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/device.h"

#define OPERATIONS(OP)                                                                                       \
    OP(embedding_forward)                                                                                    \
    OP(embedding_backward)                                                                                   \
    OP(layernorm_forward)                                                                                    \
    OP(layernorm_backward)                                                                                   \
    OP(linear_forward)                                                                                       \
    OP(linear_backward)                                                                                      \
    OP(gelu_forward)                                                                                         \
    OP(gelu_backward)                                                                                        \
    OP(attention_forward)                                                                                    \
    OP(attention_backward)                                                                                   \
    OP(cross_entropy)                                                                                        \
    OP(optimizer_step)                                                                                       \
    OP(adafactor_sums)                                                                                       \
    OP(adafactor_norms)                                                                                      \
    OP(adafactor_step)                                                                                       \
    OP(sum_squares)                                                                                          \
    OP(fill)                                                                                                 \
    OP(cast)                                                                                                 \
    OP(add)                                                                                                  \
    OP(sample)

// out[b,t,:] = wte[tokens[b,t],:] + wpe[position + t,:]
struct embedding_forward_args {
    void *out;             // [w] (B, T, C) type
    const void *wte;       // [r] (V, C) type
    const void *wpe;       // [r] (P, C) type, P >= position + T
    const int32_t *tokens; // [r] (B, T), each in [0, V)
    int B, T, C, V;
    int position; // of the first column: 0 in training, the cache's length in generation
    enum dtype type;
};

// dwte[token,:] += dout[b,t,:]; dwpe[t,:] += sum over b of dout[b,t,:]. Each row of dwte is summed in order
// of (b, t).
struct embedding_backward_args {
    void *dwte;            // [+] (V, C) fp32
    void *dwpe;            // [+] (T, C) fp32
    const void *dout;      // [r] (B, T, C) type
    const int32_t *tokens; // [r] (B, T)
    int B, T, C, V;
    enum dtype type;
};

// Layer normalisation over the last dimension (Ba et al., arXiv 1607.06450):
// out = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var + epsilon), var the mean of squares (biased).
struct layernorm_forward_args {
    void *out;          // [w] (N, C) type; may be x itself
    void *mean, *rstd;  // [w] (N) fp32, or NULL (both) when no backward follows
    const void *x;      // [r] (N, C) type
    const void *weight; // [r] (C) type
    const void *bias;   // [r] (C) type
    int N, C;
    float epsilon;
    enum dtype type;
};

// dx = dresidual + (gradient of layernorm_forward's x). dresidual carries the residual stream's gradient past
// the normalisation, so that no separate addition is needed.
struct layernorm_backward_args {
    void *dx;                // [w] (N, C) type; may be dresidual itself, not dout
    void *dweight, *dbias;   // [+] (C) fp32
    const void *dout;        // [r] (N, C) type
    const void *dresidual;   // [r] (N, C) type, or NULL for zero
    const void *x;           // [r] (N, C) type
    const void *weight;      // [r] (C) type
    const void *mean, *rstd; // [r] (N) fp32
    int N, C;
    enum dtype type;
};

// out = gelu?(x weight^T + bias) + residual. The sum of products is accumulated in fp32. With pre_gelu, GELU
// is that of what pre_gelu holds, so that gelu_forward gives the same bits again; but not where a GPU's
// library makes both inside a product.
struct linear_forward_args {
    void *out;            // [w] (N, OC) out_type, rows out_stride apart
    void *pre_gelu;       // [w] (N, OC) type: x weight^T + bias before GELU, or NULL. Only with gelu
    const void *x;        // [r] (N, IC) type
    const void *weight;   // [r] (OC, IC) type
    const void *bias;     // [r] (OC) type, or NULL
    const void *residual; // [r] (N, OC) type, or NULL; not with gelu
    int N, IC, OC;
    int out_stride; // >= OC; equal to OC with residual or gelu
    bool gelu;      // apply gelu (tanh form, see gelu_forward)
    enum dtype type;
    enum dtype out_type; // type, or fp32 (logits)
};

// dx = dout weight, dweight += dout^T x, dbias += column sums of dout. Each output may be NULL: then it is
// not made. With pre_gelu, x is gelu(pre_gelu) and dx becomes the gradient of pre_gelu: dx = (dout weight)
// gelu'(pre_gelu), where the product may be rounded to `type` first.
struct linear_backward_args {
    void *dx;             // [w] (N, IC) type, or NULL
    void *dweight;        // [+] (OC, IC) fp32, or NULL; [w] with beta_zero
    void *dbias;          // [+] (OC) fp32, or NULL
    const void *dout;     // [r] (N, OC) type, rows dout_stride apart
    const void *x;        // [r] (N, IC) type; read for dweight
    const void *weight;   // [r] (OC, IC) type; read for dx
    const void *pre_gelu; // [r] (N, IC) type; read for dx, or NULL
    int N, IC, OC;
    int dout_stride; // >= OC
    bool beta_zero;  // dweight holds nothing yet
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

// Causal scaled dot-product attention, head h reading columns [h * D, (h + 1) * D) of each row:
// out[b,i,h] = sum over j <= S - T + i of softmax_j(q[b,i,h] . k[b,j,h] / sqrt(D)) v[b,j,h].
// Blockwise with an online softmax (FlashAttention, arXiv 2205.14135; 2307.08691): T x S is never stored.
// q, k and v may be three column ranges of one (B, T, 3C) tensor, or k and v a key-value cache (S > T).
// Devices of 16-bit products round softmax's numerators to type. Forward and backward give
// STATUS_UNSUPPORTED, with the widest that can be had, for heads that a device has no kernel for.
struct attention_forward_args {
    void *out;              // [w] (B, T, H * D) type, dense
    void *lse;              // [w] (B, H, T) fp32: log of the sum of exp of the scaled scores, or NULL
    const void *q;          // [r] (B, T, H * D) type
    const void *k, *v;      // [r] (B, S, H * D) type
    size_t q_stride;        // between positions of q; a batch is q_batch_stride apart
    size_t q_batch_stride;  //
    size_t kv_stride;       // between positions of k, and of v
    size_t kv_batch_stride; //
    int B, T, S, H, D;      // T queries, the last T of S positions; S >= T
    enum dtype type;
};

// Gradient of attention_forward with S == T, from its saved lse: dq, dk and dv are written, laid out as q, k
// and v.
struct attention_backward_args {
    void *dq, *dk, *dv;    // [w] (B, T, H * D) type, strides as below
    const void *dout;      // [r] (B, T, H * D) type, dense
    const void *out;       // [r] (B, T, H * D) type, dense: what attention_forward gave
    const void *lse;       // [r] (B, H, T) fp32
    const void *q, *k, *v; // [r] (B, T, H * D) type, strides as below
    size_t stride;         // between positions of q, k, v, dq, dk, dv alike
    size_t batch_stride;   //
    int B, T, H, D;
    enum dtype type;
};

// losses[n] = lse(logits[n,:]) - logits[n, targets[n]];
// dlogits[n,:] = (softmax(logits[n,:]) - onehot(targets[n])) * scale, in one pass over the block.
struct cross_entropy_args {
    void *losses;       // [w] (N) fp32
    void *dlogits;      // [w] (N, V) type, rows dlogits_stride apart, or NULL (evaluation)
    const void *logits; // [r] (N, V) fp32, rows logits_stride apart; may be dlogits itself when type is fp32
    const int32_t *targets; // [r] (N), each in [0, V)
    int N, V;
    int logits_stride, dlogits_stride; // >= V; columns past V are not touched
    float scale;                       // 1 / (all tokens of the step)
    enum dtype type;
};

// One step of an elementwise optimizer on a span, in one pass: the gradient is unscaled and clipped, the
// moments and the master weights are updated, and the parameter is rounded to its type. With g = grad *
// grad_scale, and with lr, beta1 and the rest as below:
//   AdamW (Loshchilov and Hutter, arXiv 1711.05101)
//       m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; mhat = m / (1 - beta1^step); vhat
//       likewise; master -= lr (mhat / (sqrt(vhat) + epsilon) + weight_decay master)
//   Adam (Kingma and Ba, arXiv 1412.6980), as PyTorch has it
//       g += weight_decay master; then as AdamW without decay
//   SGD with momentum beta1, as PyTorch has it
//       g += weight_decay master; m = beta1 m + g (m = g on the first step); master -= lr m
//   Lion (Chen et al., arXiv 2302.06675), with sign(0) = 0
//       master -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay master); m = beta2 m + (1 - beta2) g
// An element's step depends on nothing but the element (in int8, its block), its number and the arguments:
// how a span is cut into calls changes no bit, nor does the device: CPUs with fused multiply-add and GPUs
// agree to the bit, but for the payload of a NaN.
enum optimizer_rule { OPTIMIZER_ADAMW, OPTIMIZER_ADAM, OPTIMIZER_SGD, OPTIMIZER_LION, N_OPTIMIZER_RULES };

// The state of a span. In int8 the moments are codes, and each block of MOMENT_BLOCK elements has a scale;
// kernels/moments.h has the encodings and how moments are rounded to them.
struct optimizer_state {
    void *master;              // (n) fp32
    void *m, *v;               // (n) state_type; v for Adam and AdamW only; m NULL for SGD without momentum
    void *m_scales, *v_scales; // (ceil(n / MOMENT_BLOCK)) fp32, for int8 only
};

struct optimizer_step_args {
    enum optimizer_rule rule;
    struct optimizer_state from; // [r] the state before
    struct optimizer_state to;   // [w] the state after: `from` itself, pointer by pointer, or elsewhere, with
                                 // no overlap: then the step can be undone exactly by going back to `from`
    void *param;                 // [w] (n) type, or NULL when master is the parameter (fp32 compute)
    const void *grad;            // [r] (n) grad_type
    size_t n;
    uint64_t first; // number of the span's first element in the model, for the noise that moments are rounded
                    // with; in int8 a multiple of MOMENT_BLOCK
    int64_t step;   // from 1
    double lr, beta1, beta2, epsilon, weight_decay;
    float grad_scale;                       // clipping and unscaling folded in
    enum dtype type, grad_type, state_type; // type, grad_type: fp32, bf16 or fp16; state_type: fp32, bf16 or
                                            // int8. `type` DTYPE_F64 makes all double (ref)
};

// Adafactor (Shazeer and Stern, arXiv 1804.04235), with PyTorch's choices (torch.optim.Adafactor): three
// operations, between which kernels/adafactor.h turns sums into factors and scales. Each works on a span,
// elements [begin, begin + n) of a (rows, columns) tensor, and every pointer to elements is to the first of
// them; a tensor of one dimension is a single row. Whole tensors are summed over, by spans, devices and
// ranks in any order, and the bits are always the same: each square is split into a multiple of a coarse unit
// and one of a fine unit, whose sums are exact (kernels/exact_sum.h). With g = grad * grad_scale in fp32:
struct adafactor_span {
    size_t begin, n;
    int columns;
};

// Adds the squares of g to the sums of their rows and of their columns, coarse parts and then fine ones. The
// units follow from `bound`, which no tensor's sum of squares exceeds (more than 2^32 numbers in a sum are
// not foreseen). With DTYPE_F64 nothing is rounded to units: all goes to the coarse sums.
struct adafactor_sums_args {
    double *row_sums;    // [+] (2, rows), or NULL where the tensor has one dimension
    double *column_sums; // [+] (2, columns)
    const void *grad;    // [r] (n) grad_type
    struct adafactor_span span;
    int rows;
    double bound;
    float grad_scale;
    enum dtype type, grad_type; // type: fp32 (or F64 in ref)
};

// What the next two read of each element, to make of it the update u = g min(row_scales[row]
// column_scales[column], largest_scale).
struct adafactor_direction {
    const void *grad;          // [r] (n) grad_type
    const void *row_scales;    // [r] (rows) fp32, or NULL for 1
    const void *column_scales; // [r] (columns) fp32
    float largest_scale, grad_scale;
    enum dtype grad_type;
};

// Adds to `sums` the squares of u, coarse and fine, in units that follow from the sum's bound `update_bound`
// and the tensor's size; then those of the master weights likewise, whose sum is taken to be
// ADAFACTOR_WEIGHTS_BOUND where it is more.
#define ADAFACTOR_WEIGHTS_BOUND  0x1p40
#define ADAFACTOR_LARGEST_WEIGHT 0x1p20f // whose square that is
struct adafactor_norms_args {
    double *sums;       // [+] (4)
    const void *master; // [r] (n) fp32
    struct adafactor_direction direction;
    struct adafactor_span span;
    size_t elements; // of the tensor
    double update_bound;
    enum dtype type; // fp32 (or F64 in ref)
};

// master -= step_size u + decay master; param = rounded master.
struct adafactor_step_args {
    void *param;  // [w] (n) type, or NULL when master is the parameter (fp32 compute)
    void *master; // [rw] (n) fp32
    struct adafactor_direction direction;
    struct adafactor_span span;
    double step_size, decay;
    enum dtype type;
};

// partial[i] = sum of squares of x[i * SUM_SQUARES_BLOCK ...], in double and in a fixed order, so that the
// global norm depends neither on threads or shards nor on the device: element k of a block is added to
// running sum k mod SUM_SQUARES_LANES, in order of k, and the running sums are folded by halves, the upper
// onto the lower (a square of a float is exact in double). partial has ceil(n / SUM_SQUARES_BLOCK) elements.
#define SUM_SQUARES_BLOCK 65536
#define SUM_SQUARES_LANES 1024
struct sum_squares_args {
    double *partial; // [w]
    const void *x;   // [r] (n) type
    size_t n;
    enum dtype type; // fp32 (or F64 in ref)
};

// out[i] = value
struct fill_args {
    void *out; // [w] (n) type
    size_t n;
    float value;
    enum dtype type;
};

// out[i] = x[i], rounded to nearest even where out_type is narrower.
struct cast_args {
    void *out;     // [w] (n) out_type
    const void *x; // [r] (n) type
    size_t n;
    enum dtype type, out_type; // fp32, bf16 or fp16, in any pairing
};

// out[i] = x[i] + y[i], the sum taken and kept in fp32: how ranks' gradients come together, one rank at a
// time.
struct add_args {
    void *out;     // [w] (n) fp32; may be x, and y where type is fp32
    const void *x; // [r] (n) fp32
    const void *y; // [r] (n) type
    size_t n;
    enum dtype type; // of y: fp32, bf16 or fp16 (DTYPE_F64 in ref makes all double)
};

// tokens[n] is drawn from softmax(logits[n,:] / temperature), cut to the top_k likeliest and, of those, to
// the fewest that together reach the probability top_p, one at least (nucleus sampling, Holtzman et al.,
// arXiv 1904.09751). The likelier comes first, of equals the lower token; at temperature 0 the first is
// taken. A token's weight is exp((logit - the row's largest) / temperature) in double, in whole units of
// SAMPLE_WEIGHT_UNIT: sums of weights are exact, in any order, and every device draws the same. It draws the
// first token whose running sum exceeds uniform * total, rounded down and below total; the sum runs in order
// of likelihood where top_k or top_p cuts, else in order of the tokens. Reached is top_p * total, rounded up.
// V at most 2^23.
#define SAMPLE_WEIGHT_UNIT 0x1p-40
struct sample_args {
    int32_t *tokens;        // [w] (N)
    const void *logits;     // [r] (N, V) type, rows logits_stride apart
    const double *uniforms; // [r] (N), each in [0, 1); not read at temperature 0
    int N, V;
    int logits_stride; // >= V
    double temperature;
    int top_k;       // 0: all
    double top_p;    // 1: all
    enum dtype type; // fp32 (or F64 in ref)
};

// One pointer an operation, and the question how much workspace a call will need (only sizes, types, strides
// and which pointers are NULL are looked at: any non-NULL pointer will do).
#define OPERATION_ENUM(name) OP_##name,
enum operation { OPERATIONS(OPERATION_ENUM) N_OPERATIONS };
#undef OPERATION_ENUM

#define OPERATION_POINTER(name)                                                                              \
    enum status (*name)(struct stream * stream, const struct name##_args *args) MUST_CHECK;
struct ops {
    OPERATIONS(OPERATION_POINTER)
    enum status (*workspace_bytes)(struct device *device, enum operation operation, const void *args,
                                   size_t *bytes) MUST_CHECK;
};
#undef OPERATION_POINTER

const char *operation_name(enum operation operation);

#endif
