// Token shards in llm.c's format: 256 little-endian int32 ([0] 20240520, [1] version 1, [2] token count),
// then uint16 tokens. Read by mmap and checked; written atomically.
#ifndef ZERO_DATA_SHARD_H
#define ZERO_DATA_SHARD_H

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
    struct file_map map;
    const uint16_t *tokens;
    size_t n_tokens;
};

// STATUS_INVALID: absent, not a shard (says what the magic was), another version, shorter or longer than its
// header says (both sizes named).
enum status shard_open(struct shard *shard, const char *path) MUST_CHECK;
void shard_close(struct shard *shard);

// Writes tokens as they come; shard_writer_commit puts the count in the header and makes the file visible.
struct shard_writer {
    struct file_writer file;
    size_t n_tokens;
};
enum status shard_writer_open(struct shard_writer *writer, const char *path) MUST_CHECK;
void shard_writer_add(struct shard_writer *writer, const uint16_t *tokens, size_t n);
enum status shard_writer_commit(struct shard_writer *writer) MUST_CHECK;
void shard_writer_discard(struct shard_writer *writer);

#endif
