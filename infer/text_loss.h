// The loss of text: what evaluation, in training and afterwards, sums over predicted tokens, and the figures
// that it prints of the sums. Doubles, so that ranks can add theirs up.
#ifndef ZERO_INFER_TEXT_LOSS_H
#define ZERO_INFER_TEXT_LOSS_H

#include <stddef.h>
#include <stdint.h>

#include "data/tokenizer/tokenizer.h"

struct text_loss {
    double nats;   // of all tokens: end-of-text and other control tokens too
    double tokens; // that were predicted
    double bytes;  // of the text that they show (tokenizer_text_bytes); 0 without a tokenizer
};

// Counts n predicted tokens of one sequence and their text, not their nats.
//   before      the token before the first
//   tokenizer   NULL: no text is counted
void text_loss_count(struct text_loss *loss, const struct tokenizer *tokenizer, int32_t before,
                     const int32_t *targets, size_t n);
// Nats per token.
double text_loss_mean(const struct text_loss *loss);
// NaN without text.
double text_loss_bits_per_byte(const struct text_loss *loss);

#endif
