// Writes a tokenizer in the formats of other programs: Hugging Face's, and the keys that GGUF needs.
//
// Merges. This program's files and tiktoken's list tokens in rank order, without merges: any two adjacent
// tokens whose concatenation is a token are merged, the lowest rank first. For tokenizers like GPT-2's,
// programs with a list of merges use one pair per token. Both give the same ids if the merges of lower rank
// reduce the token's bytes to exactly that pair. This holds for every trained byte-pair encoding.
#ifndef ZERO_DATA_TOKENIZER_EXPORT_H
#define ZERO_DATA_TOKENIZER_EXPORT_H

#include "base/gguf.h"
#include "base/text.h"
#include "data/tokenizer/tokenizer.h"

// Returns the merges in rank order:
// - those of the file that the tokenizer was read from, if it lists merges
// - without a list: one per token of more than one byte if it works like GPT-2's; all pairs for Llama 3's and
//   Qwen's tiktoken files
// The caller frees merges (n).
// STATUS_INVALID, for tokenizers like GPT-2's: a token is not made by a merge of two tokens of lower rank, so
// the file is not a trained byte-pair encoding. Or a token is the text "<|endoftext|>", which those formats
// cannot tell from the marker.
enum status tokenizer_derive_merges(const struct tokenizer *tokenizer, struct token_merge **merges,
                                    int *n) MUST_CHECK;
// Appends a token in the spelling of tokenizer.json and GGUF, as UTF-8:
// - byte-level: in GPT-2's alphabet, "Ġthe" for " the"
// - Llama 2: "▁the", and "<0x0A>" for byte tokens
// - control tokens: their names
void tokenizer_add_spelling(const struct tokenizer *tokenizer, int32_t id, struct text *out);
// Appends a merge: two spellings with a blank between.
void tokenizer_add_merge(const struct tokenizer *tokenizer, const struct token_merge *merge,
                         struct text *out);

// Appends the tokenizer.json: the file that the tokenizer was read from, byte for byte, or a new one.
enum status tokenizer_add_json(const struct tokenizer *tokenizer, struct text *out) MUST_CHECK;
// Writes tokenizer.json. If tokenizer_has_vocab_files, also writes vocab.json and merges.txt, as transformers
// does for GPT-2.
enum status tokenizer_save_huggingface(const struct tokenizer *tokenizer, const char *folder) MUST_CHECK;
bool tokenizer_has_vocab_files(const struct tokenizer *tokenizer);
// Append tokenizer_config.json and special_tokens_map.json for transformers.
//   model_type, n_positions   of the model's config.json
void tokenizer_add_config(const struct tokenizer *tokenizer, const char *model_type, int n_positions,
                          struct text *out);
void tokenizer_add_special_map(const struct tokenizer *tokenizer, struct text *out);

// A tokenizer.json does not say which tokens end generation: tokenizer_load reads that from this file beside
// it. Required unless the tokenizer works like GPT-2's.
#define TOKENIZER_ENDS_NAME "generation_config.json"
// A tokenizer.json has no chat template either: tokenizer_load reads it from this file.
#define TOKENIZER_SETTINGS_NAME "tokenizer_config.json"
bool tokenizer_needs_ends(const struct tokenizer *tokenizer);
// Appends the value of "eos_token_id": end-of-text, or a list with the other ends: "128001", "[128001,
// 128009]".
void tokenizer_add_ends(const struct tokenizer *tokenizer, struct text *out);

// GGUF's type for an id without a token; enum token_type has the others.
#define TOKEN_UNUSED 5
// Return GGUF's tokenizer.ggml.model, "gpt2" or "llama", and .pre, which names the pattern. GGUF has no name
// for OpenAI's patterns; their own names are used.
const char *tokenizer_gguf_model(const struct tokenizer *tokenizer);
const char *tokenizer_gguf_pre(const struct tokenizer *tokenizer);
// Keys for rules that differ from what the pattern's name implies. llama.cpp does not read them.
#define GGUF_NFC           "zero.tokenizer.nfc"
#define GGUF_IGNORE_MERGES "zero.tokenizer.ignore_merges"
// Adds these keys, and warns if llama.cpp gives other ids to some texts. It does not normalize, finds tokens
// that no merge makes (or only by the pattern's rule), and for "llama" merges any two tokens that form a
// third.
void tokenizer_add_gguf_rules(const struct tokenizer *tokenizer, struct gguf_keys *keys);
#define GGUF_CHAT_TEMPLATE "tokenizer.chat_template"
// Returns tokenizer.ggml.scores for the model "llama", as SentencePiece defines them: minus the rank of the
// merge that makes the token, then single characters; 0 for all other tokens.
//   scores   [out] (tokenizer_n_ids)
// STATUS_INVALID: the tokenizer has no byte tokens.
enum status tokenizer_scores(const struct tokenizer *tokenizer, float *scores) MUST_CHECK;
// Returns the token for characters that have none; -1: there is no such token.
int32_t tokenizer_unknown(const struct tokenizer *tokenizer);

// The end of an added token's entry in a tokenizer.json, after its id and content. %s: whether it is special.
#define TOKENIZER_JSON_ADDED                                                                                 \
    ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":%s}"

#endif
