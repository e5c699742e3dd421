// A prompt as text, and as the tokens that start a model's context. Separate from infer/sample.h, so that
// code that reads requests needs no model (tests/fuzz).
#ifndef ZERO_INFER_PROMPT_H
#define ZERO_INFER_PROMPT_H

#include "data/tokenizer/tokenizer.h"

struct prompt {
    const char *bytes; // n_bytes 0: the text starts as a document does
    size_t n_bytes;
    struct token_list tokens; // after prompt_encode; free them with token_list_free
};
// Tokenizes the prompt, with bos first if the tokenizer has one. STATUS_INVALID if a token is outside the
// model's vocabulary.
enum status prompt_encode(const struct tokenizer *tokenizer, int vocab_size,
                          struct prompt *prompt) MUST_CHECK;

#endif
