// Token shards in llm.c's two formats: a header of 256 little-endian int32, then the tokens.
// - GPT-2's: word [0] is magic 20240520, [1] version 1, [2] the number of tokens; tokens are uint16.
// - Llama 3's, for vocabularies beyond 65,536 ids: magic 20240801, version 7; tokens are uint32.
// This program also records the tokenizer's identity, in words that llm.c leaves zero and does not read: [3]
// magic 20261122, [4] number of ids, [5] and [6] checksum (low half first), [7] 1 + the id that begins a
// document (0: the last id), [8..23] name, NUL-terminated.
// Shards are checked when opened, read with pread and written atomically. They are not memory-mapped, so that
// a file truncated during a run causes a read error instead of a SIGBUS.
#ifndef ZERO_DATA_SHARD_H
#define ZERO_DATA_SHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/status.h"
#include "data/tokenizer/tokenizer.h"

#define SHARD_MAGIC           20240520
#define SHARD_VERSION         1
#define SHARD_MAGIC_32        20240801
#define SHARD_VERSION_32      7
#define SHARD_MOST_IDS_16     65536 // larger vocabularies need 4-byte tokens
#define SHARD_HEADER_BYTES    1024
#define SHARD_TOKENIZER_MAGIC 20261122
#define SHARD_MAX_TOKENS      100000000 // maximum tokens per shard that ./train tokenize writes

struct shard {
    char *path;
    int descriptor;                      // -1: closed by shard_release; the next read reopens the file
    size_t token_bytes;                  // bytes per stored token: 2 or 4
    size_t first_token, n_tokens;        // the range in use; after shard_open, the whole file
    struct tokenizer_identity tokenizer; // as the file records it; n_ids 0: the file records none
};

// Opens a shard and checks its header. STATUS_INVALID: the file is absent, is not a shard (the message has
// the magic number found), has another version, or has another length than its header says (the message has
// both lengths).
enum status shard_open(struct shard *shard, const char *path) MUST_CHECK;
void shard_close(struct shard *shard);
// True if the file begins with a shard's magic number. False if it cannot be read.
bool shard_is_file(const char *path);
// Reads tokens [first, first + n) of the range in use; they must be within n_tokens. Stored ids of 2^31 and
// more, which no vocabulary has, become negative. Not thread-safe. STATUS_FAILED: the file has become
// shorter since it was opened, or it cannot be read.
enum status shard_read(struct shard *shard, size_t first, size_t n, int32_t *tokens) MUST_CHECK;
// Like shard_read, but returns false instead of recording a failure. For prefetching.
bool shard_try_read(struct shard *shard, size_t first, size_t n, int32_t *tokens);
// Like shard_read, but copies the tokens as stored: n * token_bytes bytes.
enum status shard_read_stored(struct shard *shard, size_t first, size_t n, void *bytes) MUST_CHECK;
// Closes the file until the next read, to stay within the process's limit on open files.
void shard_release(struct shard *shard);

// Writes a shard atomically: the file appears when shard_writer_commit has written the header, which
// contains the number of tokens.
struct shard_writer {
    struct file_writer file;
    size_t n_tokens, token_bytes;
    struct tokenizer_identity tokenizer; // recorded in the header if set after shard_writer_open
};
// Starts to write a shard. End with shard_writer_commit or shard_writer_discard.
//   token_bytes   bytes per stored token: 2 or 4
enum status shard_writer_open(struct shard_writer *writer, const char *path, size_t token_bytes) MUST_CHECK;
// Appends n token ids, which must fit into token_bytes.
void shard_writer_add(struct shard_writer *writer, const int32_t *tokens, size_t n);
enum status shard_writer_commit(struct shard_writer *writer) MUST_CHECK;
void shard_writer_discard(struct shard_writer *writer);

// Finds the tokenizer that the shard records: "bytes", or a file. Looks in the shard's folder for a file
// with the recorded name, then at the paths in the folder's meta.json. Only a tokenizer with the recorded
// checksum and number of ids counts. Returns the path for tokenizer_load, to be freed; NULL if there is none.
char *shard_find_tokenizer(const struct shard *shard);

#endif
