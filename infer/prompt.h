// A prompt as text, and as the tokens that a model's context begins with.
#ifndef ZERO_INFER_PROMPT_H
#define ZERO_INFER_PROMPT_H

#include "data/tokenizer/tokenizer.h"

struct prompt {
    const char *bytes; // n_bytes 0: starts as a document does
    size_t n_bytes;
};

// Appends the prompt's tokens to the list, after bos where the tokenizer has one. STATUS_INVALID if one of
// them is outside the model's vocabulary.
enum status prompt_encode(const struct tokenizer *tokenizer, int vocab_size, const struct prompt *prompt,
                          struct token_list *list) MUST_CHECK;

#endif
