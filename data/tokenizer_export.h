// Writes a tokenizer in the formats of other programs: Hugging Face's, llm.c's, and the pieces that GGUF
// needs.
//
// Merges. Files of this program and of tiktoken hold tokens in the order of their ranks, and no merges: any
// two adjacent tokens whose concatenation is a token are merged, the one of lowest rank first. Programs with
// a list of merges use one pair per token. Both give the same ids if that pair is what the merges of lower
// rank make of the token's bytes, and if there are exactly two left; that holds for every trained byte-pair
// encoding.
#ifndef ZERO_DATA_TOKENIZER_EXPORT_H
#define ZERO_DATA_TOKENIZER_EXPORT_H

#include "base/text.h"
#include "data/tokenizer.h"

struct token_merge {
    int32_t left, right, id; // left and right make id
};

// The merge of every token of more than one byte, in the order of their ids.
//   merges   [out] (n) to be freed
// STATUS_INVALID: a token is not made by a merge of two tokens of lower rank, as in files that are no trained
// byte-pair encoding; or it is the text "<|endoftext|>", which those formats cannot tell from the marker.
enum status tokenizer_derive_merges(const struct tokenizer *tokenizer, struct token_merge **merges,
                                    int *n) MUST_CHECK;
// Appends a token in GPT-2's alphabet, as UTF-8: "Ġthe" for " the"; "<|endoftext|>" for end-of-text.
void tokenizer_add_spelling(const struct tokenizer *tokenizer, int32_t id, struct text *out);
// Appends a merge: two spellings with a blank between.
void tokenizer_add_merge(const struct tokenizer *tokenizer, const struct token_merge *merge,
                         struct text *out);

// Writes tokenizer.json, vocab.json and merges.txt, as transformers saves GPT-2's.
enum status tokenizer_save_huggingface(const struct tokenizer *tokenizer, const char *folder) MUST_CHECK;
// Writes llm.c's tokenizer file, version 2. STATUS_INVALID: a token of more than 255 bytes.
enum status tokenizer_save_llmc(const struct tokenizer *tokenizer, const char *path) MUST_CHECK;

#endif
