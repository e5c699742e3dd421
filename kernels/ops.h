// The catalogue of operations. Each takes a stream and one argument struct and returns a status. The list
// OPERATIONS generates enum operation, struct ops and each backend's prototypes. A backend that lacks an
// operation does not link.
//
// Marks on the fields:
//   [r] read   [w] written   [rw] read and written   [+] added to (gradients accumulate)
//   "or NULL"  the tensor is optional: the pointer may be NULL
// Types:
//   - `type` is the compute dtype of parameters and activations: fp32, bf16 or fp16. Arithmetic is fp32;
//     results are rounded to `type` once, to nearest even. Values beyond the type's range (65504 in fp16)
//     become infinity; they are never clamped to the largest number.
//   - The accumulation dtype is fp32. It is the type of mean and rstd of norms, lse of attention, losses,
//     gradients of parameters, master weights and optimizer states.
//   - DTYPE_F64 (tests/ref only): every floating-point tensor of the call is double, including those of the
//     accumulation dtype.
// Layout: tensors are row-major and dense unless a stride says otherwise; strides are in elements. Pointers
// are aligned to their element type only. Inputs and outputs must not overlap unless the field says so.
// Determinism: the same call on the same kind of device gives the same bits, for any number of threads.
// Errors: STATUS_FAILED when an underlying library fails. Shapes are the caller's responsibility; debug
// builds assert them.
#ifndef ZERO_KERNELS_OPS_H
#define ZERO_KERNELS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/device.h"
#include "kernels/exact_sum.h"
#include "kernels/ops_layers.h"

#define OPERATIONS(OP)                                                                                       \
    OP(embedding_forward)                                                                                    \
    OP(embedding_backward)                                                                                   \
    OP(layernorm_forward)                                                                                    \
    OP(layernorm_backward)                                                                                   \
    OP(rmsnorm_forward)                                                                                      \
    OP(rmsnorm_backward)                                                                                     \
    OP(linear_forward)                                                                                       \
    OP(linear_backward)                                                                                      \
    OP(gelu_forward)                                                                                         \
    OP(gelu_backward)                                                                                        \
    OP(relu_squared_forward)                                                                                 \
    OP(relu_squared_backward)                                                                                \
    OP(swiglu_forward)                                                                                       \
    OP(swiglu_backward)                                                                                      \
    OP(rope_forward)                                                                                         \
    OP(rope_backward)                                                                                        \
    OP(mix_forward)                                                                                          \
    OP(mix_backward)                                                                                         \
    OP(dropout_forward)                                                                                      \
    OP(dropout_backward)                                                                                     \
    OP(attention_forward)                                                                                    \
    OP(attention_backward)                                                                                   \
    OP(attention_decode)                                                                                     \
    OP(cross_entropy)                                                                                        \
    OP(soft_cap)                                                                                             \
    OP(optimizer_step)                                                                                       \
    OP(optimizer_spans)                                                                                      \
    OP(update_decide)                                                                                        \
    OP(matrix_normalize)                                                                                     \
    OP(matrix_product)                                                                                       \
    OP(matrix_add_diagonal)                                                                                  \
    OP(muon_step)                                                                                            \
    OP(sum)                                                                                                  \
    OP(sum_squares)                                                                                          \
    OP(add_squares)                                                                                          \
    OP(fill)                                                                                                 \
    OP(cast)                                                                                                 \
    OP(lerp)                                                                                                 \
    OP(add)                                                                                                  \
    OP(add_spans)                                                                                            \
    OP(sum_tree)                                                                                             \
    OP(sample)

// The rules of optimizer_step, which updates a span of elements in one pass. It unscales and clips the
// gradient, updates the moments and the master weights, and rounds the parameters to their type.
// With g = grad * grad_scale:
//   AdamW (Loshchilov and Hutter, arXiv 1711.05101)
//       m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; mhat = m / (1 - beta1^step); vhat
//       likewise; master -= lr (mhat / (sqrt(vhat) + epsilon) + weight_decay master)
//   Adam (Kingma and Ba, arXiv 1412.6980), as in PyTorch
//       g += weight_decay master; then as AdamW without decay
//   SGD with momentum beta1, as in PyTorch
//       g += weight_decay master; m = beta1 m + g (m = g on the first step); master -= lr m
//   Lion (Chen et al., arXiv 2302.06675), with sign(0) = 0
//       master -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay master); m = beta2 m + (1 - beta2) g
//   Muon (Jordan 2024), its elementwise part: Nesterov momentum beta1
//       m = beta1 m + (1 - beta1) g; param = beta1 m + (1 - beta1) g, rounded to `type`. That is the
//       direction, which zero/optimizer/rules/newton_schulz.h then orthogonalizes. master is neither read nor
//       written
//   Schedule-free AdamW (Defazio et al., arXiv 2405.15682), as facebookresearch/schedule_free computes it:
//   master holds y, where gradients are taken; m holds z; lerp computes the average x from y and z
//       z = y on the first step; v = beta2 v + (1 - beta2) g^2; vhat = v / (1 - beta2^step);
//       d = g / (sqrt(vhat) + epsilon) + weight_decay y;
//       with c, the weight of this step's z in x: y += c (z - y) + lr (beta1 (1 - c) - 1) d; z -= lr d
// Determinism: an element's update depends only on the element's own values, its index within the model and
// the scalar arguments. With int8 moments, it depends on all elements of its block of MOMENT_BLOCK. Splitting
// a span over several calls changes no bit. CPUs with fused multiply-add and GPUs agree bit for bit, except
// for the payload of a NaN.
enum optimizer_rule {
    OPTIMIZER_ADAMW,
    OPTIMIZER_ADAM,
    OPTIMIZER_SGD,
    OPTIMIZER_LION,
    OPTIMIZER_MUON,
    OPTIMIZER_SCHEDULE_FREE,
    N_OPTIMIZER_RULES
};

// The optimizer states of a span. In int8 the moments are quantized blockwise: codes, with one scale per
// block of MOMENT_BLOCK elements. kernels/moments.h defines the encodings and the rounding.
struct optimizer_state {
    void *master; // (n) fp32: the master weights
    // The moments, (n) state_type; fp32 for schedule-free AdamW. m is NULL for SGD without momentum. v is
    // used by Adam, AdamW and schedule-free AdamW only.
    void *m, *v;
    void *m_scales, *v_scales; // (ceil(n / MOMENT_BLOCK)) fp32: the scales of int8 moments
};

struct optimizer_step_args {
    enum optimizer_rule rule;
    struct optimizer_state state; // [rw]
    // [w] (n) type: the updated parameters; NULL if master is the parameters themselves (fp32 compute). Muon:
    // the direction; NULL if this rank does not need it.
    void *param;
    const void *grad; // [r] (n) grad_type
    size_t n;
    // Index of the span's first element within the model; it seeds the stochastic rounding of moments. With
    // int8 moments, a multiple of MOMENT_BLOCK.
    uint64_t first;
    int64_t step; // number of the update, from 1
    double lr, beta1, beta2, epsilon, weight_decay;
    float average_weight;  // c of schedule-free AdamW (enum optimizer_rule)
    float grad_scale;      // factor of the gradients: clipping coefficient / loss scale
    enum dtype type;       // fp32, bf16 or fp16. DTYPE_F64 (tests/ref only) makes all tensors double
    enum dtype grad_type;  // fp32, bf16 or fp16
    enum dtype state_type; // fp32, bf16 or int8
};

// The constants of one elementwise update, the same for all elements. The host computes them in double
// (kernels/update.h) and rounds them to float.
// Moments are updated as m += (1 - beta) (g - m) with 1 - beta rounded to float. If beta were rounded to
// float first, the small 1 - beta would have a far larger relative error.
struct optimizer_constants {
    float take1, take2;   // 1 - beta1, 1 - beta2
    float momentum;       // beta1, for SGD and schedule-free AdamW
    float lr;             // learning rate
    float step_size;      // lr / (1 - beta1^step)
    float root_scale;     // 1 / sqrt(1 - beta2^step)
    float epsilon, decay; // decay: lr * weight_decay, decoupled (AdamW, Lion, Muon)
    float coupled_decay;  // weight_decay, added to the gradient (Adam, SGD) or to the direction
                          // (schedule-free AdamW)
    uint32_t noise_key;   // moment_noise_key of the step
};

// The plan of one update. The host may make it before the result of the previous update is known.
#define OPTIMIZER_GROUPS 16 // maximum number of optimizer groups; each has its own constants
struct update_plan {
    int64_t step; // number of the update, from 1
    double lr, loss_scale;
    // cross_entropy's scale: loss_scale / (sum of the weights of the step's targets, over all ranks and
    // micro-batches).
    float loss_factor;
    // True if the update was planned before the previous result was known. If the previous update was
    // skipped, this one is skipped too.
    int32_t is_ahead;
    struct optimizer_constants constants[OPTIMIZER_GROUPS]; // one per optimizer group
    // Limits of update_result.loss_sum and update_result.norm. An update that exceeds either is skipped as a
    // spike. 0: no limit.
    double most_loss_sum, most_norm;
    // Factor of the new weights in the average of the weights: the weight of lerp, and c of schedule-free
    // AdamW. 0: the average is not updated.
    float average_weight;
};
// How an update ended.
enum update_ending {
    UPDATE_DONE,
    UPDATE_NOT_FINITE, // the loss or the gradients are not finite
    UPDATE_SPIKE       // the loss or the gradient norm exceeds a limit of the plan
};
struct update_result {
    double loss_sum;  // sum of the step's losses over all targets and ranks
    double norm;      // gradient norm over all ranks, before clipping, with loss_scale divided out
    float grad_scale; // clipping coefficient / loss_scale
    int32_t skipped;  // enum update_ending. Unless UPDATE_DONE, no weight or optimizer state changes
};

// Decides whether an update happens, once the losses and the squares of the gradients are summed. It is
// skipped if a sum is not finite or exceeds the plan's limit, or if plan->is_ahead is set and the previous
// update was skipped.
// With norm = sqrt(squares) / loss_scale: grad_scale = min(1, max_norm / (norm + 1e-6)) / loss_scale (as
// torch.nn.utils.clip_grad_norm_).
// Determinism: the bits are equal on all devices. The losses of the logical ranks are added in double along a
// binary tree over their numbers, ((0 + 1) + (2 + 3)) + ..., and the squares exactly. Loss j of a rank is
// that of logical rank j * ranks + rank (zero/partition/logical.h).
//
// A rank's sums are words of 8 bytes: EXACT_WORDS of int64_t, the sum of the squares of the scaled gradients
// (kernels/exact_sum.h), then n_losses of double.
static inline size_t update_sums_bytes(int n_losses) {
    return ((size_t)EXACT_WORDS + (size_t)n_losses) * sizeof(int64_t);
}
struct update_decide_args {
    struct update_result *result;   // [rw] on entry the previous update's result, read if plan->is_ahead
    const struct update_plan *plan; // [r]
    const void *sums;               // [r] (ranks, EXACT_WORDS + n_losses) the sums of each rank
    int ranks, n_losses;
    double max_norm; // 0: no clipping
};

// optimizer_step on many spans, with the plan and the result in device memory. The bits are those of one
// optimizer_step per span. Does nothing if the update is skipped.
#define OPTIMIZER_TILE 8192 // a GPU updates a span in tiles of this many elements; the last may have fewer
struct optimizer_span {
    struct optimizer_state state;
    // param, grad, n and first are as in optimizer_step_args.
    void *param;
    const void *grad;
    size_t n;
    uint64_t first;
    uint64_t first_tile; // number of tiles in the spans before this one
    // Of the span's optimizer group, whose learning rate is plan->lr * lr_scale.
    double lr_scale, weight_decay;
    int32_t group; // index of the optimizer group; plan->constants[group] include lr_scale and weight_decay
};
struct optimizer_spans_args {
    enum optimizer_rule rule;
    const struct optimizer_span *spans; // [r] (n_spans) in device memory
    int n_spans;
    int n_moments; // 0: the spans have no moments; 1: they have m; 2: m and v
    bool has_param;
    size_t n, n_tiles;                  // totals over all spans
    const struct update_plan *plan;     // [r]
    const struct update_result *result; // [r]
    double beta1, beta2, epsilon;
    enum dtype type, grad_type, state_type;
};

// matrix_normalize, matrix_product and matrix_add_diagonal process a batch: n_matrices (at least 1) of one
// shape. The `distance` of a buffer is the number of elements from the start of one matrix to the start of
// the next. It is at least the size of a matrix. The bits of a matrix's result do not depend on the rest of
// the batch. matrix.h derives the arguments for a single matrix of a batch.

// out = x / max(norm, epsilon), where norm is the matrix's Frobenius norm.
// Determinism: the squares are summed as by sum_squares, into `partial`; these sums are added in order, in
// double.
struct matrix_normalize_args {
    void *out;       // [w] matrices of (n) type; may be x itself
    const void *x;   // [r] matrices of (n) type
    double *partial; // [w] (n_matrices, ceil(n / SUM_SQUARES_BLOCK))
    size_t n;
    int n_matrices;
    size_t out_distance, x_distance;
    double epsilon;
    enum dtype type;
};

// out = alpha x y + beta addend. x or y may be stored transposed. Products are summed in fp32; the addend is
// added before rounding.
//   strip   > 0: out is known to be symmetric and is computed in strips of about this many columns
//     (matrix.h). With 1, and with any strip on a CPU, only one triangle is computed.
//     device->symmetric_strips has the fastest width. 0: the whole product is computed
struct matrix_product_args {
    void *out;          // [w] (rows, columns) type
    const void *x;      // [r] (rows, inner) type; with x_transposed (inner, rows)
    const void *y;      // [r] (inner, columns) type; with y_transposed (columns, inner); may be x itself
    const void *addend; // [r] (rows, columns) type, or NULL; symmetric if out is; may be x or y
    int rows, columns, inner;
    int n_matrices;
    size_t out_distance, x_distance, y_distance, addend_distance;
    bool x_transposed, y_transposed; // stored transposed; with strip > 0, exactly one is true
    int strip;
    double alpha, beta;
    enum dtype type;
};

// x += value I, where I is the identity matrix
struct matrix_add_diagonal_args {
    void *x; // [rw] matrices of (n, n) type
    int n;
    int n_matrices;
    size_t distance;
    double value;
    enum dtype type;
};

// master -= lr scale update + decay master, with lr and decay of plan->constants[group]; then param = master,
// rounded to `type`. Does nothing if the update is skipped.
struct muon_step_args {
    void *param;        // [w] (n) type, or NULL when master is the parameter (fp32 compute)
    void *master;       // [rw] (n) fp32
    const void *update; // [r] (n) update_type: the orthogonalized direction
    size_t n;
    int group;
    float scale;
    const struct update_plan *plan;     // [r]
    const struct update_result *result; // [r]
    enum dtype type, update_type;
};

// *out = x[0] + x[1] + ..., or *out + x[0] + x[1] + ... with `accumulate`, in double.
// Determinism: the numbers are added strictly in this order, so the bits are equal on all devices.
struct sum_args {
    double *out;   // [w], with accumulate [rw]
    const void *x; // [r] (n) type
    size_t n;
    bool accumulate;
    enum dtype type; // fp32 or F64
};

// Sums of squares of whole tensors: partial[i] is the sum over the block x[i * SUM_SQUARES_BLOCK
// ...], in double. The square of a number of any type is exact in double.
// Determinism: the bits depend neither on the number of threads nor on the device. A block has
// SUM_SQUARES_LANES sums. The square of its element k is added to sum k mod SUM_SQUARES_LANES, in order of k.
// Then the upper half of the sums is added to the lower half, until one is left.
#define SUM_SQUARES_BLOCK 65536
#define SUM_SQUARES_LANES 1024
static inline size_t sum_squares_partials(size_t n) {
    return (n + SUM_SQUARES_BLOCK - 1) / SUM_SQUARES_BLOCK;
}
struct sum_squares_args {
    double *partial; // [w] (ceil(n / SUM_SQUARES_BLOCK))
    const void *x;   // [r] (n) type
    size_t n;
    enum dtype type;
};

// Adds the squares of x to an exact sum, for the global gradient norm.
// Determinism: each leaf of SQUARES_LEAF elements is summed in double: element k is added to lane sum k mod
// SQUARES_LANES, in order of k; the lane sums are folded by halves, the upper onto the lower. The sums of
// leaves are added exactly. So the bits depend on where leaves begin, and on nothing else.
#define SQUARES_LEAF  128 // PARAM_ALIGNMENT: no partition cuts a leaf
#define SQUARES_LANES 32
struct add_squares_args {
    int64_t *sum;   // [rw] (EXACT_WORDS) kernels/exact_sum.h
    const float *x; // [r] (n)
    size_t n;
};

// out[i] = value
struct fill_args {
    void *out; // [w] (n) type
    size_t n;
    float value;
    enum dtype type;
};

// out[i] = x[i], rounded to nearest even where out_type has fewer bits.
struct cast_args {
    void *out;     // [w] (n) out_type; may be x if the types are equal
    const void *x; // [r] (n) type
    size_t n;
    enum dtype type, out_type; // fp32, bf16 or fp16, in any combination
    // bf16 or fp16: values are rounded to this type first; type and out_type must be fp32. DTYPE_F32: no
    // effect.
    enum dtype through;
};

// out[i] = x[i] + weight (y[i] - x[i]), rounded to out_type; y[i] itself where weight is 1. Computes averages
// of weights (train.ema) and the evaluation weights of schedule-free AdamW.
// Determinism: CPUs with fused multiply-add and GPUs agree bit for bit, except for the payload of a NaN.
struct lerp_args {
    void *out;     // [w] (n) out_type; may be x or y if out_type is fp32
    const void *x; // [r] (n) fp32
    const void *y; // [r] (n) fp32
    size_t n;
    float weight; // read if plan is NULL
    // [r] or NULL. If set, plan->average_weight replaces `weight`. Nothing happens if it is 0 or the update
    // is skipped.
    const struct update_plan *plan;
    const struct update_result *result; // [r] the result of the plan's update; not read if plan is NULL
    enum dtype type, out_type;          // type: fp32. DTYPE_F64 (tests/ref only) makes x and y double
};

// out[i] = x[i] + y[i] in fp32. Reduces gradients over ranks, one pair of buffers at a time.
struct add_args {
    void *out;     // [w] (n) fp32; may be x; may be y if type is fp32
    const void *x; // [r] (n) fp32
    const void *y; // [r] (n) type
    size_t n;
    enum dtype type; // of y: fp32, bf16 or fp16. DTYPE_F64 (tests/ref only) makes all tensors double
};

// spans[s].out[i] += x[first + i] in fp32, where `first` is the sum of the n of the spans before s. Adds
// several small gradients in one operation.
#define ADD_SPANS_MOST 4 // maximum number of spans
struct add_span {
    void *out; // [+] (n) fp32
    size_t n;
};
struct add_spans_args {
    const struct add_span *spans; // [r] (n_spans) in host memory, read during the call
    int n_spans;                  // 1 .. ADD_SPANS_MOST
    const void *x;                // [r] fp32: the addends of all spans, one span after another
    enum dtype type;              // fp32 (or F64 in ref)
};

// out[i] = ((x[0][i] + x[1][i]) + (x[2][i] + x[3][i])) + ..., the sum over `count` ranks along the tree of
// zero/comm/sum_tree.h, in fp32. Reduces gradients over ranks in one pass.
// Determinism: every device gives the bits of these additions done one by one in fp32.
#define SUM_TREE_MOST 65535 // maximum number of ranks
struct sum_tree_args {
    void *out; // [w] (n) fp32; with accumulate [+]: the sum is added to it
    // [r] (count) pointers in host memory, read during the call: x[r] is rank r's (n) type. On a GPU, all but
    // x[rank] must be evenly spaced, so that one kernel serves any count. x[rank] may be out if type is fp32
    // and accumulate is false.
    const void *const *x;
    size_t n;
    int count; // number of ranks, 2 .. SUM_TREE_MOST
    int rank;  // this rank
    bool accumulate;
    enum dtype type; // of x: fp32, bf16 or fp16. DTYPE_F64 (tests/ref only) makes all tensors double
};

// Draws tokens[n] from softmax(logits[n,:] / temperature), restricted to:
//   top_k   the top_k most likely tokens
//   top_p   among those, the smallest set whose probability reaches top_p, at least one token (nucleus
//     sampling, Holtzman et al., arXiv 1904.09751)
//   min_p   tokens at least min_p times as probable as the most likely one (arXiv 2407.01082)
// Tokens are ranked from the most to the least likely. Of equally likely tokens, the lower number comes
// first. Temperature 0 takes the first token of that order.
// Determinism: every device draws the same token. A token's weight is exp((logit - maximum of the row) /
// temperature), computed in double and truncated to whole units of SAMPLE_WEIGHT_UNIT, so that sums of
// weights are exact in any order.
//   - The drawn token is the first whose cumulative weight exceeds the threshold uniform * total. The
//     threshold is rounded down, and lowered to total - 1 if it is not below the total. The cumulative sum
//     runs in order of likelihood with top_k or top_p, otherwise in order of the tokens.
//   - top_p keeps tokens until the cumulative weight reaches top_p * total, rounded up. min_p keeps weights
//     of at least min_p / SAMPLE_WEIGHT_UNIT, rounded up.
#define SAMPLE_WEIGHT_UNIT 0x1p-40
struct sample_args {
    int32_t *tokens;        // [w] (N)
    const void *logits;     // [r] (N, V) type, rows logits_stride apart
    const double *uniforms; // [r] (N) random numbers in [0, 1); not read at temperature 0
    int N, V;               // V <= 2^23
    int logits_stride;      // >= V
    double temperature;
    int top_k;       // 0: no limit
    double top_p;    // 1: no limit
    double min_p;    // in [0, 1]; 0: no limit
    enum dtype type; // fp32 (or F64 in ref)
};

#define OPERATION_ENUM(name) OP_##name,
enum operation { OPERATIONS(OPERATION_ENUM) N_OPERATIONS };
#undef OPERATION_ENUM

// A backend: one function per operation, and workspace_bytes, which returns the size of the workspace that
// a call needs. workspace_bytes reads only sizes, types, strides and which pointers are NULL. It
// dereferences no pointer to a tensor.
#define OPERATION_POINTER(name)                                                                              \
    enum status (*name)(struct stream * stream, const struct name##_args *args) MUST_CHECK;
struct ops {
    OPERATIONS(OPERATION_POINTER)
    enum status (*workspace_bytes)(struct device *device, enum operation operation, const void *args,
                                   size_t *bytes) MUST_CHECK;
    // Returns the number of kernels, library products and fills that one call issues to a GPU. NULL on
    // devices without launches. Reads what workspace_bytes reads, and assumes that the libraries offer
    // every fusion that the backend requests.
    int (*launches)(struct device *device, enum operation operation, const void *args);
};
#undef OPERATION_POINTER

#endif
