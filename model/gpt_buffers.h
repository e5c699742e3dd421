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

#define GPT_INPUT_SLOTS     2  // slots of pinned memory for inputs
#define GPT_PREDICTION_ROWS 32 // rows whose logits gpt_score computes at a time for predictions

// The key-value caches for a generation pass (generate.c). B or T is 1.
struct gpt_cache {
    void **blocks; // (n_layer), each (sequences, positions, 2 K D): keys, then values
    size_t stride; // elements from one sequence to the next
    int sequence;  // sequence of the first row, and the positions in its cache before the pass
    int length;
    // With T = 1, (B): in the device's memory, and `lengths` and `first` (as gpt_inputs.first, or NULL) in
    // the host's.
    const int32_t *sequences, *lengths, *host_lengths, *host_first;
};

// The inputs of a pass, set by gpt_load and by evaluations.
struct gpt_inputs {
    void *tokens, *targets;
    int32_t *first;   // (B, T) the first position that each one attends to; NULL without mask_documents
    float *weights;   // (B, T) of the targets
    bool is_weighted; // the batch that was loaded last has weights
    int n_fields;     // of the above
    char *on_host;    // (GPT_INPUT_SLOTS, n_fields, B, T); NULL where the device reads the host's memory
    // With dropout: numbers in the run of the pass's sequences, as many as a pass can have. On the host
    // GPT_INPUT_SLOTS times as many; NULL if the device reads host memory.
    uint64_t *sequences, *sequences_on_host;
    struct event loaded[GPT_INPUT_SLOTS]; // the device has copied the slot
    int64_t n_loads;
    size_t n_tokens; // per slot: B * T of gpt_new
};

// The blocks' activations.
struct gpt_blocks {
    int lowest; // the lowest block that backward goes through, or n_layer: what those below compute is not
                // kept
    int n;      // with buffers of their own: from `lowest` on or, with RECOMPUTE_BLOCK or without training, 1
    struct block_buffers *buffers; // (n); gpt_block_buffers
    unsigned recomputed; // sets of block_activations that backward recomputes in all blocks but the last
};
// The buffers of a block. Blocks below `lowest` use those of `lowest`, before it does.
static inline struct block_buffers *gpt_block_buffers(const struct gpt_blocks *blocks, int block) {
    return &blocks->buffers[blocks->n == 1 || block < blocks->lowest ? 0 : block - blocks->lowest];
}

// A tile of logits and its gradient.
struct gpt_logits {
    void *data, *gradient;
    int rows, columns, stride; // columns: the vocabulary and its padding; stride: elements between rows
    enum dtype type;
};

// Losses of the positions, (B, T), and their sum.
struct gpt_losses {
    void *each, *each_on_host;
    double *sum, *sum_on_host;
};

// For gpt_score: GPT_PREDICTION_ROWS rows of the final norm, their logits in the accumulation dtype, tokens.
struct gpt_predictions {
    void *rows, *logits;
    int32_t *tokens;
};

struct gpt {
    const struct params *params;
    struct gpt_options options;
    struct device *device;
    enum dtype accumulation; // dtype of losses, gradients, mean, rstd and lse: fp32, or double in the oracle
    struct gpt_work work[2]; // of training, by a dry run: [0] a step's first micro-batch, [1] a further one

    // Memory: pointers set by gpt_bind, except those in lists of their own.
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
    struct gpt_cache cache; // for generation; blocks NULL: none
    void *workspace;
    size_t workspace_bytes;
};

// Runs a pass with caches: TRACE_PROMPT, which ends after the last block, or TRACE_DECODING, which computes
// the logits of its B rows. The runner may be that of a dry run.
enum status gpt_run_cached(struct gpt *gpt, struct runner *runner, const struct unit_hooks *hooks,
                           enum trace_kind kind) MUST_CHECK;

// Dry run of every pass that the gpt can make. Finds the workspace of its operations, and gpt->work.
enum status gpt_dry_run(struct gpt *gpt, size_t *workspace_bytes) MUST_CHECK;
// Dry run of one pass (training if the gpt trains) that records its trace. Uses no operation of the device.
enum status gpt_record(struct gpt *gpt, struct trace *trace) MUST_CHECK;

#endif
