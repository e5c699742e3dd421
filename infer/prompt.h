// A prompt as text, and as the tokens that a model's context begins with. Apart from infer/sample.h, so that
// what reads requests needs no model (tests/fuzz).
#ifndef ZERO_INFER_PROMPT_H
#define ZERO_INFER_PROMPT_H

#include "data/tokenizer/tokenizer.h"

struct prompt {
    const char *bytes; // n_bytes 0: starts as a document does
    size_t n_bytes;
    struct token_list tokens; // after prompt_encode; free them with token_list_free
};
// Sets the prompt's tokens, after bos where the tokenizer has one. STATUS_INVALID if one of them is outside
// the model's vocabulary.
enum status prompt_encode(const struct tokenizer *tokenizer, int vocab_size,
                          struct prompt *prompt) MUST_CHECK;

#endif
