// Inside the model: what a gpt holds, shared by its passes (gpt.c) and the planning and binding of its
// buffers (gpt_memory.c). Not for other folders.
#ifndef ZERO_MODEL_GPT_MEMORY_H
#define ZERO_MODEL_GPT_MEMORY_H

#include "model/activations.h"
#include "model/block.h"

struct gpt {
    const struct params *params;
    struct gpt_options options;
    struct device *device;
    enum dtype accumulation; // fp32, or double on the oracle
    size_t workspace_bytes;
    int logits_rows, logits_stride;

    // Memory: region indices from gpt_new, pointers from gpt_bind.
    struct activation_checkpoints activations;
    int n_blocks;                        // of whose buffers
    struct block_regions *block_regions; // (n_blocks)
    struct block_buffers *blocks;
    struct gpt_regions {
        int tokens, targets, host_losses, losses, lnf, lnf_mean, lnf_rstd, logits, dlogits;
        int dresidual, dbranch, dqkv, dfc, workspace;
    } regions;
    struct gpt_buffers {
        void *tokens, *targets, *host_losses, *losses, *lnf, *lnf_mean, *lnf_rstd, *logits, *dlogits;
        void *dresidual, *dbranch, *dqkv, *dfc;
    } buffers;
};

// What backward makes again: a set of enum block_part.
unsigned gpt_recomputed(const struct gpt *gpt);

// Every pass that the gpt is made for, with nothing run: the workspace that its operations will need.
enum status gpt_dry_run(struct gpt *gpt, size_t *workspace_bytes) MUST_CHECK;

#endif
