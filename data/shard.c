// llm.c's shards. The host is taken to be little-endian, as every machine this runs on is.
#include "data/shard.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shards are read as they lie in memory");

static enum status check_header(const struct shard *shard) {
    int32_t header[3];
    if (shard->map.bytes < SHARD_HEADER_BYTES)
        return FAIL(STATUS_INVALID,
                    "%s has %zu bytes, expected a token shard: a header of %d bytes, then tokens",
                    shard->path, shard->map.bytes, SHARD_HEADER_BYTES);
    memcpy(header, shard->map.data, sizeof header);
    if (header[0] != SHARD_MAGIC)
        return FAIL(STATUS_INVALID,
                    "%s is not a token shard: it starts with %d, expected %d; ./train tokenize makes "
                    "shards from text",
                    shard->path, header[0], SHARD_MAGIC);
    if (header[1] != SHARD_VERSION)
        return FAIL(STATUS_INVALID, "%s is a token shard of version %d, expected %d", shard->path, header[1],
                    SHARD_VERSION);
    size_t found = shard->map.bytes - SHARD_HEADER_BYTES;
    if (header[2] < 0 || found != (size_t)header[2] * sizeof(uint16_t))
        return FAIL(STATUS_INVALID,
                    "%s says that it holds %d tokens of 2 bytes, but %zu bytes follow its header: it is "
                    "truncated or damaged",
                    shard->path, header[2], found);
    return STATUS_OK;
}

enum status shard_open(struct shard *shard, const char *path) {
    *shard = (struct shard){.path = strdup(path)};
    if (!shard->path)
        return FAIL(STATUS_FAILED, "out of memory for the path %s", path);
    enum status status = file_map_open(&shard->map, path);
    if (status == STATUS_OK)
        status = check_header(shard);
    if (status != STATUS_OK) {
        shard_close(shard);
        return status;
    }
    shard->tokens = (const uint16_t *)(const void *)(shard->map.data + SHARD_HEADER_BYTES);
    shard->n_tokens = (shard->map.bytes - SHARD_HEADER_BYTES) / sizeof(uint16_t);
    return STATUS_OK;
}

void shard_close(struct shard *shard) {
    file_map_close(&shard->map);
    free(shard->path);
    *shard = (struct shard){0};
}

enum status shard_writer_open(struct shard_writer *writer, const char *path) {
    static const char header[SHARD_HEADER_BYTES];
    writer->n_tokens = 0;
    TRY(file_writer_open(&writer->file, path));
    file_write(&writer->file, header, sizeof header);
    return STATUS_OK;
}

void shard_writer_add(struct shard_writer *writer, const uint16_t *tokens, size_t n) {
    file_write(&writer->file, tokens, n * sizeof *tokens);
    writer->n_tokens += n;
}

enum status shard_writer_commit(struct shard_writer *writer) {
    const int32_t header[3] = {SHARD_MAGIC, SHARD_VERSION, (int32_t)writer->n_tokens};
    if (writer->n_tokens > INT32_MAX) {
        enum status status = FAIL(STATUS_INVALID,
                                  "%s would hold %zu tokens, more than its format can count; use smaller "
                                  "shards",
                                  writer->file.path, writer->n_tokens);
        shard_writer_discard(writer);
        return status;
    }
    if (!writer->file.error && fseek(writer->file.stream, 0, SEEK_SET) != 0)
        writer->file.error = errno;
    file_write(&writer->file, header, sizeof header);
    return file_commit(&writer->file);
}

void shard_writer_discard(struct shard_writer *writer) {
    file_discard(&writer->file);
}
