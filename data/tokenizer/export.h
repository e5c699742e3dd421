// Writes a tokenizer in the formats of other programs: Hugging Face's, and the keys that GGUF needs.
//
// Merges. This program's files and tiktoken's list tokens in rank order, without merges: any two adjacent
// tokens whose concatenation is a token are merged, the lowest rank first. For tokenizers like GPT-2's,
// other programs use a list of merges with one pair per token. Both give the same ids if, for each token,
// the merges of lower rank reduce its bytes to exactly that pair. This holds for every trained byte-pair
// encoding.
#ifndef ZERO_DATA_TOKENIZER_EXPORT_H
#define ZERO_DATA_TOKENIZER_EXPORT_H

#include "base/gguf.h"
#include "base/text.h"
#include "data/tokenizer/tokenizer.h"

// Returns the merges in rank order:
// - if the tokenizer works like GPT-2's: one merge per token of more than one byte
// - otherwise, if the tokenizer's file lists merges: these merges
// - otherwise (tiktoken files): all pairs of tokens whose concatenation is a token
// The caller frees `*merges`, which has `*n` elements.
// STATUS_INVALID, for tokenizers like GPT-2's: a token is not made by a merge of two tokens of lower rank,
// so the file is not a trained byte-pair encoding.
enum status tokenizer_derive_merges(const struct tokenizer *tokenizer, struct token_merge **merges,
                                    int *n) MUST_CHECK;
// Appends a token in the spelling of tokenizer.json and GGUF, as UTF-8:
// - byte-level: in GPT-2's alphabet, "Ġthe" for " the"
// - Llama 2: "▁the", and "<0x0A>" for byte tokens
// - control tokens: their names
void tokenizer_add_spelling(const struct tokenizer *tokenizer, int32_t id, struct text *out);
// Appends a merge: the spellings of its two tokens, separated by a space.
void tokenizer_add_merge(const struct tokenizer *tokenizer, const struct token_merge *merge,
                         struct text *out);

// Appends the tokenizer.json: the file that the tokenizer was read from, byte for byte, or a new one.
enum status tokenizer_add_json(const struct tokenizer *tokenizer, struct text *out) MUST_CHECK;
// Writes tokenizer.json to a folder. For tokenizers that work like GPT-2's (tokenizer_has_vocab_files),
// also writes vocab.json and merges.txt, as transformers does.
enum status tokenizer_save_huggingface(const struct tokenizer *tokenizer, const char *folder) MUST_CHECK;
bool tokenizer_has_vocab_files(const struct tokenizer *tokenizer);
// These functions append the text of tokenizer_config.json and of special_tokens_map.json, for transformers.
//   model_type, n_positions   values of the model's config.json
void tokenizer_add_config(const struct tokenizer *tokenizer, const char *model_type, int n_positions,
                          struct text *out);
void tokenizer_add_special_map(const struct tokenizer *tokenizer, struct text *out);

// Files beside a tokenizer.json, from which tokenizer_load reads what the tokenizer.json does not contain:
// the tokens that end generation, and the chat template.
#define TOKENIZER_ENDS_NAME     "generation_config.json"
#define TOKENIZER_SETTINGS_NAME "tokenizer_config.json"
// True if the tokens that end generation must be written to TOKENIZER_ENDS_NAME: for all tokenizers except
// those that work like GPT-2's.
bool tokenizer_needs_ends(const struct tokenizer *tokenizer);
// Appends the value of "eos_token_id": one id ("128001"), or a list if several tokens end generation
// ("[128001, 128009]").
void tokenizer_add_ends(const struct tokenizer *tokenizer, struct text *out);

// GGUF's token type for an id without a token. enum token_type has the other types.
#define TOKEN_UNUSED 5
// Return the values of GGUF's keys tokenizer.ggml.model ("gpt2" or "llama") and tokenizer.ggml.pre, which
// names the pattern. GGUF has no names for OpenAI's patterns; OpenAI's own are used, such as "cl100k_base".
const char *tokenizer_gguf_model(const struct tokenizer *tokenizer);
const char *tokenizer_gguf_pre(const struct tokenizer *tokenizer);
// This program's own GGUF keys, for rules that differ from what the pattern's name implies. llama.cpp does
// not read them.
#define GGUF_NFC           "zero.tokenizer.nfc"
#define GGUF_IGNORE_MERGES "zero.tokenizer.ignore_merges"
// Adds GGUF_NFC and GGUF_IGNORE_MERGES where the tokenizer's rules require them. Warns if llama.cpp gives
// other ids to some texts, because
// - it does not normalize text to NFC
// - the name of the pattern decides whether it finds tokens that no merge makes
// - for "llama", it merges any two tokens that form a third
void tokenizer_add_gguf_rules(const struct tokenizer *tokenizer, struct gguf_keys *keys);
#define GGUF_CHAT_TEMPLATE "tokenizer.chat_template"
// Returns tokenizer.ggml.scores for the model "llama", as SentencePiece defines them. Normal tokens have 0,
// -1, -2 and so on: first the tokens that merges make, in rank order, then the others (single characters).
// All other tokens have 0.
//   scores   [out] (tokenizer_n_ids)
// STATUS_INVALID: the tokenizer has no byte tokens.
enum status tokenizer_scores(const struct tokenizer *tokenizer, float *scores) MUST_CHECK;
// Returns the token that stands for characters without a token; -1: there is no such token.
int32_t tokenizer_unknown(const struct tokenizer *tokenizer);

// The end of an added token's entry in a tokenizer.json, after its id and content. %s is "true" if the token
// is special, else "false".
#define TOKENIZER_JSON_ADDED                                                                                 \
    ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":%s}"

#endif
