// Internal to data/: what the readers of tokenizer files share.
#ifndef ZERO_DATA_TOKEN_TABLE_H
#define ZERO_DATA_TOKEN_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "base/text.h"
#include "data/tokenizer.h"

// The tokens of a file as they are read, by id. Zero-initialize it.
struct token_table {
    struct text bytes;
    uint32_t *offsets; // (n + 1)
    uint8_t *types;    // (n) enum token_type
    int *lines;        // (n) line of each in the file; 0: unknown
    int n, capacity;
};
enum status token_table_add(struct token_table *tokens, const char *bytes, size_t n, enum token_type type,
                            int line) MUST_CHECK;
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

#endif
