// Tokenizers convert text to token ids and back. There are four kinds:
// - "bytes": 256 ids, one per byte, and end-of-text;
// - byte-level byte-pair encoding (BPE) trained by tokenizer_train;
// - byte-level BPE of published models: GPT-2's, Llama 3's, Qwen's (2, 2.5, 3), SmolLM's (1, 2);
// - SentencePiece's BPE over characters, with tokens for single bytes: Llama 2's and TinyLlama's.
//
// Byte-level BPE (Sennrich et al., arXiv 1508.07909; GPT-2). A pattern (enum token_pattern) splits text into
// pre-tokens. In each pre-token, the adjacent pair of lowest rank is merged until no pair is left. Some
// file formats list the pairs in the order of their ranks. In formats without a list, any two tokens whose
// concatenation is a token are a pair, and the id of that token is its rank. A byte that is not valid UTF-8
// counts as a character that is neither letter, number nor space. Added tokens that are not special are
// found first, the longest at each place; the text between them is encoded as above. Encoding text never
// produces control tokens such as end-of-text. Uses utf8proc for Unicode.
#ifndef ZERO_DATA_TOKENIZER_TOKENIZER_H
#define ZERO_DATA_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "data/tokenizer/tokens.h"

// A growing list of token ids. Zero-initialize it.
struct token_list {
    int32_t *ids;
    size_t n, capacity;
};
void token_list_add(struct token_list *list, int32_t id);
// Makes room for `more` ids after the last one.
void token_list_reserve(struct token_list *list, size_t more);
void token_list_free(struct token_list *list);

struct tokenizer;

// Loads a tokenizer.
//   path   one of these, or a folder (the first file that tokenizer_next_file finds in it is loaded):
//          - "bytes"
//          - a tiktoken file (lines of base64 and rank): one written by tokenizer_save, GPT-2's, or one that
//            is recognized by its name or its number of ranks (Llama 3's tokenizer.model, qwen.tiktoken,
//            cl100k_base, o200k_base)
//          - GPT-2's vocab.bpe ("#version", then merges)
//          - a Hugging Face tokenizer.json of one of the kinds above
//          - a GGUF model with a tokenizer of one of the kinds above
// End-of-text of a tokenizer.json is its added token <|endoftext|>, <|end_of_text|> or </s>. Without these,
// it is the first token that ends generation, as named in tokenizer_config.json, generation_config.json or
// config.json beside it (for GGUF, in the file itself).
// STATUS_INVALID: the file is absent or malformed, or is of another kind. The message has the file, the line
// and what was expected.
enum status tokenizer_load(const char *path, struct tokenizer **out) MUST_CHECK;
// Iterates over the tokenizer files of a folder: tokenizer.json, vocab.bpe, tokenizer.tiktoken,
// qwen.tiktoken, tokenizer.model (if it is a tiktoken file), model.gguf (if it has a tokenizer), and last
// vocab.json. tokenizer_load refuses vocab.json, with the command to make a tokenizer.json from it.
//   next   0 for the first call; each call advances it
// Returns the path of the next file, to be freed; NULL at the end.
char *tokenizer_next_file(const char *folder, int *next);
void tokenizer_delete(struct tokenizer *tokenizer);
// True if the file starts like one that tokenizer_load reads. False if it cannot be read.
bool tokenizer_is_file(const char *path);

// Trains BPE on the text until there are vocab_size ids: 256 bytes, vocab_size - 257 merges, end-of-text.
// Merges do not cross document boundaries.
// Deterministic: merges the most frequent pair first; of equally frequent pairs, the smaller pair of ids.
// STATUS_INVALID: vocab_size is below 257 or above 65536, or the text has too few pairs (the message states
// how many ids the text allows).
//   starts   (n_starts) offsets of the documents in the text, ascending, below `bytes`. With n_starts 0,
//            the text is one document
enum status tokenizer_train(const char *text, size_t bytes, const size_t *starts, size_t n_starts,
                            int vocab_size, struct tokenizer **out) MUST_CHECK;
// Writes a file for tokenizer_load. tokenizer_file_name returns the name that it should have:
// "tokenizer.tiktoken" for tokenizers that work like GPT-2's, also for "bytes" (a list of 256 single
// bytes), else "tokenizer.json".
enum status tokenizer_save(const struct tokenizer *tokenizer, const char *path) MUST_CHECK;
const char *tokenizer_file_name(const struct tokenizer *tokenizer);

int tokenizer_n_ids(const struct tokenizer *tokenizer); // including control tokens; models may have more ids
const char *tokenizer_kind(const struct tokenizer *tokenizer); // "bytes" or "byte-pair"
struct token_rules tokenizer_rules(const struct tokenizer *tokenizer);
enum token_type tokenizer_type(const struct tokenizer *tokenizer, int32_t id);
// Returns the XXH3 of all tokens in id order and, unless the tokenizer works like GPT-2's, of its rules. It
// is equal for all file formats that give the same ids.
uint64_t tokenizer_checksum(const struct tokenizer *tokenizer);

// Returns the token that ends a document. Without bos, it also begins each document.
int32_t tokenizer_end_of_text(const struct tokenizer *tokenizer);
// True if generation stops at this id: end-of-text, or another end named by the files beside the tokenizer.
bool tokenizer_is_end(const struct tokenizer *tokenizer, int32_t id);
// Returns the number of ids that end generation.
//   ends   [out] the ids; the first is the eos_token that the tokenizer's files name, if any. In chat
//          models, it is not end-of-text
int tokenizer_ends(const struct tokenizer *tokenizer, int32_t ends[TOKENIZER_MOST_ENDS]);
// Returns the chat template that came with the tokenizer, as JSON: a string, or a list of objects with "name"
// and "template". NULL: none. This program does not use it, but writes it to checkpoints and exported models.
const char *tokenizer_chat_template(const struct tokenizer *tokenizer);
// Returns the token that begins documents and prompts: Llama's <|begin_of_text|> or <s>, else end-of-text.
int32_t tokenizer_document_start(const struct tokenizer *tokenizer);
// True if the tokenizer has a separate token (bos) that begins documents and prompts.
bool tokenizer_has_bos(const struct tokenizer *tokenizer);
// Appends the separator before a document, as in the model's own training: end-of-text, then bos if the
// tokenizer has one.
//   is_first   true: it is the first document: if the tokenizer has bos, append only bos
void tokenizer_add_separator(const struct tokenizer *tokenizer, bool is_first, struct token_list *list);
// Returns how many of the 256 bytes have no token (some in SmolLM's tokenizer). Encoding skips such bytes,
// or replaces them by the unknown token.
int tokenizer_n_lost_bytes(const struct tokenizer *tokenizer);
// Llama 2: true if encoding puts a space before a text (in some tokenizers, unless the text begins with a
// space). The first token's bytes then begin with a space that is not in the text.
bool tokenizer_adds_space(const struct tokenizer *tokenizer);

// Appends the ids of the text to the list. Uses parallel_threads() threads; the result does not depend on
// their number.
enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                             struct token_list *list) MUST_CHECK;
// Encodes the text that a model continues: bos first if the tokenizer has one; without text, the token that
// documents begin with.
//   list   [out] the ids, in place of its previous ones
// STATUS_INVALID: an id is outside the model's vocabulary of vocab_size.
enum status tokenizer_encode_prompt(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                                    int vocab_size, struct token_list *list) MUST_CHECK;
// Encodes many texts one after the other on the calling thread, with the same ids as tokenizer_encode.
// Keeps its cache of pre-tokens from one text to the next, so that many short texts are encoded as fast as
// one long text. Does not own the tokenizer.
struct token_encoder;
struct token_encoder *token_encoder_new(const struct tokenizer *tokenizer);
// Appends the ids of a text to the list.
//   begins   false: the text continues the previous one, at a boundary from tokenizer_next_boundary
enum status token_encoder_add(struct token_encoder *encoder, const char *text, size_t bytes, bool begins,
                              struct token_list *list) MUST_CHECK;
void token_encoder_delete(struct token_encoder *encoder); // NULL does nothing
// Returns the bytes of an id, not NUL-terminated; for a control token, its name. NULL if the id is out of
// range.
const char *tokenizer_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *n_bytes);
// Returns the bytes of text that an id stands for: none for a control token. At the start of a text or
// after a control token, the space that encoding puts there (tokenizer_adds_space) is left out. Metrics per
// byte or character of text count these bytes.
//   before    the id before it; negative: it is the first of a text
//   n_bytes   [out] their number
const char *tokenizer_shown_bytes(const struct tokenizer *tokenizer, int32_t before, int32_t id,
                                  size_t *n_bytes);
// Returns the id of the token with these bytes, or -1. A normal token comes first, then a control, unknown
// or user token, then a byte token (TOKEN_BYTE).
int32_t tokenizer_named(const struct tokenizer *tokenizer, const char *bytes, size_t n_bytes);
struct text;
// Appends the text of ids. A control token appends its name, but bos appends nothing.
void tokenizer_add_text(const struct tokenizer *tokenizer, const int32_t *ids, size_t n, struct text *out);
// Returns how many bytes of text the ids stand for: the sum of tokenizer_shown_bytes. All metrics per byte
// use this count.
//   before   the id before the first; negative: the ids begin a text
uint64_t tokenizer_text_bytes(const struct tokenizer *tokenizer, int32_t before, const int32_t *ids,
                              size_t n);

// The identity of a tokenizer, which token shards and checkpoints record. Ids of one tokenizer mean nothing
// to another, even if both have the same number of ids.
#define TOKENIZER_NAME_BYTES 64
#define TOKENIZER_MAX_IDS    (1 << 23) // maximum number of ids of a model, as sampling supports no more

struct tokenizer_identity {
    int32_t n_ids;                   // includes end-of-text; 0: unknown tokenizer (other programs' shards)
    int32_t document_start;          // tokenizer_document_start
    uint64_t checksum;               // tokenizer_checksum
    char name[TOKENIZER_NAME_BYTES]; // file name or "bytes", for messages; printable ASCII, may be truncated
};

// Returns the identity of a tokenizer.
//   path   as given to tokenizer_load; its last component becomes the name
struct tokenizer_identity tokenizer_identify(const struct tokenizer *tokenizer, const char *path);
// True if both identities are known (n_ids > 0) and differ in number of ids or checksum.
bool tokenizer_identity_differs(const struct tokenizer_identity *a, const struct tokenizer_identity *b);
// Formats "my.tiktoken (4096 ids, checksum 0123456789abcdef)". Returns `buffer`.
#define TOKENIZER_DESCRIPTION_BYTES (TOKENIZER_NAME_BYTES + 64)
const char *tokenizer_identity_describe(const struct tokenizer_identity *identity,
                                        char buffer[TOKENIZER_DESCRIPTION_BYTES]);

#endif
