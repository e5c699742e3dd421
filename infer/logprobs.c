// logprobs_of adds up exp(logit - largest logit) in double, in order of token ids.
#include "infer/logprobs.h"

#include <math.h>

static void keep_likely(struct logprobs *out, int most, int32_t id, float logit) {
    int at = out->n_top;
    if (at == most && !(logit > out->top[at - 1].logprob))
        return;
    at = at < most ? at : at - 1;
    for (; at > 0 && logit > out->top[at - 1].logprob; at--)
        out->top[at] = out->top[at - 1];
    out->top[at] = (struct token_logprob){id, logit};
    out->n_top += out->n_top < most;
}

void logprobs_of(const float *logits, int n, int n_top, struct logprobs *out) {
    double largest = -INFINITY, sum = 0;
    *out = (struct logprobs){0};
    for (int32_t id = 0; id < n; id++) {
        largest = fmax(largest, (double)logits[id]);
        if (n_top > 0)
            keep_likely(out, n_top, id, logits[id]);
    }
    for (int id = 0; id < n; id++)
        sum += exp((double)logits[id] - largest);
    out->lse = largest + log(sum);
    for (int i = 0; i < out->n_top; i++)
        out->top[i].logprob = (float)((double)out->top[i].logprob - out->lse);
}

float logprob_of(const struct logprobs *logprobs, const float *logits, int32_t id) {
    return (float)((double)logits[id] - logprobs->lse);
}

void penalize_repetition(float *logits, int n, const int32_t *ids, size_t n_ids, double penalty,
                         uint8_t *seen) {
    for (size_t i = 0; i < n_ids; i++) {
        if (ids[i] >= n || seen[ids[i]])
            continue;
        seen[ids[i]] = 1;
        double logit = (double)logits[ids[i]];
        logits[ids[i]] = (float)(logit > 0 ? logit / penalty : logit * penalty);
    }
    for (size_t i = 0; i < n_ids; i++)
        if (ids[i] < n)
            seen[ids[i]] = 0;
}
