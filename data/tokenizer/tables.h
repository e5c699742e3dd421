// A tokenizer's tables: tokens by their bytes, pairs by their tokens. Readers of files build them with these
// functions of tokenizer.c. Internal to data/tokenizer and its tests.
#ifndef ZERO_DATA_TOKENIZER_TABLES_H
#define ZERO_DATA_TOKENIZER_TABLES_H

#include <string.h>

#include "base/status.h"
#include "base/text.h"
#include "data/tokenizer/tokens.h"

#define TOKENIZER_MOST_TOKENS (1 << 22)
#define END_OF_TEXT           "<|endoftext|>"

// Tables use open addressing. An empty slot has the key EMPTY_KEY or the id -1.
#define EMPTY_KEY UINT64_MAX
struct pair_slot {
    uint64_t pair; // left << 32 | right
    int32_t rank;
};

// All pairs of tokens that may be merged.
struct token_pairs {
    struct pair_slot *slots;
    size_t n_slots;             // a power of two
    int32_t *merge_ids;         // by rank, the token that the merge makes; NULL: the rank is the id
    int n_merges;               // number of ranks, if merge_ids is set
    int32_t of_bytes[256][256]; // by two bytes: rank or -1. Fits the CPU cache, unlike `slots`
};

// Where Llama 2 puts a space before text that begins or follows an added token.
enum space_rule {
    SPACE_NEVER,
    SPACE_ALWAYS,       // a normalizer adds it
    SPACE_UNLESS_SPACE, // not before a space; Metaspace's "always"
    SPACE_FIRST,        // the same, only where a text begins; Metaspace's "first"
};

// An added token that is not special. Encoding finds it in text.
struct added_token {
    int32_t id;
    bool is_normalized; // searched in normalized text, with its name normalized too
    size_t n, prefix;   // bytes; the first `prefix` bytes were added by normalization
    char *bytes;
};
struct added_tokens {
    struct added_token *list;
    int n, capacity, n_normalized;
    bool begins[256]; // by byte: a token begins with it
    bool has_blank;   // a token contains a blank or line feed: do not cut text there
};
// True if tokens are characters; U+2581 in tokens stands for a space in text.
static inline bool tokenizer_is_of_characters(enum token_pattern pattern) {
    return pattern == TOKEN_PATTERN_SPACES || pattern == TOKEN_PATTERN_SPACES_AND_LINES;
}

struct tokenizer {
    const char *kind;
    uint64_t checksum;
    struct token_rules rules;
    bool ignore_merges; // a pre-token that is itself a token becomes that token, whatever its merges would
                        // give
    enum space_rule adds_space;
    bool fuse_unknown; // consecutive unknown characters become one unknown token
    bool is_plain;     // works like GPT-2's: tokens, one rank each, with end-of-text as the last id, define
                       // everything
    int n_ids;
    char *bytes;       // the bytes of all tokens, concatenated
    uint32_t *offsets; // (n_ids + 1)
    uint8_t *types;    // (n_ids) enum token_type
    bool *is_whole;    // (n_ids) a pre-token with the token's bytes becomes the token
    int32_t *slots;    // hash table of normal tokens by their bytes
    size_t n_slots;    // a power of two
    struct token_pairs pairs;
    int32_t byte_ids[256];             // normal token of each byte; -1: none
    int32_t fallback_ids[256];         // Llama 2: TOKEN_BYTE token of each byte; -1: none
    int32_t end_of_text, start;        // start: -1: there is no separate token
    int32_t unknown;                   // -1: characters without a token are skipped
    int32_t ends[TOKENIZER_MOST_ENDS]; // ids that end generation, from the files beside the tokenizer;
                                       // eos_token first
    int n_ends;
    struct added_tokens added; // rules.added points to it
    char *json;                // the tokenizer.json it was read from, NUL-terminated; NULL: another format
    char *chat_template;       // tokenizer_chat_template
};

// ---- functions shared by the readers

// Tokens of a file, by id, while they are read. Zero-initialize it.
struct token_table {
    struct text bytes;
    uint32_t *offsets; // (n + 1)
    uint8_t *types;    // (n) enum token_type
    int *lines;        // (n) line number of each token in the file; 0: unknown
    int n, capacity;
};
void token_table_add(struct token_table *tokens, const char *bytes, size_t n, enum token_type type, int line);
void token_table_free(struct token_table *tokens);

// GPT-2's alphabet: printable bytes map to themselves, others to code points from 256 on. In vocab.bpe, the
// ids of single bytes follow the same order.
#define TOKEN_ALPHABET_END 0x144 // above all code points
struct token_alphabet {
    int code_points[256];
    int order[256];
    int16_t bytes[TOKEN_ALPHABET_END]; // byte of each code point; -1: none
};
void token_alphabet_init(struct token_alphabet *alphabet);
// Converts text in this alphabet back to bytes. Returns the number of bytes, at most n, or -1.
int token_decode(const char *text, size_t n, const struct token_alphabet *alphabet, char *out);

// ---- building a tokenizer

// Makes a tokenizer from the tokens, without pairs, and empties the table.
//   source   name of the file, for messages
// The caller may then set rules and ids, and adds pairs with one of the functions below. STATUS_INVALID: an
// empty or duplicate token.
enum status tokenizer_from_table(struct token_table *tokens, const char *kind, const char *source,
                                 struct tokenizer **out) MUST_CHECK;
// Adds all pairs of tokens whose concatenation is a token; the rank is that token's id. STATUS_INVALID: a
// byte has no token.
enum status tokenizer_pair_all(struct tokenizer *tokenizer, const char *source) MUST_CHECK;
// Adds only these merges, in rank order. If a pair occurs twice, the last counts. Then call
// tokenizer_find_whole.
void tokenizer_pair_merges(struct tokenizer *tokenizer, const struct token_merge *merges, int n);
// Adds an added token. A normalizer that puts a space before text (SPACE_ALWAYS) also puts it before a
// normalized name.
enum status tokenizer_add_added(struct tokenizer *tokenizer, int32_t id, const char *name,
                                bool is_normalized) MUST_CHECK;
// Computes the checksum. Call it last.
void tokenizer_set_checksum(struct tokenizer *tokenizer);
// Appends end-of-text to the table and makes a tokenizer that works like GPT-2's.
enum status tokenizer_make_plain(struct token_table *tokens, const char *kind, const char *source,
                                 struct tokenizer **out) MUST_CHECK;

// ---- looking up

// Returns the id of the normal token with these bytes, or -1.
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *bytes, size_t n_bytes);
// Returns the rank of the merge of two tokens, or -1.
int32_t tokenizer_find_pair(const struct tokenizer *tokenizer, int32_t left, int32_t right);
uint64_t tokenizer_hash_pair(uint64_t pair);
// Returns the id of a token that encoding does not produce, by name; -1: none.
int32_t tokenizer_find_special(const struct tokenizer *tokenizer, const char *name);

// U+2581, which stands for a space.
#define LOWER_BLOCK "\xe2\x96\x81"
static inline bool is_lower_block(const char *text, size_t n_bytes) {
    return n_bytes >= 3 && memcmp(text, LOWER_BLOCK, 3) == 0;
}
// Replaces U+2581 by blanks. Returns the new length.
size_t tokenizer_replace_blocks(char *text, size_t n_bytes);

#endif
