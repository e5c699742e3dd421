// Inside data/: a tokenizer's tables, and the parts that its files share.
#ifndef ZERO_DATA_TOKENIZER_INTERNAL_H
#define ZERO_DATA_TOKENIZER_INTERNAL_H

#include "data/tokenizer.h"

// Open-addressing tables; the key of an empty slot is EMPTY_KEY, the id of one is -1.
#define EMPTY_KEY UINT64_MAX
struct pair_slot {
    uint64_t pair; // left << 32 | right
    int32_t id;
};

struct tokenizer {
    const char *kind;
    int n_tokens;            // without end-of-text
    char *bytes;             // of all tokens, one after the other
    uint32_t *offsets;       // (n_tokens + 1)
    int32_t *slots;          // token ids by the hash of their bytes
    size_t n_slots;          // a power of two
    struct pair_slot *pairs; // each pair of tokens whose concatenation is a token
    size_t n_pair_slots;     // a power of two
    int32_t byte_ids[256];
    int32_t byte_pairs[256][256]; // of two bytes' ids, -1 where they are no token: a cache holds these
};

// Takes the tokens' bytes (id i has bytes[offsets[i] .. offsets[i + 1]); both are owned from now on, also
// after a failure) and builds the tables. STATUS_INVALID names `source`, the
// token's line where lines (n_tokens) are given, and the id: an empty or repeated
// token, or a byte without one.
enum status tokenizer_from_tokens(const char *kind, char *bytes, uint32_t *offsets, const int *lines,
                                  int n_tokens, const char *source, struct tokenizer **out) MUST_CHECK;
// The id of these bytes, or -1.
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *bytes, size_t n_bytes);
// The id of two tokens' concatenation, or -1.
int32_t tokenizer_find_pair(const struct tokenizer *tokenizer, int32_t left, int32_t right);

// The length of the next piece of GPT-2's pattern; at least 1 while n_bytes is.
size_t tokenizer_next_piece(const char *text, size_t n_bytes);

// The first place from `from` on (at least 1) where a piece begins whatever is before it: white space behind
// something else. n_bytes where there is none.
size_t tokenizer_next_cut(const char *text, size_t n_bytes, size_t from);

uint64_t tokenizer_hash_pair(uint64_t pair);

#endif
