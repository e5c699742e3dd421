// The loss of a model on text, for evaluation during and after training: sums over the predicted tokens, and
// the figures computed from these sums.
#ifndef ZERO_INFER_TEXT_LOSS_H
#define ZERO_INFER_TEXT_LOSS_H

#include <stddef.h>
#include <stdint.h>

#include "data/tokenizer/tokenizer.h"

// All are doubles, so that ranks can add their sums.
struct text_loss {
    double nats;   // sum of the tokens' losses, including end-of-text and other control tokens
    double tokens; // number of predicted tokens
    double bytes;  // bytes of the tokens' text (tokenizer_text_bytes); 0 without a tokenizer
};

// Adds n predicted tokens of one sequence to `tokens`, and the bytes of their text to `bytes`. The caller
// adds their losses to `nats`.
//   tokenizer   NULL: no bytes are added
//   before      the token that precedes targets[0]
void text_loss_count(struct text_loss *loss, const struct tokenizer *tokenizer, int32_t before,
                     const int32_t *targets, size_t n);
// Returns nats per token.
double text_loss_mean(const struct text_loss *loss);
// Returns bits per byte of text; NaN without text.
double text_loss_bits_per_byte(const struct text_loss *loss);

#endif
