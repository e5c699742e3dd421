// The loss of text: sums over predicted tokens, for evaluation during and after training, and the figures
// printed from them. Doubles, so that ranks can add their sums.
#ifndef ZERO_INFER_TEXT_LOSS_H
#define ZERO_INFER_TEXT_LOSS_H

#include <stddef.h>
#include <stdint.h>

#include "data/tokenizer/tokenizer.h"

struct text_loss {
    double nats;   // over all tokens, including end-of-text and other control tokens
    double tokens; // number of predicted tokens
    double bytes;  // bytes of text that they show (tokenizer_text_bytes); 0 without a tokenizer
};

// Counts n predicted tokens of one sequence and their text. Does not add their nats.
//   before      the token before the first
//   tokenizer   NULL: no text is counted
void text_loss_count(struct text_loss *loss, const struct tokenizer *tokenizer, int32_t before,
                     const int32_t *targets, size_t n);
// Returns nats per token.
double text_loss_mean(const struct text_loss *loss);
// Returns bits per byte of text; NaN without text.
double text_loss_bits_per_byte(const struct text_loss *loss);

#endif
