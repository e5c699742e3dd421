// Incremental decoding with a key-value cache, for a batch of sequences: each step reads the weights once for
// all of them. Includes sampling from the logits.
#ifndef ZERO_MODEL_GENERATE_H
#define ZERO_MODEL_GENERATE_H

#include <stdint.h>

#include "model/gpt.h"

struct generator;

struct generator_options {
    enum dtype type; // compute type
    int positions;   // longest context in tokens; at most the model's n_positions
    int sequences;   // number of contexts in the cache; at least 1
    // A token attends only to tokens of its own document, as in training (gpt_options). Requires
    // generator_set_end_of_text.
    bool mask_documents;
    enum attention_kernel attention; // kernel for prompts, on devices that have several
};
// Creates a generator, and adds its buffers to the region table: the caches (sequences x n_layer x
// positions x 2 x n_kv_head x head_dim, in the compute dtype), one row of logits per sequence, one row of
// activations per token of a pass, and the workspace. STATUS_INVALID: an option is out of range.
enum status generator_new(const struct params *params, const struct generator_options *options,
                          struct device *device, struct region_table *table,
                          struct generator **out) MUST_CHECK;
void generator_delete(struct generator *generator);
// Records the trace of a pass over one token. Needs no device.
//   kind  TRACE_PROMPT or TRACE_DECODING
enum status generator_trace(const struct params *params, enum trace_kind kind, struct trace *out) MUST_CHECK;
enum status generator_bind(struct generator *generator, const struct region_table *table,
                           struct stream *stream) MUST_CHECK;

// Sets the token that begins a document. With mask_documents, call it before any token is appended. The
// tokens of a context before its first such token are a document, too (as in token_batch_find_starts).
void generator_set_end_of_text(struct generator *generator, int32_t end_of_text);
void generator_reset(struct generator *generator, int sequence); // empties the sequence's context
int generator_length(const struct generator *generator, int sequence);
// Appends n tokens of a prompt to a sequence's context, without computing logits. Several calls that split
// a prompt at multiples of GENERATOR_CHUNK tokens give the same bits as one call. STATUS_INVALID: n < 1, or
// the context would become longer than generator_options.positions.
#define GENERATOR_CHUNK 64
enum status generator_append(struct generator *generator, struct stream *stream,
                             const struct unit_hooks *hooks, int sequence, const int32_t *tokens,
                             int n) MUST_CHECK;
// Appends one token to each of n sequences, and computes the logits of each sequence's next token. They
// stay on the device for generator_draw. STATUS_INVALID: a sequence's context is full.
//   sequences  (n) in ascending order
//   tokens     (n) the token to append to each sequence
//   logits     [out] (n, vocab_size) fp32 in host memory, a copy of the logits; NULL: no copy
// Determinism: on the CPU a sequence's logits do not depend on the other sequences, nor on n up to n = 32
// (kernels/cpu/isa/skinny_gemm.c). A GPU's library may round differently for another n.
enum status generator_step(struct generator *generator, struct stream *stream, const struct unit_hooks *hooks,
                           const int *sequences, const int32_t *tokens, int n, float *logits) MUST_CHECK;

struct sampling {
    double temperature; // 0: take the most likely token
    int top_k;          // draw only from the top_k most likely tokens; 0: no limit
    double top_p;       // nucleus sampling (Holtzman et al., arXiv 1904.09751); 1: no limit
    double min_p;       // draw only tokens with at least min_p times the highest probability; 0: no limit
    uint64_t seed;
};
// Copy one sequence's logits of the last step from or to the device, so that the caller can change them
// before generator_draw.
//   row     index of the sequence in the step's `sequences`
//   logits  (vocab_size) fp32 in host memory
enum status generator_read_logits(struct generator *generator, struct stream *stream, int row,
                                  float *logits) MUST_CHECK;
enum status generator_write_logits(struct generator *generator, struct stream *stream, int row,
                                   const float *logits) MUST_CHECK;
// Samples the next token of each of the n sequences of the last step. Only the tokens leave the device.
//   sampling    (n) settings of each sequence
//   n_drawable  only token ids 0 .. n_drawable - 1 can be drawn
//   counters    (n) random number counter of each sequence. A drawn token depends only on its sequence's
//               logits, `sampling` and counter, and on n_drawable
//   tokens      [out] (n) the drawn tokens
enum status generator_draw(struct generator *generator, struct stream *stream,
                           const struct sampling *sampling, int n_drawable, const uint64_t *counters, int n,
                           int32_t *tokens) MUST_CHECK;

#endif
