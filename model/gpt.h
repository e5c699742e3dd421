// A decoder of any family (model/family.h): forward and backward on a device. It does not depend on ZeRO,
// ranks or files. A pass goes through the units (embeddings, blocks, final norm). It acquires each unit's
// parameters, and in backward its gradients, through hooks (model/hooks.h).
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

// The shape of a pass of gpt_score: B sequences of T tokens.
struct gpt_shape {
    int B, T;
};
#define GPT_MOST_SHAPES     16
#define GPT_SHORTEST_SCORED 16
// Lists the shapes that gpt_score accepts, and returns their number. The sequence lengths are T, 3/4 T,
// T/2, 3/8 T, and so on, rounded up; after T, none is below GPT_SHORTEST_SCORED tokens. A shape has as many
// sequences as fit into B * T tokens.
int gpt_shapes(int B, int T, struct gpt_shape shapes[GPT_MOST_SHAPES]);

// Creates a gpt, and adds all of its buffers to the region table (REGION_ACTIVATIONS, REGION_LOGITS,
// REGION_WORKSPACE, REGION_DATA). Sizes the workspace by a dry run; allocates none of the buffers. `params`
// must outlive the gpt. STATUS_INVALID: T or B * T is out of range, or offload_activations is set without
// RECOMPUTE_BLOCK.
enum status gpt_new(const struct params *params, const struct gpt_options *options, struct device *device,
                    struct region_table *table, struct gpt **out) MUST_CHECK;
void gpt_delete(struct gpt *gpt);
// Call after binding the table, and after page-locking its host regions that the device copies to or from.
// Sets the pointers to the buffers, gives the stream the workspace unless it has a larger one, fills the
// RoPE table, and creates the events. Passes allocate nothing.
enum status gpt_bind(struct gpt *gpt, const struct region_table *table, struct stream *stream) MUST_CHECK;

// Returns the work of one micro-batch of training, known after gpt_new; NULL if the gpt does not train.
//   further  true: a micro-batch that adds to earlier gradients; false: the first of a step
const struct gpt_work *gpt_work_of(const struct gpt *gpt, bool further);

// Records the trace of a pass over one sequence of T tokens. Needs no device. The FLOPs do not include
// padding of the vocabulary.
//   kind  TRACE_TRAINING or TRACE_EVALUATION
enum status gpt_trace(const struct params *params, enum gpt_recompute recompute, int T, enum trace_kind kind,
                      struct trace *out) MUST_CHECK;
// Computes the FLOPs of training per token, for sequences of T tokens. Counts matrix products, and
// attention (half of the T x T scores, because it is causal), but not recomputation. Backward counts twice
// as much as forward, less for frozen tensors. MFU is these FLOPs times tokens/s, divided by the peak
// FLOP/s.
enum status gpt_flops_per_token(const struct params *params, int T, double *out) MUST_CHECK;

// Loads the inputs of the next training pass. `batch` is copied, so the caller may then change it.
//   first_token  index of the batch's first token, counted over the run; the other tokens have the next
//                indices. Dropout masks depend on the index of each sequence's first token
enum status gpt_load(struct gpt *gpt, struct stream *stream, const struct token_batch *batch,
                     uint64_t first_token) MUST_CHECK;
// How gpt_train scales the losses, and where it writes their sum.
struct gpt_loss {
    float scale;             // the gradients of sum(losses) * scale are added to the units' gradients
    const float *scale_from; // [r] in device memory: value to use instead of `scale`; or NULL
    double *sum;             // [rw] in device memory: sum of the losses, added in double in their order
    bool accumulate;         // true: add the losses to *sum; false: overwrite *sum
};
// Issues forward and backward of the micro-batch that gpt_load loaded. Does not wait, and may be captured in
// a CUDA graph, whose launches repeat the same operations on the same memory. So between capture and launch
// these must not change: the gpt_loss, the addresses and beta_zero that the hooks give, what the hooks issue,
// and whether batches have weights.
enum status gpt_train(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks,
                      const struct gpt_loss *loss) MUST_CHECK;
// Calls gpt_load (with first_token 0) and gpt_train, and waits.
//   loss_scale  the gradients of sum(losses) * loss_scale are added to the units' gradients
//   loss_sum    [out] sum of the B * T fp32 losses, added in double in their order. A loss includes the
//               weight of its target
enum status gpt_forward_backward(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks,
                                 const struct token_batch *batch, float loss_scale,
                                 double *loss_sum) MUST_CHECK;
// Runs forward only, and computes the losses, without dropout, label smoothing and z-loss.
//   loss_sum  [out] as in gpt_forward_backward
//   losses    [out] (B, T) fp32 in host memory: the losses, each times the weight of its target; or NULL
enum status gpt_evaluate(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks,
                         const struct token_batch *batch, double *loss_sum, float *losses) MUST_CHECK;
// The inputs and results of gpt_score.
struct gpt_scoring {
    struct gpt_shape shape;   // one of gpt_shapes
    struct token_batch batch; // (B, T), as in `shape`
    float *losses;            // [out] (B, T) fp32 in host memory: losses times the weights of their targets
    const int *rows;          // (n_rows) positions b * T + t whose next token is to be predicted
    int n_rows;
    int32_t *predictions; // [out] (n_rows) the most likely next tokens; ties: the lowest id
};
// Runs forward only, and computes losses and predictions of scoring->batch. Requires that
// gpt_options.scoring is set.
enum status gpt_score(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks,
                      const struct gpt_scoring *scoring) MUST_CHECK;
// Runs forward only, and returns the logits of all positions. For tests and debugging.
//   batch   its targets are not used and may be NULL
//   logits  [out] (B, T, vocab_size) fp32 in host memory
enum status gpt_logits(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks,
                       const struct token_batch *batch, float *logits) MUST_CHECK;

#endif
