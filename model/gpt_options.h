// How a decoder is run: the sizes and the types of its passes, and what they keep for backward.
#ifndef ZERO_MODEL_GPT_OPTIONS_H
#define ZERO_MODEL_GPT_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "kernels/ops.h"

// What backward recomputes, block by block, instead of keeping it from forward. Recomputing trades work for
// memory and changes no bit. Of a block's 16 C elements per token (C = n_embd; including the block's input,
// without mean, rstd and lse):
// - RECOMPUTE_NONE keeps all 16 C (17 C in a block that mixes in the embedding; the other levels recompute
//   the mix).
// - RECOMPUTE_ELEMENTWISE keeps 10 C, for about 1 % more work: the outputs of the norms and of GELU are
//   recomputed in buffers that all blocks share. On GPUs it keeps 14 C, because the library computes GELU in
//   the epilogue of a product, and recomputing it elsewhere would not give the same bits.
// - RECOMPUTE_ATTENTION keeps 6 C (GPU: 10 C), for about 10 % more work: also queries, keys, values and
//   attention's output (a product with 3 C columns, and attention's forward). Selective recomputation
//   (Korthikanti et al., arXiv 2205.05198) drops attention's scores; attention here never stores them, so
//   this drops its inputs and outputs instead.
// - RECOMPUTE_BLOCK keeps C, the block's input (Chen et al., arXiv 1604.06174), for about 25 % more work: the
//   forward pass except its last product.
// The last block is not recomputed: its buffers are still full when backward begins.
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
    enum attention_kernel attention; // on devices with a choice
    // Moves the inputs of all blocks but the last to host memory (model/activations.c). Needs
    // RECOMPUTE_BLOCK; no effect on the CPU. Changes no bit.
    bool offload_activations;
    // Positions attend only to those of their own document, by `starts` of each batch, which is not read
    // otherwise. Position embeddings stay those of the sequence.
    bool mask_documents;
    // Dropout on the embeddings and on the output of each branch, in training passes. The masks depend on
    // dropout_seed and on the numbers passed to gpt_load. 0: none, and no memory for it.
    float dropout;
    uint64_t dropout_seed;
    float label_smoothing, z_loss; // of training passes (struct cross_entropy_args)
    bool training;                 // false: forward passes only; the activations of one block are kept
    bool scoring;                  // gpt_score may be called; takes memory for its predictions
};

#endif
