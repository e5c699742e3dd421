// Writing text with a model: one token at a time through key-value caches, for a batch of sequences at once
// so that weights are read once for all of them, and the choice among the logits.
#ifndef ZERO_MODEL_GENERATE_H
#define ZERO_MODEL_GENERATE_H

#include <stdint.h>

#include "model/gpt.h"

struct generator;

// What a generator is made for. positions: the longest context, at most n_positions. sequences: how many
// contexts it holds, at least 1.
struct generator_options {
    enum dtype type; // compute type
    int positions, sequences;
};
// Adds the caches (sequences x 2 x n_layer x positions x n_embd, compute type), a row of logits a sequence,
// and a row of activations per token of a pass to the table.
enum status generator_new(const struct params *params, const struct generator_options *options,
                          struct device *device, struct region_table *table,
                          struct generator **out) MUST_CHECK;
void generator_delete(struct generator *generator);
void generator_bind(struct generator *generator, const struct region_table *table, struct stream *stream);

void generator_reset(struct generator *generator, int sequence); // forgets the context
int generator_length(const struct generator *generator, int sequence);
// Appends n tokens to a sequence's context (length + n <= positions, else STATUS_INVALID): a prompt, of which
// no logits are wanted.
enum status generator_append(struct generator *generator, struct stream *stream,
                             const struct unit_hooks *hooks, int sequence, const int32_t *tokens,
                             int n) MUST_CHECK;
// Appends one token to each of n sequences, which are given in rising order (each length < positions, else
// STATUS_INVALID), and makes the logits that follow. logits gets them, (n, vocab_size) host fp32, or is NULL
// where generator_draw takes them on the device. On the CPU a sequence's logits are the same bits whatever
// the others are and however many up to 32 (kernels/cpu/isa/skinny_gemm.c); a GPU's library may round
// otherwise for another n.
enum status generator_step(struct generator *generator, struct stream *stream, const struct unit_hooks *hooks,
                           const int *sequences, const int32_t *tokens, int n, float *logits) MUST_CHECK;

struct sampling {
    double temperature; // 0: the likeliest token
    int top_k;          // 0: all
    double top_p;       // 1: all (nucleus sampling, Holtzman et al., arXiv 1904.09751)
    uint64_t seed;
};
// Draws the tokens that follow the n sequences of the last step, each from the first n_drawable of the
// vocabulary: a pure function of the logits, the settings and its counter (kernels/ops.h: sample). Only the
// tokens leave the device.
enum status generator_draw(struct generator *generator, struct stream *stream,
                           const struct sampling *sampling, int n_drawable, const uint64_t *counters, int n,
                           int32_t *tokens) MUST_CHECK;

#endif
