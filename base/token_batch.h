// A batch of sequences in host memory, as data/ makes it and model/ reads it.
#ifndef ZERO_BASE_TOKEN_BATCH_H
#define ZERO_BASE_TOKEN_BATCH_H

#include <stdint.h>

// Each field is (B, T): one value per position of each sequence.
struct token_batch {
    const int32_t *tokens;
    const int32_t *targets; // the token to predict at each position
    const int32_t *starts;  // the position in the sequence where each token's document begins
    // One weight per target, finite and at least 0, by which the target's loss and gradient are multiplied.
    // Targets of weight 0 take no part in training or evaluation. NULL: all weights are 1.
    const float *weights;
};

// Finds the `starts` of B sequences of T tokens. A document begins at each token that equals document_start.
// The tokens of a sequence before the first such token are a document too. document_start -1: each sequence
// is one document.
static inline void token_batch_find_starts(const int32_t *tokens, int B, int T, int32_t document_start,
                                           int32_t *starts) {
    for (int b = 0; b < B; b++)
        for (int32_t t = 0, start = 0; t < T; t++) {
            start = *tokens++ == document_start ? t : start;
            *starts++ = start;
        }
}

#endif
