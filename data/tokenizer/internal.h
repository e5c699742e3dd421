// Internal to data/tokenizer (and its tests): a tokenizer's tables, and what its files share.
#ifndef ZERO_DATA_TOKENIZER_INTERNAL_H
#define ZERO_DATA_TOKENIZER_INTERNAL_H

#include <cjson/cJSON.h>
#include <string.h>

#include "base/text.h"
#include "data/tokenizer/tokenizer.h"

#define TOKENIZER_MOST_TOKENS (1 << 22)
#define END_OF_TEXT           "<|endoftext|>"

// Tables use open addressing. An empty slot has the key EMPTY_KEY, or the id -1.
#define EMPTY_KEY UINT64_MAX
struct pair_slot {
    uint64_t pair; // left << 32 | right
    int32_t rank;
};

// Every pair of tokens that may be merged.
struct token_pairs {
    struct pair_slot *slots;
    size_t n_slots;             // a power of two
    int32_t *merge_ids;         // the token that a merge of this rank makes; NULL: the rank is the id
    int n_merges;               // ranks, if there are merge_ids
    int32_t of_bytes[256][256]; // rank of two bytes, or -1. Small enough for the CPU cache, unlike `slots`
};

// Where a space is put before text that begins, or follows an added token: Llama 2.
enum space_rule {
    SPACE_NEVER,
    SPACE_ALWAYS,       // by a normalizer
    SPACE_UNLESS_SPACE, // but not before a space: by Metaspace, "always"
    SPACE_FIRST,        // the same, where a text begins: by Metaspace, "first"
};

// An added token that is not special, as it is found in text.
struct added_token {
    int32_t id;
    bool is_normalized; // found in text that was normalized, as its own name was
    size_t n, prefix;   // bytes; the first `prefix` of them come from normalization
    char *bytes;
};
struct added_tokens {
    struct added_token *list;
    int n, capacity, n_normalized;
    bool begins[256]; // whether one begins with the byte
    bool has_blank;   // one has a blank or line feed within: text is not cut then
};
// Adds one. Where a normalizer puts a space before text (SPACE_ALWAYS), it does before a normalized name too.
enum status tokenizer_add_added(struct tokenizer *tokenizer, int32_t id, const char *name,
                                bool is_normalized) MUST_CHECK;
// Tokens are characters, and text has spaces where they have U+2581.
static inline bool tokenizer_is_of_characters(enum token_pattern pattern) {
    return pattern == TOKEN_PATTERN_SPACES || pattern == TOKEN_PATTERN_SPACES_AND_LINES;
}

struct tokenizer {
    const char *kind;
    uint64_t checksum;
    struct token_rules rules;
    bool ignore_merges; // a pre-token that is a token becomes it, whatever its merges would give
    enum space_rule adds_space;
    bool fuse_unknown; // consecutive unknown characters become one unknown token
    bool is_plain; // works as GPT-2's: tokens, one rank each, and end-of-text as the last id say everything
    int n_ids;
    char *bytes;       // the bytes of all tokens, concatenated
    uint32_t *offsets; // (n_ids + 1)
    uint8_t *types;    // (n_ids) enum token_type
    bool *is_whole;    // (n_ids) a pre-token of the token's bytes becomes the token
    int32_t *slots;    // ids of normal tokens by the hash of their bytes
    size_t n_slots;    // a power of two
    struct token_pairs pairs;
    int32_t byte_ids[256];             // the normal token of one byte; -1: none
    int32_t fallback_ids[256];         // Llama 2: the byte's token of type TOKEN_BYTE; -1: none
    int32_t end_of_text, start;        // start: -1: no token of its own
    int32_t unknown;                   // -1: characters without a token are left out
    int32_t ends[TOKENIZER_MOST_ENDS]; // that end generation by the files beside it, eos_token first
    int n_ends;
    struct added_tokens added; // rules.added points to it
    char *json;          // the tokenizer.json that it was read from, NUL-terminated; NULL: another format
    char *chat_template; // tokenizer_chat_template
};

// ---- what the readers share

// The tokens of a file as they are read, by id. Zero-initialize it.
struct token_table {
    struct text bytes;
    uint32_t *offsets; // (n + 1)
    uint8_t *types;    // (n) enum token_type
    int *lines;        // (n) line of each in the file; 0: unknown
    int n, capacity;
};
void token_table_add(struct token_table *tokens, const char *bytes, size_t n, enum token_type type, int line);
void token_table_free(struct token_table *tokens);

// GPT-2's alphabet: a printable byte maps to itself, the others to code points from 256 on. In vocab.bpe, the
// ids of single bytes follow the same order.
#define TOKEN_ALPHABET_END 0x144 // above all code points
struct token_alphabet {
    int code_points[256];
    int order[256];
    int16_t bytes[TOKEN_ALPHABET_END]; // of each code point; -1: none
};
void token_alphabet_init(struct token_alphabet *alphabet);
// Converts text in this alphabet back to bytes. Returns their number, at most n, or -1.
int token_decode(const char *text, size_t n, const struct token_alphabet *alphabet, char *out);

// ---- making one

// Makes a tokenizer of the tokens, without pairs, and empties the table.
//   source   name of the file, for messages
// The caller may set rules and ids, and then adds pairs with one of the functions below.
// STATUS_INVALID: an empty or duplicate token.
enum status tokenizer_from_table(struct token_table *tokens, const char *kind, const char *source,
                                 struct tokenizer **out) MUST_CHECK;
// Every two tokens whose concatenation is a token are a pair, with its id as the rank. STATUS_INVALID: a byte
// has no token.
enum status tokenizer_pair_all(struct tokenizer *tokenizer, const char *source) MUST_CHECK;
// Only these merges, in the order of their ranks. Where a pair occurs twice, the last counts. Then call
// tokenizer_find_whole.
void tokenizer_pair_merges(struct tokenizer *tokenizer, const struct token_merge *merges, int n);
// The checksum, once everything is set.
void tokenizer_set_checksum(struct tokenizer *tokenizer);
// Appends end-of-text to the table and makes a tokenizer that works like GPT-2's.
enum status tokenizer_make_plain(struct token_table *tokens, const char *kind, const char *source,
                                 struct tokenizer **out) MUST_CHECK;

// ---- reading

// Ids that end generation, where a file names them itself.
struct token_ends {
    int32_t ids[TOKENIZER_MOST_ENDS];
    int n;
};
// Reads a Hugging Face tokenizer.json.
//   json   NUL-terminated
//   ends   for tokenizer_choose_ends
// STATUS_INVALID: malformed, or no tokenizer of a known kind (the message has the first difference).
enum status tokenizer_read_json(const char *path, const char *json, size_t length,
                                const struct token_ends *ends, struct tokenizer **out) MUST_CHECK;
// Whether the file is one. False when it cannot be read.
bool tokenizer_is_json(const char *path);

// Reads the tokenizer of a GGUF file. STATUS_INVALID: malformed, or of a kind that is not known.
enum status tokenizer_read_gguf(const char *path, struct tokenizer **out) MUST_CHECK;
// Whether the GGUF file has one. False when it cannot be read.
bool tokenizer_is_in_gguf(const char *path);

// The JSON of a file beside the tokenizer's path; NULL when there is none, or it is not JSON.
cJSON *tokenizer_read_beside(const char *path, const char *name);
// Chooses end-of-text and the other ends (tokenizer_load says how).
//   path   of the tokenizer: the files beside it are read
//   ends   NULL, or what the file says itself: then no others are read
enum status tokenizer_choose_ends(struct tokenizer *tokenizer, const char *path,
                                  const struct token_ends *ends) MUST_CHECK;
// The id of a token that encoding does not produce, by its name; -1: none.
int32_t tokenizer_find_special(const struct tokenizer *tokenizer, const char *name);

// How an added token of a tokenizer.json ends, after its id and content; %s: whether it is special.
#define TOKENIZER_JSON_ADDED                                                                                 \
    ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":%s}"

// ---- encoding

// The id of the normal token of these bytes, or -1.
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *bytes, size_t n_bytes);
// The rank of the merge of two tokens, or -1.
int32_t tokenizer_find_pair(const struct tokenizer *tokenizer, int32_t left, int32_t right);

// U+2581, which stands for a space.
#define LOWER_BLOCK "\xe2\x96\x81"
static inline bool is_lower_block(const char *text, size_t n_bytes) {
    return n_bytes >= 3 && memcmp(text, LOWER_BLOCK, 3) == 0;
}
// Puts blanks in their place. Returns the length that is left.
size_t tokenizer_replace_blocks(char *text, size_t n_bytes);

// The length in bytes of the first pre-token of the text. At least 1 when n_bytes is.
size_t tokenizer_next_pretoken(struct token_rules rules, const char *text, size_t n_bytes);

// The first offset at or after `from` (at least 1) where the text can be split without changing its
// pre-tokens or its normalization. n_bytes when there is none.
size_t tokenizer_next_boundary(struct token_rules rules, const char *text, size_t n_bytes, size_t from);

// Whether an added token begins before this place and ends after it.
bool tokenizer_is_in_added(struct token_rules rules, const char *text, size_t n_bytes, size_t at);

uint64_t tokenizer_hash_pair(uint64_t pair);

// Appends what the merges of ranks below `limit` leave of a pre-token. With the id of a token as the limit,
// and its bytes: the tokens that its own merge joins, if ranks are ids.
enum status tokenizer_encode_below(const struct tokenizer *tokenizer, const char *pretoken, size_t n,
                                   int32_t limit, struct token_list *list) MUST_CHECK;
// Sets is_whole, where a list of merges decides it.
enum status tokenizer_find_whole(struct tokenizer *tokenizer) MUST_CHECK;

#endif
