// How a decoder is run: the sizes and the types of its passes, and what they keep for backward.
#ifndef ZERO_MODEL_GPT_OPTIONS_H
#define ZERO_MODEL_GPT_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "kernels/ops.h"

// What backward recomputes, block by block, instead of keeping it from forward. Recomputing trades work for
// memory and changes no bit. The figures are for GPT-2, whose blocks have 16 C elements per token (C =
// n_embd): the block's input and all activations but mean, rstd and lse.
// - RECOMPUTE_NONE keeps all 16 C (17 C in a block that mixes in the embedding; the other levels recompute
//   the mix).
// - RECOMPUTE_ELEMENTWISE keeps 10 C, for about 1 % more work: it recomputes the outputs of the norms and
//   of GELU in buffers that all blocks share. On GPUs it does not recompute GELU and keeps 14 C: there the
//   library computes GELU in the epilogue of a product, and computing it elsewhere would give other bits.
// - RECOMPUTE_ATTENTION keeps 6 C (GPU: 10 C), for about 10 % more work: it also recomputes queries, keys,
//   values and attention's output (a product with 3 C columns, and attention's forward). Selective
//   recomputation (Korthikanti et al., arXiv 2205.05198) drops attention's scores. Attention here never
//   stores scores, so this level drops attention's inputs and outputs instead.
// - RECOMPUTE_BLOCK keeps C, the block's input (Chen et al., arXiv 1604.06174), for about 25 % more work:
//   it recomputes the block's forward except the last product.
// Nothing of the last block is recomputed: all its activations are still in the buffers when backward
// begins.
enum gpt_recompute {
    RECOMPUTE_NONE,
    RECOMPUTE_ELEMENTWISE,
    RECOMPUTE_ATTENTION,
    RECOMPUTE_BLOCK,
    N_RECOMPUTE
};

struct gpt_options {
    enum dtype type; // compute type
    int B, T;        // micro-batch size and sequence length
    enum gpt_recompute recompute;
    enum attention_kernel attention; // attention's kernel, on devices that have several
    // Moves the inputs of all blocks but the last to host memory (model/activations.h). Needs
    // RECOMPUTE_BLOCK; no effect on the CPU. Changes no bit.
    bool offload_activations;
    // Positions attend only to positions of their own document, as given by `starts` of each batch (not
    // read without this option). Position embeddings still count from the start of the sequence.
    bool mask_documents;
    // Probability of dropout on the embeddings and on the output of each branch (attention and MLP), in
    // training passes. The masks depend on dropout_seed and on first_token of gpt_load. 0: no dropout, and
    // no memory for it.
    float dropout;
    uint64_t dropout_seed;
    float label_smoothing, z_loss; // of training passes (struct cross_entropy_args)
    bool training;                 // false: forward passes only; all blocks share the buffers of one block
    bool scoring;                  // gpt_score may be called; adds buffers for its predictions
};

#endif
