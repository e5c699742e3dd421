// The struct of a gpt, shared by its passes (gpt.c), its memory (gpt_memory.c) and generation (generate.c).
// Internal to model/.
#ifndef ZERO_MODEL_GPT_BUFFERS_H
#define ZERO_MODEL_GPT_BUFFERS_H

#include "base/region.h"
#include "kernels/device.h"
#include "model/activations.h"
#include "model/decoder.h"
#include "model/gpt_options.h"
#include "model/rope_table.h"

#define GPT_INPUT_SLOTS     2  // batches in pinned memory: one is filled while the device reads the other
#define GPT_PREDICTION_ROWS 32 // predictions that gpt_score computes at a time

// The key-value caches in a pass of generation (generate.c). The pass has B = 1 or T = 1.
struct gpt_cache {
    // (n_layer) each block's cache: (sequences, positions, gpt_cache_width), for each position the keys and
    // then the values.
    void **blocks;
    size_t stride; // elements from one sequence to the next in a block's cache
    int sequence;  // number of the pass's first sequence
    int length;    // number of positions in that sequence's cache before the pass
    // With T = 1, the next three have B elements; with T > 1, they are NULL.
    const int32_t *sequences;    // numbers of the pass's sequences, in device memory
    const int32_t *lengths;      // number of positions in their caches before the pass, in device memory
    const int32_t *host_lengths; // a copy of `lengths` in host memory
    // With mask_documents: gpt_inputs.first, (B, T), in host memory; else NULL.
    const int32_t *host_first;
};

// The inputs of a pass, set by gpt_load and by evaluations.
struct gpt_inputs {
    void *tokens, *targets;
    int32_t *first;   // (B, T) first position that each position attends to; NULL without mask_documents
    float *weights;   // (B, T) weights of the targets
    bool is_weighted; // the batch that was loaded last has weights
    int n_fields;     // arrays per batch: tokens, targets, weights and, with mask_documents, first
    char *on_host;    // (GPT_INPUT_SLOTS, n_fields, B, T) batches in pinned memory; NULL on the CPU
    // With dropout: (B) index of each sequence's first token, counted over the run (gpt_load); else NULL.
    uint64_t *sequences;
    uint64_t *sequences_on_host; // (GPT_INPUT_SLOTS, B) `sequences` in pinned memory; NULL on the CPU
    struct event loaded[GPT_INPUT_SLOTS]; // recorded when the device has copied the slot's batch
    int64_t n_loads;                      // number of batches loaded so far
    size_t n_tokens;                      // maximum number of tokens per batch: B * T of gpt_new
};

// The blocks' activations.
struct gpt_blocks {
    int lowest; // lowest block that backward goes through; n_layer: none. Lower blocks keep no activations
    // Number of sets of buffers: one per block from `lowest` on, or one for all blocks if none keeps
    // activations.
    int n;
    struct block_buffers *buffers; // (n) use gpt_block_buffers to find a block's
    unsigned recomputed; // what backward recomputes in all blocks but the last: bits of block_activations
};
// Returns the buffers of a block. Blocks below `lowest` use those of block `lowest`, which runs after them.
static inline struct block_buffers *gpt_block_buffers(const struct gpt_blocks *blocks, int block) {
    return &blocks->buffers[blocks->n == 1 || block < blocks->lowest ? 0 : block - blocks->lowest];
}

// A tile of logits and its gradient.
struct gpt_logits {
    void *data, *gradient;
    int rows;        // maximum number of rows per tile
    int columns;     // number of logits per row: the vocabulary and its padding
    int stride;      // elements from one row to the next
    enum dtype type; // of the logits; their gradient has the compute type
};

// The losses of a pass, in device memory, and their copies in host memory.
struct gpt_losses {
    void *each, *each_on_host; // (B, T) in the accumulation dtype
    double *sum, *sum_on_host;
};

// Buffers of gpt_score for GPT_PREDICTION_ROWS positions.
struct gpt_predictions {
    void *rows;      // outputs of the final norm
    void *logits;    // in the accumulation dtype
    int32_t *tokens; // the most likely next tokens
};

struct gpt {
    const struct params *params;
    struct gpt_options options;
    struct device *device;
    // Dtype of losses, parameters' gradients, lse, and norms' mean and rstd: fp32; double in tests/ref.
    enum dtype accumulation;
    struct gpt_work work[2]; // work of a training micro-batch: [0] the first of a step, [1] a further one

    // Memory. gpt_bind sets the pointers in the members below: those that `buffers` lists, and those of
    // `activations` and `rope`.
    struct buffer_list buffers;
    struct gpt_inputs inputs;
    struct activation_checkpoints activations;
    struct gpt_blocks blocks;
    struct norm_buffers lnf;
    struct gpt_logits logits;
    struct gpt_losses losses;
    struct gpt_predictions predictions;
    struct activation_gradients gradients;
    struct rope_table rope;
    struct gpt_cache cache; // for generation; cache.blocks is NULL if there is no cache
    void *workspace;
    size_t workspace_bytes;
};

// Runs a pass with caches: TRACE_PROMPT, which ends after the last block, or TRACE_DECODING, which computes
// the logits of its B rows. The runner may be that of a dry run.
enum status gpt_run_cached(struct gpt *gpt, struct runner *runner, const struct unit_hooks *hooks,
                           enum trace_kind kind) MUST_CHECK;

// Makes a dry run of every pass that the gpt's options allow, and fills gpt->work.
//   workspace_bytes  [out] the largest workspace that any operation needs
enum status gpt_dry_run(struct gpt *gpt, size_t *workspace_bytes) MUST_CHECK;
// Records the trace of one pass by a dry run: of training if the gpt trains, else of evaluation. Calls no
// operation of the device.
enum status gpt_record(struct gpt *gpt, struct trace *trace) MUST_CHECK;

#endif
