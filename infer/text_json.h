// Generated text and tokens as JSON.
#ifndef ZERO_INFER_TEXT_JSON_H
#define ZERO_INFER_TEXT_JSON_H

#include "base/text.h"
#include "data/tokenizer/tokenizer.h"
#include "infer/batch.h"

// Appends bytes as a JSON string. Bytes that are not UTF-8, which models may generate, become U+FFFD.
void text_json_add_string(struct text *out, const char *bytes, size_t n);
// Appends the name of a token as a JSON string. No two tokens have the same name. The name is
// - normally the token's text
// - "bytes:\xe2\x80" if its bytes are not UTF-8 (OpenAI's notation), or if it stands for one byte and another
//   token has the same text
// - "token_id:5000" for all other ids
void text_json_add_token_name(struct text *out, const struct tokenizer *tokenizer, int32_t id);
// Appends a reported token as an object. Unknown log-probabilities are null:
// {"id", "token", "bytes", "logprob", "top_logprobs": [{"id", "token", "bytes", "logprob"}, ...]}.
void text_json_add_token(struct text *out, const struct tokenizer *tokenizer, const struct text_token *token);
// Returns OpenAI's finish_reason: "length" for TEXT_LENGTH, else "stop".
const char *text_end_name(enum text_end why);

#endif
