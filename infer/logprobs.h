// What the host computes from a row of logits: log-probabilities of tokens, and the repetition penalty.
#ifndef ZERO_INFER_LOGPROBS_H
#define ZERO_INFER_LOGPROBS_H

#include <stddef.h>
#include <stdint.h>

#define MOST_TOP_LOGPROBS 20

struct token_logprob {
    int32_t id;
    float logprob; // natural logarithm of the probability
};

// The model's distribution over the next token: softmax(logits), at temperature 1 and without filters.
struct logprobs {
    double lse;                                  // log of the sum of exp(logits)
    int n_top;                                   // number of tokens in `top`
    struct token_logprob top[MOST_TOP_LOGPROBS]; // the most likely tokens, in order; ties: lower id first
};

// Computes the distribution of n logits.
//   n_top   number of most likely tokens to list, at most MOST_TOP_LOGPROBS; if above n, all n are listed
void logprobs_of(const float *logits, int n, int n_top, struct logprobs *out);
// Returns the log-probability of one token.
float logprob_of(const struct logprobs *logprobs, const float *logits, int32_t id);

// Repetition penalty (CTRL, arXiv 1909.05858). For each token in ids (n_ids), divides a positive logit by
// `penalty` and multiplies a negative one by it. Each token counts once, however often it occurs.
//   n      number of logits; ids from n on are ignored
//   seen   (n) scratch, all zero before and after the call
void penalize_repetition(float *logits, int n, const int32_t *ids, size_t n_ids, double penalty,
                         uint8_t *seen);

#endif
