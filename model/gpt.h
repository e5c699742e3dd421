// GPT-2's forward and backward on a device. Knows nothing of ZeRO, ranks or files: before each unit it asks
// the hooks for the unit's parameters (and, in backward, for the place of its gradients), and tells them when
// it is done.
#ifndef ZERO_MODEL_GPT_H
#define ZERO_MODEL_GPT_H

#include <stdbool.h>

#include "base/region.h"
#include "base/status.h"
#include "kernels/device.h"
#include "model/params.h"

// What a unit is wanted for. In GPT_BACKWARD_GRADS only its gradients are: the embeddings' second addition
// reads no parameters.
enum gpt_pass { GPT_FORWARD, GPT_BACKWARD, GPT_BACKWARD_GRADS };

// Where a unit is while it is in use: its flat span in the compute type (NULL in GPT_BACKWARD_GRADS), and its
// fp32 gradients (to be added to; NULL in GPT_FORWARD). With beta_zero, nothing was added yet, and those of
// params that are `gemm_gradient` may hold anything: what comes first is written over it.
struct unit_view {
    const void *params;
    void *grads;
    bool beta_zero;
};

// What a pass asks for next, so that it can be fetched ahead: a unit, and the first of its groups (enum
// block_group; 0 where the unit is no block). unit -1: the pass asks for no more.
struct gpt_next {
    int unit, group;
};

// What a ZeRO stage implements. Calls nest at most two deep (the head needs the embeddings' unit too). `next`
// is what the pass asks for after this unit.
// Between acquire and release the view stays valid. The embeddings' gradients are added to twice in a
// backward pass (head, then tokens): from the first acquire to grads_ready they must persist. grads_ready
// comes once a unit and backward pass, after its last gradient was added and before its release.
//
// A stage need not hold a whole block at once. While the model holds a block, it asks for each group of its
// tensors around the group's use; where group_acquire is not NULL it may set a view of that group alone, from
// which param_at finds the group's tensors as in the whole unit. It gets the unit's view, and may leave it.
// `next` is what is asked for after this group, of this unit or of another. A group whose activations are
// recomputed may stay held (GPT_FORWARD) while another one is used, until its own gradients are computed
// (GPT_BACKWARD_GRADS, inside): at most two groups are held at once. Each group is acquired once per backward
// pass with GPT_BACKWARD or GPT_BACKWARD_GRADS; at that release its gradients are complete.
struct unit_hooks {
    void *context;
    enum status (*params_acquire)(void *context, struct stream *stream, int unit, enum gpt_pass pass,
                                  struct gpt_next next, struct unit_view *view);
    enum status (*params_release)(void *context, struct stream *stream, int unit, enum gpt_pass pass);
    enum status (*grads_ready)(void *context, struct stream *stream, int unit);
    // Both NULL: a unit's view is of the whole unit.
    enum status (*group_acquire)(void *context, struct stream *stream, int unit, enum block_group group,
                                 enum gpt_pass pass, struct gpt_next next, struct unit_view *view);
    enum status (*group_release)(void *context, struct stream *stream, int unit, enum block_group group,
                                 enum gpt_pass pass);
};

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
