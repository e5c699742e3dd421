// Functions of encode.c that other files use: to find pre-tokens and places where text can be split, and to
// encode with only some of the merges.
#ifndef ZERO_DATA_TOKENIZER_ENCODE_H
#define ZERO_DATA_TOKENIZER_ENCODE_H

#include "data/tokenizer/tokenizer.h"

// Returns the length in bytes of the first pre-token; at least 1 if n_bytes > 0.
size_t tokenizer_next_pretoken(struct token_rules rules, const char *text, size_t n_bytes);

// Returns the first offset at or after `from` where the text can be split without changing its pre-tokens
// or its normalization. Returns n_bytes if there is none.
//   from   at least 1
size_t tokenizer_next_boundary(struct token_rules rules, const char *text, size_t n_bytes, size_t from);

// True if the text has an added token that begins before offset `at` and ends after it.
bool tokenizer_is_in_added(struct token_rules rules, const char *text, size_t n_bytes, size_t at);

// Encodes a pre-token with only the merges of ranks below `limit`, and appends the tokens. In a tokenizer
// without a list of merges, call it with a token's bytes and its id as `limit` to get the tokens that the
// token is merged from: two, if one merge makes it.
enum status tokenizer_encode_below(const struct tokenizer *tokenizer, const char *pretoken, size_t n,
                                   int32_t limit, struct token_list *list) MUST_CHECK;
// Computes tokenizer->is_whole for a tokenizer with a list of merges: true for the normal tokens that the
// merges make from their bytes; with ignore_merges, for all normal tokens.
enum status tokenizer_find_whole(struct tokenizer *tokenizer) MUST_CHECK;

#endif
