// Writing text with a model: one token at a time through a key-value cache, and the choice among the logits.
#ifndef ZERO_MODEL_GENERATE_H
#define ZERO_MODEL_GENERATE_H

#include <stdint.h>

#include "model/gpt.h"

struct generator;

// Adds the cache (2 x n_layer x positions x n_embd, compute type) and one row of activations per prompt token
// to the table. positions: the longest context, at most n_positions.
enum status generator_new(const struct params *params, enum dtype type, int positions, struct device *device,
                          struct region_table *table, struct generator **out) MUST_CHECK;
void generator_delete(struct generator *generator);
void generator_bind(struct generator *generator, const struct region_table *table, struct stream *stream);

void generator_reset(struct generator *generator); // forgets the context
int generator_length(const struct generator *generator);
// Appends n tokens to the context (length + n <= positions, else STATUS_INVALID). logits gets those that
// follow the last of them, (vocab_size) host fp32, or is NULL where generator_draw takes them on the device.
enum status generator_append(struct generator *generator, struct stream *stream,
                             const struct unit_hooks *hooks, const int32_t *tokens, int n,
                             float *logits) MUST_CHECK;

struct sampling {
    double temperature; // 0: the likeliest token
    int top_k;          // 0: all
    double top_p;       // 1: all (nucleus sampling, Holtzman et al., arXiv 1904.09751)
    uint64_t seed;
};
// Draws the token that follows the context from the first n_drawable of the vocabulary: a pure function of
// the logits, the settings and the counter (kernels/ops.h: sample). Only the token leaves the device.
enum status generator_draw(struct generator *generator, struct stream *stream,
                           const struct sampling *sampling, int n_drawable, uint64_t counter,
                           int32_t *token) MUST_CHECK;

#endif
