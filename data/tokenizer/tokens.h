// What a tokenizer's tokens are, and how it splits text before it merges them.
#ifndef ZERO_DATA_TOKENIZER_TOKENS_H
#define ZERO_DATA_TOKENIZER_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

// Regular expressions that split text into pre-tokens: each match is a pre-token. (?i:...) ignores case;
// character classes are Unicode's.
#define TOKEN_PATTERN_TEXT_GPT2                                                                              \
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define TOKEN_PATTERN_TEXT_LLAMA3                                                                            \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "                               \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TOKEN_PATTERN_TEXT_QWEN2                                                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "                                    \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TOKEN_PATTERN_TEXT_CL100K                                                                            \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "                               \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s+\\z|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TOKEN_PATTERN_TEXT_O200K                                                                             \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"                                                                         \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"                                                                         \
    "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
enum token_pattern {
    TOKEN_PATTERN_GPT2,
    TOKEN_PATTERN_LLAMA3,
    TOKEN_PATTERN_QWEN2,
    // Each number character (\p{N}) is a pre-token. GPT-2's pattern splits the text between two such
    // characters as if it were a whole text.
    TOKEN_PATTERN_SMOLLM,
    // Llama 2: a pre-token is consecutive spaces, if there are any, and then all characters up to the next
    // space. U+2581 counts as a space.
    TOKEN_PATTERN_SPACES,
    // Like SPACES, but each line feed is a pre-token. For tokenizers in which no token has a line feed beside
    // other characters.
    TOKEN_PATTERN_SPACES_AND_LINES,
    // OpenAI's cl100k_base: like Llama 3's, but white space at the end of a text is one pre-token.
    TOKEN_PATTERN_CL100K,
    TOKEN_PATTERN_O200K, // OpenAI's o200k_base
};
struct token_rules {
    enum token_pattern pattern;
    bool nfc;                         // text is first normalized to Unicode's NFC
    const struct added_tokens *added; // the added tokens, which are found in text first; NULL: none
};

// What an id stands for. The values are those of GGUF's token types.
enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2, // stands for characters without a token
    TOKEN_CONTROL = 3, // end-of-text and the like; has no text
    TOKEN_USER = 4,    // an added token that is not special, such as <think>: found in text as a whole
    TOKEN_BYTE = 6,    // Llama 2: one byte of a character without a token
};

struct token_merge {
    int32_t left, right, id; // left and right merge to id
};

#define TOKENIZER_MOST_ENDS 8 // maximum number of ids that end generation

#endif
