// A decoder of any family (model/family.h): forward and backward on a device. Knows nothing of ZeRO, ranks or
// files. It walks the units (embeddings, blocks, final norm) and acquires each unit's parameters, and in
// backward its gradients, through hooks (model/hooks.h).
#ifndef ZERO_MODEL_GPT_H
#define ZERO_MODEL_GPT_H

#include <stdbool.h>

#include "base/region.h"
#include "base/status.h"
#include "base/token_batch.h"
#include "kernels/ops.h"
#include "model/gpt_options.h"
#include "model/hooks.h"
#include "model/params.h"
#include "model/trace.h"
#include "model/work.h"

struct gpt;

// The shapes in which gpt_score computes, longest sequences first: T, 3/4 T, T/2, 3/8 T, and so on (rounded
// up) down to GPT_SHORTEST_SCORED tokens. Each has as many sequences as B * T tokens hold. Returns the number
// of shapes.
struct gpt_shape {
    int B, T;
};
#define GPT_MOST_SHAPES     16
#define GPT_SHORTEST_SCORED 16
int gpt_shapes(int B, int T, struct gpt_shape shapes[GPT_MOST_SHAPES]);

// Adds all of the model's buffers to the table (REGION_ACTIVATIONS, REGION_LOGITS, REGION_WORKSPACE,
// REGION_DATA) without touching their memory. Sizes the workspace by a dry run. `params` must outlive the
// gpt. STATUS_INVALID: sizes do not fit, or offload_activations without RECOMPUTE_BLOCK.
enum status gpt_new(const struct params *params, const struct gpt_options *options, struct device *device,
                    struct region_table *table, struct gpt **out) MUST_CHECK;
void gpt_delete(struct gpt *gpt);
// Finds the buffers once the table is bound (host regions that the device copies are page-locked), gives the
// stream its workspace unless it has a larger one, and opens what the passes need. Passes allocate nothing.
enum status gpt_bind(struct gpt *gpt, const struct region_table *table, struct stream *stream) MUST_CHECK;

// The work of one micro-batch of training, known after gpt_new; NULL if the gpt does not train.
//   further  true: a micro-batch that adds to earlier gradients; false: the first of a step
const struct gpt_work *gpt_work_of(const struct gpt *gpt, bool further);

// Records a pass of training or evaluation over one sequence of T tokens. Needs no device; FLOPs are without
// padding.
enum status gpt_trace(const struct params *params, enum gpt_recompute recompute, int T, enum trace_kind kind,
                      struct trace *out) MUST_CHECK;
// The FLOPs of training per token of sequences of T tokens, from the recorded pass: products and attention
// (half of the square, as it is causal). Backward takes twice as much as forward, but for frozen tensors.
// What is recomputed does not count. MFU is these FLOPs x tokens/s / peak.
enum status gpt_flops_per_token(const struct params *params, int T, double *out) MUST_CHECK;

// The inputs of the next pass of training. They are copied; the device reads the copy later.
//   first_token  index of the batch's first token, counted over the run; the others follow it. A sequence is
//                known to dropout's masks by the number of its first token
enum status gpt_load(struct gpt *gpt, struct stream *stream, const struct token_batch *batch,
                     uint64_t first_token) MUST_CHECK;
// Issues forward and backward of the micro-batch that gpt_load loaded. Does not wait, and may be captured in
// a CUDA graph, whose launches repeat the same operations on the same memory. So between capture and launch
// these must not change: the gpt_loss, the addresses and beta_zero that the hooks give, what the hooks issue,
// and whether batches have weights.
struct gpt_loss {
    float scale;             // the gradients of sum(losses) * scale are added to the units' gradients
    const float *scale_from; // [r] replaces `scale` by a value in the device's memory; or NULL
    double *sum;             // [w] in the device's memory: fp32 losses added in double, in order
    bool accumulate;         // add them to *sum instead
};
enum status gpt_train(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks,
                      const struct gpt_loss *loss) MUST_CHECK;
// gpt_load and gpt_train, and waits. The first token is the first of the run.
//   loss_scale  the gradients of sum(losses) * loss_scale are added to the units' gradients
//   loss_sum    [out] sum of the B * T losses, times their weights: fp32 losses added in double, in order
enum status gpt_forward_backward(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks,
                                 const struct token_batch *batch, float loss_scale,
                                 double *loss_sum) MUST_CHECK;
// Runs forward only.
//   losses  [out] (B, T) host fp32, times their weights; or NULL
enum status gpt_evaluate(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks,
                         const struct token_batch *batch, double *loss_sum, float *losses) MUST_CHECK;
// Runs forward only, for sequences in one of gpt_shapes. Needs gpt_options.scoring.
struct gpt_scoring {
    struct gpt_shape shape;
    struct token_batch batch; // (B, T) of the shape
    float *losses;            // [out] (B, T) host fp32, times their weights
    const int *rows;          // (n_rows) positions, b * T + t, to predict the next token for
    int n_rows;
    int32_t *predictions; // [out] (n_rows) the most likely next tokens; ties: the lowest id
};
enum status gpt_score(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks,
                      const struct gpt_scoring *scoring) MUST_CHECK;
// Runs forward only, and returns the logits of all positions, (B, T, vocab_size) host fp32. For tests and
// debugging.
//   batch  without targets
enum status gpt_logits(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks,
                       const struct token_batch *batch, float *logits) MUST_CHECK;

#endif
