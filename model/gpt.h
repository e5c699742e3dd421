// GPT-2's forward and backward on a device. Knows nothing of ZeRO, ranks or files: before each unit it asks
// the hooks for the unit's parameters (and, in backward, for the place of its gradients), and tells them when
// it is done.
#ifndef ZERO_MODEL_GPT_H
#define ZERO_MODEL_GPT_H

#include <stdbool.h>

#include "base/region.h"
#include "base/status.h"
#include "kernels/device.h"
#include "model/hooks.h"
#include "model/params.h"

// What backward computes again, a block at a time, instead of finding it kept from forward. It changes memory
// and work, and no bit. Of a block's 16 C elements a token (C: n_embd; its input counts, statistics do not):
// - RECOMPUTE_NONE keeps all.
// - RECOMPUTE_ELEMENTWISE keeps 10 C: the outputs of norms and of GELU are made again in buffers that all
//   blocks share, for about a hundredth more work. 14 C on GPUs, whose library makes GELU's output inside a
//   product, so that it would not be the same bits again.
// - RECOMPUTE_ATTENTION keeps 6 C (10 C): queries, keys, values and attention's output are made again
//   too, for about a tenth more work (a product with 3 C columns, and attention's forward). Selective
//   recomputation (Korthikanti et al., arXiv 2205.05198) gives up what is between the two products of
//   attention, its scores; attention here never stores scores, so this gives up what it reads and writes
//   instead.
// - RECOMPUTE_BLOCK keeps C, the block's input (Chen et al., arXiv 1604.06174), for about a quarter more
//   work: forward's but for its last product.
// The last block's buffers are still full when backward begins: none of it is made again.
enum gpt_recompute {
    RECOMPUTE_NONE,
    RECOMPUTE_ELEMENTWISE,
    RECOMPUTE_ATTENTION,
    RECOMPUTE_BLOCK,
    N_RECOMPUTE
};

// How often one micro-batch of training asks for the parameters of a block's group: in forward, in backward,
// and once more where recomputation does not end with what backward begins with.
int gpt_group_uses(const struct params *params, enum gpt_recompute recompute, int unit,
                   enum block_group group);

struct gpt;

// What a gpt is made for. With training false only forward passes run: activations of one block are kept.
struct gpt_options {
    enum dtype type; // compute type
    int B, T;        // micro-batch and sequence length
    enum gpt_recompute recompute;
    // With RECOMPUTE_BLOCK, on a device with memory of its own: the inputs of all blocks but the last wait in
    // host memory (model/activations.h). Elsewhere there is nothing to move. It changes no bit.
    bool offload_activations;
    bool training;
};

// Adds all the model's buffers to the table (REGION_ACTIVATIONS, REGION_LOGITS, REGION_WORKSPACE,
// REGION_DATA) and asks the device for the operations' workspace; touches no other memory. `params` must
// outlive the gpt. STATUS_INVALID for sizes that do not fit, and offload_activations without RECOMPUTE_BLOCK.
enum status gpt_new(const struct params *params, const struct gpt_options *options, struct device *device,
                    struct region_table *table, struct gpt **out) MUST_CHECK;
void gpt_delete(struct gpt *gpt);
// Finds the buffers once the table is bound (host regions pinned, where the device copies), gives the stream
// its workspace if it has no larger one, and opens what else the passes need: after it they allocate nothing.
enum status gpt_bind(struct gpt *gpt, const struct region_table *table, struct stream *stream) MUST_CHECK;

// One micro-batch forward and backward. tokens, targets: (B, T) host int32. Gradients of
// sum(losses) * loss_scale are added to the units' gradient spans. *loss_sum gets the sum of the B * T losses
// (fp32 losses summed in double, in order).
enum status gpt_forward_backward(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks,
                                 const int32_t *tokens, const int32_t *targets, float loss_scale,
                                 double *loss_sum) MUST_CHECK;
// Forward only. losses, if not NULL: (B, T) host fp32.
enum status gpt_evaluate(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks,
                         const int32_t *tokens, const int32_t *targets, double *loss_sum,
                         float *losses) MUST_CHECK;
// Logits of all positions of one batch, (B, T, vocab_size) host fp32: for tests and for looking closely.
enum status gpt_logits(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks,
                       const int32_t *tokens, float *logits) MUST_CHECK;

#endif
