// Token shards in llm.c's format: 256 little-endian int32 ([0] 20240520, [1] version 1, [2] token count),
// then uint16 tokens. Checked when opened, read by pread, written atomically. Tokens are not mapped: a file
// that is cut or fails while a run reads it is then an error of the read, not a SIGBUS.
#ifndef ZERO_DATA_SHARD_H
#define ZERO_DATA_SHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/status.h"

#define SHARD_MAGIC        20240520
#define SHARD_VERSION      1
#define SHARD_HEADER_BYTES 1024
#define SHARD_MAX_TOKENS   100000000 // what a writer starts a new shard at

struct shard {
    char *path;
    int descriptor; // -1: released; the next read opens the file again
    size_t n_tokens;
};

// STATUS_INVALID: absent, not a shard (says what the magic was), another version, shorter or longer than its
// header says (both sizes named).
enum status shard_open(struct shard *shard, const char *path) MUST_CHECK;
void shard_close(struct shard *shard);
// Reads tokens [first, first + n), which must be within n_tokens. STATUS_FAILED when the file no longer has
// them, another size, or cannot be read. Not for two threads at once.
enum status shard_read(struct shard *shard, size_t first, size_t n, uint16_t *tokens) MUST_CHECK;
// The same without recording a message, for reading ahead: false where shard_read would fail.
bool shard_try_read(struct shard *shard, size_t first, size_t n, uint16_t *tokens);
// Closes the file until the next read, for those who hold more shards than a process may have files open.
void shard_release(struct shard *shard);

// Writes tokens as they come. shard_writer_finish puts the count in the header and flushes the file under its
// temporary name; shard_writer_commit does that, unless it was done, and makes the file visible.
struct shard_writer {
    struct file_writer file;
    size_t n_tokens;
};
enum status shard_writer_open(struct shard_writer *writer, const char *path) MUST_CHECK;
void shard_writer_add(struct shard_writer *writer, const uint16_t *tokens, size_t n);
enum status shard_writer_finish(struct shard_writer *writer) MUST_CHECK;
enum status shard_writer_commit(struct shard_writer *writer) MUST_CHECK;
void shard_writer_discard(struct shard_writer *writer);

#endif
