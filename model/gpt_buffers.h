// What a gpt holds: shared by its passes (gpt.c), its memory (gpt_memory.c) and generation (generate.c).
// Internal to model/.
#ifndef ZERO_MODEL_GPT_BUFFERS_H
#define ZERO_MODEL_GPT_BUFFERS_H

#include "base/region.h"
#include "kernels/device.h"
#include "model/activations.h"
#include "model/decoder.h"
#include "model/gpt_options.h"
#include "model/rope_table.h"

#define GPT_INPUT_SLOTS     2  // of pinned memory for inputs
#define GPT_PREDICTION_ROWS 32 // whose logits gpt_score computes at once for predictions

// The key-value caches of a pass of generation (generate.c). B or T is 1.
struct gpt_cache {
    void **blocks; // (n_layer), each (sequences, positions, 2 K D): keys, then values
    size_t stride; // elements from one sequence to the next
    int sequence;  // the first row's, and the positions that it holds before the pass
    int length;
    // With T = 1, (B): in the device's memory, and `lengths` and `first` (as gpt_inputs.first, or NULL) in
    // the host's.
    const int32_t *sequences, *lengths, *host_lengths, *host_first;
};

// What a pass reads, as gpt_load and evaluations bring it.
struct gpt_inputs {
    void *tokens, *targets;
    int32_t *first;   // (B, T) the first position that each one attends to; NULL without mask_documents
    float *weights;   // (B, T) of the targets
    bool is_weighted; // the batch that was loaded last has weights
    int n_fields;     // of the above
    char *on_host;    // (GPT_INPUT_SLOTS, n_fields, B, T); NULL where the device reads the host's memory
    // With dropout: (most sequences of a pass) their numbers in the run; GPT_INPUT_SLOTS times as many, or
    // NULL where the device reads the host's memory.
    uint64_t *sequences, *sequences_on_host;
    struct event loaded[GPT_INPUT_SLOTS]; // the device has copied the slot
    int64_t n_loads;
    size_t n_tokens; // of a slot: B * T of gpt_new
};

// The blocks' activations.
struct gpt_blocks {
    int lowest; // the lowest block that backward goes through, or n_layer: what those below compute is not
                // kept
    int n;      // with buffers of their own: from `lowest` on or, with RECOMPUTE_BLOCK or without training, 1
    struct block_buffers *buffers; // (n); gpt_block_buffers
    unsigned recomputed; // what backward recomputes, of all blocks but the last: sets of block_activations
};
// A block's. Those below `lowest` use its buffers before it does.
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

// Of gpt_score: GPT_PREDICTION_ROWS rows of the final norm, their logits in the accumulation dtype, tokens.
struct gpt_predictions {
    void *rows, *logits;
    int32_t *tokens;
};

struct gpt {
    const struct params *params;
    struct gpt_options options;
    struct device *device;
    enum dtype accumulation; // of losses, gradients, mean, rstd and lse: fp32, or double on the oracle
    struct gpt_work work[2]; // of training, by a dry run: [0] a step's first micro-batch, [1] a further one

    // Memory: pointers from gpt_bind, but for what has a list of its own.
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
    struct gpt_cache cache; // of generation; blocks NULL: none
    void *workspace;
    size_t workspace_bytes;
};

// A pass with caches: TRACE_PROMPT, which ends with the last block, or TRACE_DECODING, which leaves the
// logits of its B rows in logits. The runner may be one of a dry run.
enum status gpt_run_cached(struct gpt *gpt, struct runner *runner, const struct unit_hooks *hooks,
                           enum trace_kind kind) MUST_CHECK;

// A dry run of every pass that the gpt can make: the workspace that its operations need, and gpt->work.
enum status gpt_dry_run(struct gpt *gpt, size_t *workspace_bytes) MUST_CHECK;
// A dry run of one pass, of training if the gpt trains, for its trace. Uses no operation of the device.
enum status gpt_record(struct gpt *gpt, struct trace *trace) MUST_CHECK;

#endif
