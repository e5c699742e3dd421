// What a gpt holds: shared by its passes (gpt.c), its memory (gpt_memory.c) and generation (generate.c).
// Internal to model/.
#ifndef ZERO_MODEL_GPT_MEMORY_H
#define ZERO_MODEL_GPT_MEMORY_H

#include "model/activations.h"
#include "model/decoder.h"
#include "model/gpt.h"
#include "model/rope_table.h"

#define GPT_INPUT_SLOTS     2  // of pinned memory for inputs
#define GPT_PREDICTION_ROWS 32 // whose logits gpt_score computes at once for predictions

// The key-value caches of a pass of generation (generate.c). B or T is 1.
struct gpt_cache {
    void **blocks; // (n_layer), each (sequences, positions, 2 K D): keys, then values
    size_t stride; // elements from one sequence to the next
    int sequence;  // the first row's, and the positions that it holds before the pass
    int length;
    // With T = 1, (B): in the device's memory, and `lengths` and `first` (as gpt_buffers.first, or NULL) in
    // the host's.
    const int32_t *sequences, *lengths, *host_lengths, *host_first;
};

struct gpt {
    const struct params *params;
    struct gpt_options options;
    struct device *device;
    enum dtype accumulation; // of losses, gradients, mean, rstd and lse: fp32, or double on the oracle
    int32_t end_of_text;     // with mask_documents; -1: not set yet
    unsigned recomputed; // what backward recomputes, of all blocks but the last: sets of block_activations
    size_t workspace_bytes;
    struct gpt_work work[2]; // of training, by a dry run: [0] a step's first micro-batch, [1] a further one
    // A tile of logits: rows, columns (the vocabulary and its padding), elements from one row to the next,
    // and dtype.
    int logits_rows, logits_columns, logits_stride;
    enum dtype logits_type;

    // Memory: region indices from gpt_new, pointers from gpt_bind.
    struct activation_checkpoints activations;
    int n_blocks; // blocks with buffers of their own: n_layer or, with RECOMPUTE_BLOCK or without training, 1
    struct block_regions *block_regions; // (n_blocks)
    struct block_buffers *blocks;        // (n_blocks); block i uses blocks[i % n_blocks]
    struct gpt_regions {
        int tokens, targets, first, sequences, host_inputs, host_sequences, losses, host_losses, loss_sum,
            host_loss_sum, lnf, lnf_mean, lnf_rstd, logits, dlogits;
        int dresidual, dbranch, dqkv, drotated, dfc, dbiases, ddropped, dembedding, workspace;
        int scored, scored_logits, predictions; // with options.scoring
    } regions;
    struct gpt_buffers {
        void *tokens, *targets, *losses, *host_losses;
        int32_t *first; // (B, T) the first position that each one attends to; NULL without mask_documents
        int32_t *host_inputs; // (GPT_INPUT_SLOTS, n, B, T) tokens, targets and `first`; NULL where the device
                              // reads the host's memory
        // With dropout: (most sequences of a pass) their numbers in the run; GPT_INPUT_SLOTS times as many,
        // or NULL where the device reads the host's memory.
        uint64_t *sequences, *host_sequences;
        void *ddropped;                   // of struct dropout
        double *loss_sum, *host_loss_sum; // (1)
        struct norm_buffers lnf;
        void *logits, *dlogits;
        // (GPT_PREDICTION_ROWS, C) of lnf, (.., logits_stride) logits in the accumulation dtype, (..) tokens
        void *scored, *scored_logits;
        int32_t *predictions;
        struct activation_gradients scratch;
    } buffers;
    struct rope_table rope;
    struct gpt_cache cache;               // of generation; blocks NULL: none
    struct event loaded[GPT_INPUT_SLOTS]; // the device has copied the slot
    int64_t n_loads;
    size_t n_inputs; // tokens of a slot: B * T of gpt_new
};

// A pass with caches: TRACE_PROMPT, which ends with the last block, or TRACE_DECODING, which leaves the
// logits of its B rows in buffers.logits. The runner may be one of a dry run.
enum status gpt_run_cached(struct gpt *gpt, struct runner *runner, const struct unit_hooks *hooks,
                           enum trace_kind kind) MUST_CHECK;

// gpt_load, for any pass (gpt_inputs.c).
//   targets      may be NULL
//   first_token  [r] of gpt_load, or NULL: no pass of training follows
enum status gpt_load_inputs(struct gpt *gpt, struct stream *stream, const int32_t *tokens,
                            const int32_t *targets, const uint64_t *first_token) MUST_CHECK;

// A dry run of every pass that the gpt can make: the workspace that its operations need, and gpt->work.
enum status gpt_dry_run(struct gpt *gpt, size_t *workspace_bytes) MUST_CHECK;
// A dry run of one pass, of training if the gpt trains, for its trace. Uses no operation of the device.
enum status gpt_record(struct gpt *gpt, struct trace *trace) MUST_CHECK;

#endif
