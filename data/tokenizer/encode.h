// The parts of encoding that others use: pre-tokens, places where text can be split, and merges up to a rank.
#ifndef ZERO_DATA_TOKENIZER_ENCODE_H
#define ZERO_DATA_TOKENIZER_ENCODE_H

#include "data/tokenizer/tokenizer.h"

// Returns the length in bytes of the first pre-token; at least 1 if n_bytes is.
size_t tokenizer_next_pretoken(struct token_rules rules, const char *text, size_t n_bytes);

// Returns the first offset at or after `from` (at least 1) where the text can be split without changing its
// pre-tokens or its normalization. Returns n_bytes if there is none.
size_t tokenizer_next_boundary(struct token_rules rules, const char *text, size_t n_bytes, size_t from);

// True if an added token begins before `at` and ends after it.
bool tokenizer_is_in_added(struct token_rules rules, const char *text, size_t n_bytes, size_t at);

// Appends the tokens that remain of a pre-token after all merges of ranks below `limit`. If ranks are ids:
// with a token's bytes and its id as the limit, these are the two tokens that the token's own merge joins.
enum status tokenizer_encode_below(const struct tokenizer *tokenizer, const char *pretoken, size_t n,
                                   int32_t limit, struct token_list *list) MUST_CHECK;
// Sets is_whole for a tokenizer with a list of merges.
enum status tokenizer_find_whole(struct tokenizer *tokenizer) MUST_CHECK;

#endif
