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
// Appends n tokens to the context (length + n <= positions, else STATUS_INVALID) and gives the logits,
// (vocab_size) host fp32, that follow the last of them.
enum status generator_append(struct generator *generator, struct stream *stream,
                             const struct unit_hooks *hooks, const int32_t *tokens, int n,
                             float *logits) MUST_CHECK;

struct sampling {
    double temperature; // 0: the likeliest token
    int top_k;          // 0: all
    double top_p;       // 1: all (nucleus sampling, Holtzman et al., arXiv 1904.09751)
    uint64_t seed;
};
// Draws a token: a pure function of the logits, the settings and the counter. scratch: vocab_size pairs of
// work space.
struct sampling_candidate {
    float logit;
    int32_t token;
};
int32_t sampling_draw(const struct sampling *sampling, const float *logits, int vocab_size, uint64_t counter,
                      struct sampling_candidate *scratch);

#endif
