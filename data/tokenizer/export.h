// Writes a tokenizer in the formats of other programs: Hugging Face's, and the pieces that GGUF needs.
//
// Merges. Files of this program and of tiktoken hold tokens in the order of their ranks, and no merges: any
// two adjacent tokens whose concatenation is a token are merged, the one of lowest rank first. Programs with
// a list of merges use, for tokenizers like GPT-2's, one pair per token. Both give the same ids if that pair
// is what the merges of lower rank make of the token's bytes, and if there are exactly two left; that holds
// for every trained byte-pair encoding.
#ifndef ZERO_DATA_TOKENIZER_EXPORT_H
#define ZERO_DATA_TOKENIZER_EXPORT_H

#include "base/gguf.h"
#include "base/text.h"
#include "data/tokenizer/tokenizer.h"

// The merges in the order of their ranks: those of the file that the tokenizer was read from; of one without
// a list that works like GPT-2's, one per token of more than one byte; of Llama 3's and Qwen's tiktoken
// files, all pairs.
//   merges   [out] (n) to be freed
// STATUS_INVALID: like GPT-2's, but a token is not made by a merge of two tokens of lower rank, as in files
// that are no trained byte-pair encoding; or it is the text "<|endoftext|>", which those formats cannot tell
// from the marker.
enum status tokenizer_derive_merges(const struct tokenizer *tokenizer, struct token_merge **merges,
                                    int *n) MUST_CHECK;
// Appends a token as tokenizer.json and GGUF spell it, as UTF-8. Bytes are in GPT-2's alphabet: "Ġthe" for
// " the"; Llama 2: "▁the", and "<0x0A>" for tokens of bytes; control tokens have their names.
void tokenizer_add_spelling(const struct tokenizer *tokenizer, int32_t id, struct text *out);
// Appends a merge: two spellings with a blank between.
void tokenizer_add_merge(const struct tokenizer *tokenizer, const struct token_merge *merge,
                         struct text *out);

// Appends the tokenizer.json: the one that the tokenizer was read from, byte by byte, or a new one.
enum status tokenizer_add_json(const struct tokenizer *tokenizer, struct text *out) MUST_CHECK;
// Writes tokenizer.json, and where tokenizer_has_vocab_files also vocab.json and merges.txt, as transformers
// saves GPT-2's.
enum status tokenizer_save_huggingface(const struct tokenizer *tokenizer, const char *folder) MUST_CHECK;
bool tokenizer_has_vocab_files(const struct tokenizer *tokenizer);
// Append tokenizer_config.json and special_tokens_map.json for transformers.
//   model_type, n_positions   of the model's config.json
void tokenizer_add_config(const struct tokenizer *tokenizer, const char *model_type, int n_positions,
                          struct text *out);
void tokenizer_add_special_map(const struct tokenizer *tokenizer, struct text *out);

// Which tokens end generation is not in a tokenizer.json: tokenizer_load reads it from this file beside it.
// Needed for all tokenizers but those that work like GPT-2's.
#define TOKENIZER_ENDS_NAME "generation_config.json"
// Nor is the chat template: it is read from this one.
#define TOKENIZER_SETTINGS_NAME "tokenizer_config.json"
bool tokenizer_needs_ends(const struct tokenizer *tokenizer);
// Appends its "eos_token_id": end-of-text, or a list of it and the others: "128001", "[128001, 128009]".
void tokenizer_add_ends(const struct tokenizer *tokenizer, struct text *out);

// GGUF's type of an id without a token, beside enum token_type.
#define TOKEN_UNUSED 5
// GGUF's tokenizer.ggml.model, "gpt2" or "llama"; and .pre, which names the pattern; of OpenAI's patterns it
// has no name, and this is theirs.
const char *tokenizer_gguf_model(const struct tokenizer *tokenizer);
const char *tokenizer_gguf_pre(const struct tokenizer *tokenizer);
// What the pattern's name implies, and these keys say where it is otherwise. llama.cpp does not read them.
#define GGUF_NFC           "zero.tokenizer.nfc"
#define GGUF_IGNORE_MERGES "zero.tokenizer.ignore_merges"
// Adds them, and warns where llama.cpp gives other ids to some texts: it does not normalize, finds tokens
// that no merges make or not by the pattern, and of "llama" joins any two tokens that make a third.
void tokenizer_add_gguf_rules(const struct tokenizer *tokenizer, struct gguf_keys *keys);
#define GGUF_CHAT_TEMPLATE "tokenizer.chat_template"
// GGUF's tokenizer.ggml.scores for the model "llama", as SentencePiece counts them: minus the rank of the
// merge that makes the token, then characters; 0 for all others.
//   scores   [out] (tokenizer_n_ids)
// STATUS_INVALID: it has no tokens for bytes.
enum status tokenizer_scores(const struct tokenizer *tokenizer, float *scores) MUST_CHECK;
// The token for what has no token; -1: none.
int32_t tokenizer_unknown(const struct tokenizer *tokenizer);

#endif
