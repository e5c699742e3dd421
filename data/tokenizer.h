// Text to token ids and back. Three kinds: bytes (256 ids and end-of-text); byte-pair encoding trained here;
// GPT-2's (the same encoding with its published ranks). Relies on utf8proc for the Unicode classes of GPT-2's
// pattern.
//
// Byte-pair encoding (Sennrich et al., arXiv 1508.07909; byte level as in GPT-2): text is split by
// '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ and within each piece the adjacent
// pair of lowest rank is merged until none is left. Bytes that are not UTF-8 are taken one by one as neither
// letter, number nor space. The end-of-text token is always the last id; encoding never produces it from
// text.
#ifndef ZERO_DATA_TOKENIZER_H
#define ZERO_DATA_TOKENIZER_H

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

// path: "bytes"; a tiktoken file (lines of base64 and rank; what tokenizer_save writes); or a vocab.bpe
// ("#version" and merges). STATUS_INVALID names file, line and what was expected.
enum status tokenizer_load(const char *path, struct tokenizer **out) MUST_CHECK;
void tokenizer_delete(struct tokenizer *tokenizer);

// Trains on the text until there are vocab_size ids (256 bytes, vocab_size - 257 merges, end-of-text).
// Deterministic: the most frequent pair first, ties to the smaller pair of ids. STATUS_INVALID when
// vocab_size < 257 or > 65536, or when the text runs out of pairs (says how many ids it allows).
enum status tokenizer_train(const char *text, size_t bytes, int vocab_size,
                            struct tokenizer **out) MUST_CHECK;
// Writes the tiktoken format, which tokenizer_load reads. The bytes tokenizer writes its 256 single bytes.
enum status tokenizer_save(const struct tokenizer *tokenizer, const char *path) MUST_CHECK;

int tokenizer_n_ids(const struct tokenizer *tokenizer); // end-of-text included: the model's vocab_size
int32_t tokenizer_end_of_text(const struct tokenizer *tokenizer);
const char *tokenizer_kind(const struct tokenizer *tokenizer); // "bytes", "byte-pair"

// Adds the text's ids to the list.
enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                             struct token_list *list) MUST_CHECK;
// The bytes of one id (not NUL-terminated); end-of-text gives "<|endoftext|>". NULL for an id out of range.
const char *tokenizer_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *n_bytes);

#endif
