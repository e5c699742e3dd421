// Internal to data/: a tokenizer's tables, and what tokenizer*.c share.
#ifndef ZERO_DATA_TOKENIZER_INTERNAL_H
#define ZERO_DATA_TOKENIZER_INTERNAL_H

#include <stdbool.h>

#include "data/token_table.h"
#include "data/tokenizer.h"

// Tables use open addressing. An empty slot has the key EMPTY_KEY, or the id -1.
#define EMPTY_KEY UINT64_MAX
struct pair_slot {
    uint64_t pair; // left << 32 | right
    int32_t id;
};

struct tokenizer {
    const char *kind;
    uint64_t checksum;
    int n_tokens;            // without end-of-text
    char *bytes;             // the bytes of all tokens, concatenated
    uint32_t *offsets;       // (n_tokens + 1)
    int32_t *slots;          // token ids by the hash of their bytes
    size_t n_slots;          // a power of two
    struct pair_slot *pairs; // every pair of tokens whose concatenation is a token
    size_t n_pair_slots;     // a power of two
    int32_t byte_ids[256];
    int32_t byte_pairs[256][256]; // id of two bytes, or -1. Small enough for the CPU cache, unlike `pairs`
};

// Reads a Hugging Face tokenizer.json; or a vocab.json, with the merges.txt beside it. STATUS_INVALID:
// malformed, or not a tokenizer that works like GPT-2's (the message has the first difference).
enum status tokenizer_read_json(const char *path, const char *json, size_t length,
                                struct token_table *tokens) MUST_CHECK;
// Whether the file is one of these. False when it cannot be read.
bool tokenizer_is_json(const char *path);

// Builds a tokenizer from its tokens.
//   bytes, offsets   id i has bytes[offsets[i] .. offsets[i + 1]); takes ownership of both, also on failure
//   lines            (n_tokens) line of each token in the file, for messages; may be NULL
//   source           name of the file, for messages
// STATUS_INVALID: an empty or duplicate token, or a byte without a token.
enum status tokenizer_from_tokens(const char *kind, char *bytes, uint32_t *offsets, const int *lines,
                                  int n_tokens, const char *source, struct tokenizer **out) MUST_CHECK;
// The id of these bytes, or -1.
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *bytes, size_t n_bytes);
// The id of two tokens' concatenation, or -1.
int32_t tokenizer_find_pair(const struct tokenizer *tokenizer, int32_t left, int32_t right);

// The length in bytes of the first pre-token of the text, by GPT-2's pattern. At least 1 when n_bytes is.
size_t tokenizer_next_pretoken(const char *text, size_t n_bytes);

// The first offset at or after `from` (at least 1) where the text can be split without changing its
// pre-tokens: white space after a character that is not. n_bytes when there is none.
size_t tokenizer_next_boundary(const char *text, size_t n_bytes, size_t from);

uint64_t tokenizer_hash_pair(uint64_t pair);

// Appends what the merges that make ids below `limit` leave of a pre-token. With the id of a token as the
// limit, and its bytes: the tokens that its own merge joins.
enum status tokenizer_encode_below(const struct tokenizer *tokenizer, const char *pretoken, size_t n,
                                   int32_t limit, struct token_list *list) MUST_CHECK;

// llm.c's tokenizer file: a header of int32, then for each id a byte with its length, and its bytes. The last
// id is end-of-text. Version 1 does not say so, and is otherwise the same.
//   header: magic, version, number of ids, end-of-text, zeros
#define TOKENIZER_LLMC_MAGIC  20240328
#define TOKENIZER_LLMC_HEADER 256

#endif
