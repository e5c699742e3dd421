// Token shards. Requires a little-endian host, so that tokens can be read without conversion.
#include "data/shard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file_kind.h"
#include "base/json.h"
#include "base/text.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shards are read without byte swapping");

static enum status read_failed(const struct shard *shard, int error) {
    if (error == FILE_READ_SHORT)
        return FAIL(STATUS_FAILED, "%s was truncated while in use; restore the file and start again",
                    shard->path);
    return FAIL(STATUS_FAILED, "cannot read %s: %s", shard->path, strerror(error));
}

// Indices of the words (int32) of the header.
enum {
    WORD_MAGIC,
    WORD_VERSION,
    WORD_TOKENS,
    WORD_TOKENIZER_MAGIC,
    WORD_TOKENIZER_IDS,
    WORD_TOKENIZER_CHECKSUM,  // 2 words
    WORD_TOKENIZER_START = 7, // 1 + the id that begins a document; 0: the last id
    WORD_TOKENIZER_NAME = 8,  // TOKENIZER_NAME_BYTES bytes
    N_WORDS = WORD_TOKENIZER_NAME + TOKENIZER_NAME_BYTES / 4
};

// Reads the tokenizer's identity from the header. Leaves *tokenizer unchanged if the words have values that
// shard_writer_commit does not write: other programs may use these words.
static void read_tokenizer(const int32_t header[N_WORDS], struct tokenizer_identity *tokenizer) {
    const int32_t n_ids = header[WORD_TOKENIZER_IDS], start = header[WORD_TOKENIZER_START];
    if (header[WORD_TOKENIZER_MAGIC] != SHARD_TOKENIZER_MAGIC || n_ids <= 0 || n_ids > TOKENIZER_MAX_IDS ||
        start < 0 || start > n_ids)
        return;
    struct tokenizer_identity found = {.n_ids = n_ids, .document_start = (start > 0 ? start : n_ids) - 1};
    memcpy(&found.checksum, &header[WORD_TOKENIZER_CHECKSUM], sizeof found.checksum);
    memcpy(found.name, &header[WORD_TOKENIZER_NAME], sizeof found.name);
    bool is_text = found.name[sizeof found.name - 1] == '\0';
    for (const char *c = found.name; is_text && *c; c++)
        is_text = *c >= ' ' && *c <= '~';
    if (is_text)
        *tokenizer = found;
}

// Records the failure for a file that is not a shard. If the file's kind is known, the message names it;
// otherwise it describes the expected header. For a file of even size, it also says how to convert 2-byte
// tokens without a header.
//   start   (n) the file's first bytes
//   bytes   size of the file
static enum status refuse_start(const struct shard *shard, const char *start, size_t n, size_t bytes) {
    char size[32], more[48];
    const enum file_kind kind = file_kind_of(start, n);
    int32_t magic = 0;
    memcpy(&magic, start, n < sizeof magic ? n : sizeof magic);
    snprintf(more, sizeof more, " (%s)", text_bytes(size, sizeof size, (double)bytes));
    if (kind != FILE_KIND_UNKNOWN && kind != FILE_KIND_SHARD)
        return file_kind_refuse(kind, shard->path, more, "a token shard");
    if (bytes < SHARD_HEADER_BYTES)
        return FAIL(STATUS_INVALID,
                    "%s has %zu bytes, expected a token shard: a header of %d bytes, then tokens",
                    shard->path, bytes, SHARD_HEADER_BYTES);
    if (bytes % sizeof(uint16_t) != 0)
        return FAIL(
            STATUS_INVALID,
            "%s is not a token shard: it starts with the number %d, expected %d. Make shards from text with "
            "./train tokenize",
            shard->path, magic, SHARD_MAGIC);
    return FAIL(
        STATUS_INVALID,
        "%s is not a token shard: it starts with the number %d, expected %d. Make shards from text with "
        "./train tokenize; if it holds 2-byte tokens without a header, as nanoGPT's .bin files do, convert "
        "it with ./train tokenize --raw %s --out DIR",
        shard->path, magic, SHARD_MAGIC, shard->path);
}

static bool is_magic(int32_t magic) {
    return magic == SHARD_MAGIC || magic == SHARD_MAGIC_32;
}

// Reads the first N_WORDS words of the header. STATUS_INVALID: the file does not start with a header.
static enum status read_header(const struct shard *shard, size_t bytes, int32_t header[N_WORDS]) {
    char start[FILE_KIND_START_BYTES];
    const size_t n = bytes < sizeof start ? bytes : sizeof start;
    if (bytes == 0)
        return FAIL(
            STATUS_INVALID,
            "%s is empty (0 bytes), expected a token shard of at least %d bytes; create it again, for "
            "example with ./train tokenize",
            shard->path, SHARD_HEADER_BYTES);
    int error = file_read_at(shard->descriptor, 0, n, start);
    if (error)
        return read_failed(shard, error);
    memcpy(header, start, n < N_WORDS * sizeof *header ? n : N_WORDS * sizeof *header);
    return bytes >= SHARD_HEADER_BYTES && is_magic(header[WORD_MAGIC]) ? STATUS_OK
                                                                       : refuse_start(shard, start, n, bytes);
}

static enum status check_header(struct shard *shard, size_t bytes) {
    int32_t header[N_WORDS] = {0};
    TRY(read_header(shard, bytes, header));
    const bool is_32 = header[WORD_MAGIC] == SHARD_MAGIC_32;
    const int32_t version = is_32 ? SHARD_VERSION_32 : SHARD_VERSION;
    shard->token_bytes = is_32 ? sizeof(uint32_t) : sizeof(uint16_t);
    if (header[WORD_VERSION] != version)
        return FAIL(STATUS_INVALID,
                    "%s is a token shard with ids of %zu bytes and version %d, expected version %d",
                    shard->path, shard->token_bytes, header[WORD_VERSION], version);
    const int64_t found = (int64_t)(bytes - SHARD_HEADER_BYTES),
                  expected = (int64_t)header[WORD_TOKENS] * (int64_t)shard->token_bytes;
    if (header[WORD_TOKENS] < 0 || found != expected)
        return FAIL(STATUS_INVALID,
                    "%s should hold %d tokens of %zu bytes, but %lld bytes follow its header: it is %s",
                    shard->path, header[WORD_TOKENS], shard->token_bytes, (long long)found,
                    header[WORD_TOKENS] < 0 ? "damaged"
                    : found < expected      ? "truncated or damaged"
                                            : "too long: something was appended, or the header is damaged");
    shard->n_tokens = (size_t)found / shard->token_bytes;
    read_tokenizer(header, &shard->tokenizer);
    return STATUS_OK;
}

enum status shard_open(struct shard *shard, const char *path) {
    struct stat info;
    *shard = (struct shard){.path = copy_string(path), .descriptor = -1};
    enum status status = file_open_regular(path, O_RDONLY, &shard->descriptor);
    if (status == STATUS_OK && fstat(shard->descriptor, &info) != 0)
        status = FAIL(STATUS_FAILED, "cannot stat %s: %s", path, strerror(errno));
    if (status == STATUS_OK)
        status = check_header(shard, (size_t)info.st_size);
    if (status != STATUS_OK)
        shard_close(shard);
    return status;
}

bool shard_is_file(const char *path) {
    int32_t magic = 0;
    struct shard shard = {.descriptor = -1};
    if (file_open_regular(path, O_RDONLY, &shard.descriptor) != STATUS_OK) {
        status_clear();
        return false;
    }
    bool is_shard = file_read_at(shard.descriptor, 0, sizeof magic, &magic) == 0 && is_magic(magic);
    close(shard.descriptor);
    return is_shard;
}

// Reopens a released file. Another file may have replaced it, so checks that it is long enough for the range
// in use. Returns 0, an errno, or FILE_READ_SHORT if it is too short.
static int open_again(struct shard *shard) {
    struct stat info;
    shard->descriptor = open(shard->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (shard->descriptor < 0)
        return errno;
    if (fstat(shard->descriptor, &info) != 0)
        return errno;
    size_t expected = SHARD_HEADER_BYTES + (shard->first_token + shard->n_tokens) * shard->token_bytes;
    return S_ISREG(info.st_mode) && (size_t)info.st_size >= expected ? 0 : FILE_READ_SHORT;
}

static int read_stored(struct shard *shard, size_t first, size_t n, void *bytes) {
    const int error = shard->descriptor < 0 ? open_again(shard) : 0;
    return error ? error
                 : file_read_at(shard->descriptor,
                                SHARD_HEADER_BYTES + (shard->first_token + first) * shard->token_bytes,
                                n * shard->token_bytes, bytes);
}

// Reads tokens as int32. Tokens of 2 bytes are first read into the second half of `tokens`. A loop then
// upcasts them from first to last, and so reads each token before it overwrites the token's bytes.
static int read_tokens(struct shard *shard, size_t first, size_t n, int32_t *tokens) {
    if (shard->token_bytes == sizeof *tokens)
        return read_stored(shard, first, n, tokens);
    char *stored = (char *)tokens + n * sizeof(uint16_t);
    const int error = read_stored(shard, first, n, stored);
    for (size_t i = 0; i < n && !error; i++) {
        uint16_t token;
        memcpy(&token, stored + i * sizeof token, sizeof token);
        tokens[i] = token;
    }
    return error;
}

bool shard_try_read(struct shard *shard, size_t first, size_t n, int32_t *tokens) {
    return read_tokens(shard, first, n, tokens) == 0;
}

enum status shard_read(struct shard *shard, size_t first, size_t n, int32_t *tokens) {
    const int error = read_tokens(shard, first, n, tokens);
    return error ? read_failed(shard, error) : STATUS_OK;
}

enum status shard_read_stored(struct shard *shard, size_t first, size_t n, void *bytes) {
    const int error = read_stored(shard, first, n, bytes);
    return error ? read_failed(shard, error) : STATUS_OK;
}

void shard_release(struct shard *shard) {
    if (shard->descriptor >= 0)
        close(shard->descriptor);
    shard->descriptor = -1;
}

void shard_close(struct shard *shard) {
    if (shard->path) // a zero-initialized shard has no file, although its descriptor is 0
        shard_release(shard);
    free(shard->path);
    *shard = (struct shard){.descriptor = -1};
}

enum status shard_writer_open(struct shard_writer *writer, const char *path, size_t token_bytes) {
    static const char header[SHARD_HEADER_BYTES];
    writer->n_tokens = 0;
    writer->token_bytes = token_bytes;
    writer->tokenizer = (struct tokenizer_identity){0};
    TRY(file_writer_open(&writer->file, path));
    file_write(&writer->file, header, sizeof header);
    return STATUS_OK;
}

static void add_downcast(struct shard_writer *writer, const int32_t *tokens, size_t n) {
    uint16_t stored[4096];
    for (size_t i = 0, now; i < n; i += now) {
        now = n - i < sizeof stored / sizeof *stored ? n - i : sizeof stored / sizeof *stored;
        for (size_t k = 0; k < now; k++)
            stored[k] = (uint16_t)tokens[i + k];
        file_write(&writer->file, stored, now * sizeof *stored);
    }
}

void shard_writer_add(struct shard_writer *writer, const int32_t *tokens, size_t n) {
    if (writer->token_bytes == sizeof *tokens)
        file_write(&writer->file, tokens, n * sizeof *tokens);
    else
        add_downcast(writer, tokens, n);
    writer->n_tokens += n;
}

enum status shard_writer_commit(struct shard_writer *writer) {
    const bool is_32 = writer->token_bytes == sizeof(uint32_t);
    int32_t header[N_WORDS] = {is_32 ? SHARD_MAGIC_32 : SHARD_MAGIC, is_32 ? SHARD_VERSION_32 : SHARD_VERSION,
                               (int32_t)writer->n_tokens};
    const struct tokenizer_identity *tokenizer = &writer->tokenizer;
    if (tokenizer->n_ids > 0) {
        header[WORD_TOKENIZER_MAGIC] = SHARD_TOKENIZER_MAGIC;
        header[WORD_TOKENIZER_IDS] = tokenizer->n_ids;
        if (tokenizer->document_start != tokenizer->n_ids - 1)
            header[WORD_TOKENIZER_START] = tokenizer->document_start + 1;
        memcpy(&header[WORD_TOKENIZER_CHECKSUM], &tokenizer->checksum, sizeof tokenizer->checksum);
        memcpy(&header[WORD_TOKENIZER_NAME], tokenizer->name, sizeof tokenizer->name);
    }
    if (writer->n_tokens > INT32_MAX) {
        enum status status = FAIL(
            STATUS_INVALID, "%s would hold %zu tokens, more than its format can count; use smaller shards",
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

// ---- meta.json: ./train tokenize writes it beside its shards, and records in it how they were made

// True if the tokenizer at `path` is the expected one. False if it cannot be read.
static bool is_tokenizer(const char *path, const struct tokenizer_identity *expected) {
    struct tokenizer *tokenizer = NULL;
    if (strcmp(path, "bytes") != 0 && !file_exists(path))
        return false;
    bool is_same = tokenizer_load(path, &tokenizer) == STATUS_OK;
    if (is_same) {
        const struct tokenizer_identity found = tokenizer_identify(tokenizer, path);
        is_same = found.n_ids == expected->n_ids && found.checksum == expected->checksum;
    } else
        status_clear();
    tokenizer_delete(tokenizer);
    return is_same;
}

// Returns a string member of meta.json, or "" if it is absent.
static const char *meta_string(const cJSON *meta, const char *key) {
    const char *value = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(meta, key));
    return value ? value : "";
}

char *shard_find_tokenizer(const struct shard *shard) {
    const char *slash = strrchr(shard->path, '/'), *name = shard->tokenizer.name;
    const int folder = slash ? (int)(slash - shard->path) + 1 : 0;
    char *meta_path = file_path("%.*smeta.json", folder, shard->path),
         *beside = file_path("%.*s%s", folder, shard->path, name), *path = NULL;
    cJSON *meta = NULL;
    if (file_exists(meta_path) && json_read_file(meta_path, &meta) != STATUS_OK)
        status_clear();
    const char *const candidates[] = {strcmp(name, "bytes") == 0 ? "bytes" : beside,
                                      meta_string(meta, "tokenizer"), meta_string(meta, "tokenizer_path")};
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates && shard->tokenizer.n_ids > 0 && !path; i++)
        if (is_tokenizer(candidates[i], &shard->tokenizer))
            path = copy_string(candidates[i]);
    cJSON_Delete(meta);
    free(beside);
    free(meta_path);
    return path;
}
