// The contents of a tokenizer: its settings, a table of tokens by their bytes, and a table of pairs by
// their two tokens. Readers of files build them with these functions of tokenizer.c. Internal to
// data/tokenizer and its tests.
#ifndef ZERO_DATA_TOKENIZER_TABLES_H
#define ZERO_DATA_TOKENIZER_TABLES_H

#include <string.h>

#include "base/status.h"
#include "base/text.h"
#include "data/tokenizer/tokens.h"

#define TOKENIZER_MOST_TOKENS (1 << 22)
#define END_OF_TEXT           "<|endoftext|>"

// Hash tables use open addressing. An empty slot has the key EMPTY_KEY or the id -1.
#define EMPTY_KEY UINT64_MAX
struct pair_slot {
    uint64_t pair; // the ids of two tokens: left << 32 | right; EMPTY_KEY: the slot is empty
    int32_t rank;  // rank of the merge of these two tokens
};

// All pairs of tokens that may be merged.
struct token_pairs {
    struct pair_slot *slots;
    size_t n_slots;     // a power of two
    int32_t *merge_ids; // (n_merges) by rank: id of the token that a merge makes; NULL: the id is the rank
    int n_merges;       // number of ranks, if merge_ids is set
    // Rank of the merge of two single-byte tokens, by their bytes; -1: they do not merge. This table fits
    // into the CPU cache, unlike `slots`.
    int32_t of_bytes[256][256];
};

// Llama 2: when encoding puts a space before a text, and before the text after an added token. A
// tokenizer.json says so by a Prepend normalizer, or by the prepend_scheme of the pre-tokenizer Metaspace.
enum space_rule {
    SPACE_NEVER,
    SPACE_ALWAYS,       // even before a space: Prepend, or "always" and a normalizer that doubles the space
    SPACE_UNLESS_SPACE, // unless the text begins with a space: prepend_scheme "always", the default
    SPACE_FIRST,        // like SPACE_UNLESS_SPACE, but not after added tokens: prepend_scheme "first"
};

// An added token that is not special. Encoding finds it in text.
struct added_token {
    int32_t id;
    bool is_normalized; // true: searched for in normalized text, by its normalized name; false: in raw text
    // n: length of `bytes`. prefix: 1 if `bytes` begins with a space that normalization put before the name,
    // else 0.
    size_t n, prefix;
    char *bytes; // the name, normalized if is_normalized
};
struct added_tokens {
    struct added_token *list;
    int n, capacity, n_normalized; // n_normalized: how many are searched for in normalized text
    bool begins[256];              // by byte: whether an added token begins with this byte
    bool has_blank; // a token contains a space or line feed, so tokenizer_next_boundary finds no boundary
};
// True if tokens are merged from characters, not bytes (Llama 2). The files of such tokenizers have U+2581
// where tokens have spaces.
static inline bool tokenizer_is_of_characters(enum token_pattern pattern) {
    return pattern == TOKEN_PATTERN_SPACES || pattern == TOKEN_PATTERN_SPACES_AND_LINES;
}

struct tokenizer {
    const char *kind;
    uint64_t checksum;
    struct token_rules rules;
    bool ignore_merges; // a pre-token that is itself a token becomes that token, without merging
    enum space_rule adds_space;
    bool fuse_unknown; // consecutive unknown characters become one unknown token
    // The tokenizer works like GPT-2's: its tokens alone define it, their ids are the ranks of the merges,
    // and end-of-text is the last id.
    bool is_plain;
    int n_ids;
    char *bytes;       // the bytes of all tokens, concatenated
    uint32_t *offsets; // (n_ids + 1) where each token begins in `bytes`, then the total length
    uint8_t *types;    // (n_ids) enum token_type
    bool *is_whole;    // (n_ids) whether a pre-token with the token's bytes becomes the token without merging
    int32_t *slots;    // hash table of normal tokens by their bytes
    size_t n_slots;    // a power of two
    struct token_pairs pairs;
    int32_t byte_ids[256];     // normal token of each byte; -1: none
    int32_t fallback_ids[256]; // Llama 2: TOKEN_BYTE token of each byte; -1: none
    int32_t end_of_text;
    int32_t start;   // the id that begins documents (bos); -1: there is none, and end_of_text begins them
    int32_t unknown; // the id that stands for characters without a token; -1: such characters are skipped
    // The n_ends ids that end generation, as the GGUF file or the files beside the tokenizer name them, with
    // eos_token first. end_of_text also ends generation, but may be missing from this list.
    int32_t ends[TOKENIZER_MOST_ENDS];
    int n_ends;
    struct added_tokens added; // rules.added points to it
    // Text of the tokenizer.json from which the tokenizer was read, or that was built from a GGUF file.
    // NUL-terminated. NULL: another format.
    char *json;
    char *chat_template; // JSON, as tokenizer_chat_template returns it; NULL: none
};

// ---- functions shared by the readers

// Tokens of a file, by id, while they are read. Zero-initialize it.
struct token_table {
    struct text bytes;
    uint32_t *offsets; // (n + 1) where each token begins in `bytes`, then the total length
    uint8_t *types;    // (n) enum token_type
    int *lines;        // (n) line number of each token in the file; 0: unknown
    int n, capacity;
};
void token_table_add(struct token_table *tokens, const char *bytes, size_t n, enum token_type type, int line);
void token_table_free(struct token_table *tokens);

// GPT-2's alphabet: printable bytes map to themselves, others to code points from 256 on. With vocab.bpe, the
// ids 0 to 255 are the tokens of the single bytes, in the order `order`.
#define TOKEN_ALPHABET_END 0x144 // 1 + the highest code point of the alphabet
struct token_alphabet {
    int code_points[256];              // of each byte
    int order[256];                    // all bytes: the printable ones, then the others
    int16_t bytes[TOKEN_ALPHABET_END]; // byte of each code point; -1: none
};
void token_alphabet_init(struct token_alphabet *alphabet);
// Converts text in this alphabet back to bytes. Returns their number, at most n; -1 if a character is not in
// the alphabet.
int token_decode(const char *text, size_t n, const struct token_alphabet *alphabet, char *out);

// ---- building a tokenizer

// Makes a tokenizer from the tokens, without pairs, and empties the table. The caller may then set its
// rules and special ids (end_of_text, start, unknown), and must add pairs with one of the next two
// functions.
//   source   name of the file, for messages
// STATUS_INVALID: a token is empty, or two normal tokens have the same bytes.
enum status tokenizer_from_table(struct token_table *tokens, const char *kind, const char *source,
                                 struct tokenizer **out) MUST_CHECK;
// Adds all pairs of normal tokens whose concatenation is a normal token; its id is the pair's rank.
// STATUS_INVALID: a byte has no token.
enum status tokenizer_pair_all(struct tokenizer *tokenizer, const char *source) MUST_CHECK;
// Adds only these merges, in rank order. If a pair occurs twice, the last counts. Then call
// tokenizer_find_whole.
void tokenizer_pair_merges(struct tokenizer *tokenizer, const struct token_merge *merges, int n);
// Adds an added token that encoding finds in text. Call it after rules and adds_space have been set.
//   is_normalized   true: the name is normalized like text: to NFC if rules.nfc is set, and with a space
//                   before it if adds_space is SPACE_ALWAYS
enum status tokenizer_add_added(struct tokenizer *tokenizer, int32_t id, const char *name,
                                bool is_normalized) MUST_CHECK;
// Computes the checksum. Call it after everything else has been set.
void tokenizer_set_checksum(struct tokenizer *tokenizer);
// Appends end-of-text to the table, and makes a tokenizer that works like GPT-2's (is_plain), with its
// pairs.
enum status tokenizer_make_plain(struct token_table *tokens, const char *kind, const char *source,
                                 struct tokenizer **out) MUST_CHECK;

// ---- looking up tokens and pairs

// Returns the id of the normal token with these bytes, or -1.
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *bytes, size_t n_bytes);
// Returns the rank of the merge of two tokens, or -1.
int32_t tokenizer_find_pair(const struct tokenizer *tokenizer, int32_t left, int32_t right);
uint64_t tokenizer_hash_pair(uint64_t pair);
// Returns the id of the control, unknown or user token with this name; -1: none.
int32_t tokenizer_find_special(const struct tokenizer *tokenizer, const char *name);

// U+2581, which stands for a space in the files of Llama 2's tokenizer.
#define LOWER_BLOCK "\xe2\x96\x81"
static inline bool is_lower_block(const char *text, size_t n_bytes) {
    return n_bytes >= 3 && memcmp(text, LOWER_BLOCK, 3) == 0;
}
// Replaces U+2581 by spaces. Returns the new length in bytes.
size_t tokenizer_replace_blocks(char *text, size_t n_bytes);

#endif
