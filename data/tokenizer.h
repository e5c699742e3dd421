// Tokenizers: text to token ids and back. There are three kinds:
// - "bytes": 256 ids, one per byte, and end-of-text;
// - byte-level byte-pair encoding (BPE) trained by tokenizer_train;
// - GPT-2's, which is BPE with its published ranks.
//
// Byte-level BPE (Sennrich et al., arXiv 1508.07909; GPT-2): text is split into pre-tokens by GPT-2's pattern
//   '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// In each pre-token, the adjacent pair of lowest rank is merged until no pair can be. A byte that is not
// valid UTF-8 counts as a character that is neither letter, number nor space. End-of-text is always the last
// id; encoding text never produces it. Relies on utf8proc for Unicode classes.
#ifndef ZERO_DATA_TOKENIZER_H
#define ZERO_DATA_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct tokenizer;

struct token_list {
    int32_t *ids;
    size_t n, capacity;
};
enum status token_list_add(struct token_list *list, int32_t id) MUST_CHECK;
void token_list_free(struct token_list *list);

// Loads a tokenizer.
//   path   "bytes"; a tiktoken file (lines of base64 and rank, as tokenizer_save writes); a vocab.bpe or
//          merges.txt file ("#version", then merges; with the ids of a vocab.json beside merges.txt, else
//          GPT-2's); a Hugging Face tokenizer.json or vocab.json (with merges.txt beside it) that works like
//          GPT-2's; llm.c's tokenizer file; or a folder with some of these, of which the first of
//          tokenizer_next_file counts
// STATUS_INVALID: the file is absent or malformed; the message has file, line and what was expected.
enum status tokenizer_load(const char *path, struct tokenizer **out) MUST_CHECK;
// Walks over the tokenizer files of a folder: tokenizer.json, vocab.json, vocab.bpe, merges.txt,
// tokenizer.tiktoken, gpt2_tokenizer.bin (llm.c's).
//   next   0 at first; advanced
//   path   [out] of the next one, to be freed; NULL when there is no other
enum status tokenizer_next_file(const char *folder, int *next, char **path) MUST_CHECK;
void tokenizer_delete(struct tokenizer *tokenizer);
// Whether the file begins like one that tokenizer_load reads. False when it cannot be read.
bool tokenizer_is_file(const char *path);

// Trains BPE on the text until there are vocab_size ids: 256 bytes, vocab_size - 257 merges, end-of-text.
// Deterministic: merges the most frequent pair first; of equally frequent pairs, the smaller pair of ids.
// STATUS_INVALID: vocab_size is below 257 or above 65536, or the text has too few pairs (the message has the
// number of ids that it allows).
enum status tokenizer_train(const char *text, size_t bytes, int vocab_size,
                            struct tokenizer **out) MUST_CHECK;
// Writes a tiktoken file for tokenizer_load. For "bytes", it holds the 256 single bytes.
enum status tokenizer_save(const struct tokenizer *tokenizer, const char *path) MUST_CHECK;

int tokenizer_n_ids(const struct tokenizer *tokenizer); // including end-of-text: the model's vocab_size
int32_t tokenizer_end_of_text(const struct tokenizer *tokenizer);
const char *tokenizer_kind(const struct tokenizer *tokenizer); // "bytes", "byte-pair"
// XXH3 of all tokens in the order of their ids. Equal for every file format that gives the same ids.
uint64_t tokenizer_checksum(const struct tokenizer *tokenizer);

// Appends the ids of the text to the list. Uses parallel_threads() threads; the result does not depend on
// their number.
enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                             struct token_list *list) MUST_CHECK;
// Encodes many texts one after the other, on the calling thread: appends the ids of each to a list, as
// tokenizer_encode does. Keeps a cache of words between the texts, which makes short ones as fast as long
// ones. Does not own the tokenizer.
struct token_encoder;
enum status token_encoder_new(const struct tokenizer *tokenizer, struct token_encoder **out) MUST_CHECK;
enum status token_encoder_add(struct token_encoder *encoder, const char *text, size_t bytes,
                              struct token_list *list) MUST_CHECK;
void token_encoder_delete(struct token_encoder *encoder); // NULL does nothing
// The bytes of an id, not NUL-terminated; "<|endoftext|>" for end-of-text. NULL when the id is out of range.
const char *tokenizer_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *n_bytes);

#endif
