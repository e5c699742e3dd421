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
    int n_top;                                   // number of most likely tokens; ties: the lower id first
    struct token_logprob top[MOST_TOP_LOGPROBS]; // (n_top)
};

// Computes the distribution of logits (n). n_top is at most MOST_TOP_LOGPROBS, and is reduced to n.
void logprobs_of(const float *logits, int n, int n_top, struct logprobs *out);
float logprob_of(const struct logprobs *logprobs, const float *logits, int32_t id);

// Repetition penalty (CTRL, arXiv 1909.05858). For each token in ids (n_ids), divides a positive logit by
// `penalty` and multiplies a negative one by it. Each token counts once, however often it occurs.
//   seen  (n) zero bytes; zero again afterwards
void penalize_repetition(float *logits, int n, const int32_t *ids, size_t n_ids, double penalty,
                         uint8_t *seen);

#endif
