// Token shards in llm.c's two formats: a header of 256 little-endian int32, then the tokens. Of GPT-2's, [0]
// is magic 20240520, [1] version 1, [2] the number of tokens, and tokens are uint16. Of Llama 3's, for
// vocabularies beyond 65,536 ids, magic 20240801, version 7, and tokens are uint32.
// In words that llm.c leaves zero and does not read, shards of this program carry the identity of their
// tokenizer: [3] magic 20261122, [4] number of ids, [5] and [6] checksum (low half first), [7] 1 + the id
// that begins a document, or 0 where that is the last id, [8..23] name, as text with a NUL. Shards are
// checked when opened, read with pread and written atomically. They are not memory-mapped, so a file that is
// truncated during a run gives a read error and not a SIGBUS.
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
#define SHARD_MOST_IDS_16     65536 // a larger vocabulary needs tokens of 4 bytes
#define SHARD_HEADER_BYTES    1024
#define SHARD_TOKENIZER_MAGIC 20261122
#define SHARD_MAX_TOKENS      100000000 // ./train tokenize then starts a new shard

struct shard {
    char *path;
    int descriptor;                      // -1: released; the next read reopens the file
    size_t token_bytes;                  // of a stored token: 2 or 4
    size_t first_token, n_tokens;        // the part of the file that is used; all of it after shard_open
    struct tokenizer_identity tokenizer; // n_ids 0: not recorded
};

// STATUS_INVALID: the file is absent, not a shard (the message has the magic number found), of another
// version, or not as long as its header says (the message has both sizes).
enum status shard_open(struct shard *shard, const char *path) MUST_CHECK;
void shard_close(struct shard *shard);
// Whether the file begins with a magic number of shards. False when it cannot be read.
bool shard_is_file(const char *path);
// Reads tokens [first, first + n) of the part, which must be within n_tokens. Stored ids of 2^31 and more,
// which no vocabulary has, become negative. Not thread-safe. STATUS_FAILED: the file changed size since it
// was opened, or cannot be read.
enum status shard_read(struct shard *shard, size_t first, size_t n, int32_t *tokens) MUST_CHECK;
// Like shard_read, but returns false instead of recording a failure. For prefetching.
bool shard_try_read(struct shard *shard, size_t first, size_t n, int32_t *tokens);
// Like shard_read, but the tokens as they are stored: n * token_bytes bytes.
enum status shard_read_stored(struct shard *shard, size_t first, size_t n, void *bytes) MUST_CHECK;
// Closes the file until the next read, to stay within the process's limit on open files.
void shard_release(struct shard *shard);

// Writes a shard atomically, as a file_writer. shard_writer_commit writes the token count into the header.
struct shard_writer {
    struct file_writer file;
    size_t n_tokens, token_bytes;
    struct tokenizer_identity tokenizer; // set it after shard_writer_open to have it recorded
};
//   token_bytes   of a stored token: 2 or 4
enum status shard_writer_open(struct shard_writer *writer, const char *path, size_t token_bytes) MUST_CHECK;
// Adds ids, which must fit into token_bytes.
void shard_writer_add(struct shard_writer *writer, const int32_t *tokens, size_t n);
enum status shard_writer_commit(struct shard_writer *writer) MUST_CHECK;
void shard_writer_discard(struct shard_writer *writer);

// Finds the tokenizer that the shard records: "bytes", or a file. Looks in the shard's folder, then where
// meta.json beside it says that it was. Only a file with the recorded checksum counts.
// Returns the path for tokenizer_load, to be freed; NULL when it is not found.
char *shard_find_tokenizer(const struct shard *shard);

#endif
