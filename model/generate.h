// Incremental decoding with a key-value cache, for a batch of sequences: each step reads the weights once for
// all of them. Includes sampling from the logits.
#ifndef ZERO_MODEL_GENERATE_H
#define ZERO_MODEL_GENERATE_H

#include <stdint.h>

#include "model/gpt.h"

struct generator;

struct generator_options {
    enum dtype type; // compute type
    int positions;   // longest context; at most n_positions
    int sequences;   // number of contexts in the cache; at least 1
    // A token attends only to tokens of its own document, as in training (gpt_options). Requires
    // generator_set_end_of_text.
    bool mask_documents;
    enum attention_kernel attention; // kernel for prompts, on devices with a choice
};
// Adds the generator's buffers to the table: the caches (sequences x n_layer x positions x 2 n_kv_head
// head_dim, compute dtype), one row of logits per sequence, and one row of activations per token of a pass.
// STATUS_INVALID: an option is out of range.
enum status generator_new(const struct params *params, const struct generator_options *options,
                          struct device *device, struct region_table *table,
                          struct generator **out) MUST_CHECK;
void generator_delete(struct generator *generator);
// Records the trace of a pass over one token: TRACE_PROMPT or TRACE_DECODING. Needs no device.
enum status generator_trace(const struct params *params, enum trace_kind kind, struct trace *out) MUST_CHECK;
enum status generator_bind(struct generator *generator, const struct region_table *table,
                           struct stream *stream) MUST_CHECK;

// The token that begins a document, before the first tokens of a generator with mask_documents. Of a context,
// what precedes its first such token is one, too (as token_batch_find_starts).
void generator_set_end_of_text(struct generator *generator, int32_t end_of_text);
void generator_reset(struct generator *generator, int sequence); // empties its context
int generator_length(const struct generator *generator, int sequence);
// Appends n tokens of a prompt to a sequence's context, without computing logits. Calls that split a prompt
// at multiples of GENERATOR_CHUNK give the same bits as one call. STATUS_INVALID unless length + n <=
// positions.
#define GENERATOR_CHUNK 64
enum status generator_append(struct generator *generator, struct stream *stream,
                             const struct unit_hooks *hooks, int sequence, const int32_t *tokens,
                             int n) MUST_CHECK;
// Appends one token to each of n sequences and computes the logits of the next.
//   sequences  (n), in ascending order; STATUS_INVALID unless each length < positions
//   tokens     (n)
//   logits     [out] (n, vocab_size) host fp32; NULL leaves them on the device, for generator_draw
// Determinism: on the CPU a sequence's logits do not depend on the other sequences, nor on n up to 32
// (kernels/cpu/isa/skinny_gemm.c). A GPU's library may round differently for another n.
enum status generator_step(struct generator *generator, struct stream *stream, const struct unit_hooks *hooks,
                           const int *sequences, const int32_t *tokens, int n, float *logits) MUST_CHECK;

struct sampling {
    double temperature; // 0: take the most likely token
    int top_k;          // 0: no limit
    double top_p;       // nucleus sampling (Holtzman et al., arXiv 1904.09751); 1: no limit
    double min_p; // keep tokens at least this many times as probable as the most likely one; 0: no limit
    uint64_t seed;
};
// Reads or replaces the logits of row `row` of the last step before a draw: (vocab_size) fp32 in host memory.
enum status generator_read_logits(struct generator *generator, struct stream *stream, int row,
                                  float *logits) MUST_CHECK;
enum status generator_write_logits(struct generator *generator, struct stream *stream, int row,
                                   const float *logits) MUST_CHECK;
// Samples the next token of each of the n sequences of the last step. Only the tokens leave the device.
//   sampling    (n) settings of each sequence
//   n_drawable  only ids 0 .. n_drawable - 1 can be drawn
//   counters    (n) random number counter of each sequence. A token is a pure function of its logits, its
//               `sampling` and its counter
//   tokens      [out] (n)
enum status generator_draw(struct generator *generator, struct stream *stream,
                           const struct sampling *sampling, int n_drawable, const uint64_t *counters, int n,
                           int32_t *tokens) MUST_CHECK;

#endif
