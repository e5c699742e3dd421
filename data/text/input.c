// Reads a file one block at a time. If the file is compressed, zlib or zstd decompresses it from the block.
#include "data/text/input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/alloc.h"
#include "base/file_kind.h"
#include "base/log.h"

#define BLOCK_BYTES ((size_t)1 << 18)

struct text_input {
    char *path;
    const char *name;
    int descriptor;
    char *block; // (BLOCK_BYTES) bytes of the file, as stored; those in [at, n) have not been used yet
    size_t at, n;
    bool at_end; // the file has been read to its end
    // (FILE_KIND_START_BYTES) the text's first start_n bytes, read when the file was opened.
    // text_input_read has not returned [start_at, start_n) yet.
    char *start;
    size_t start_at, start_n;
    size_t mark_bytes;   // length of the byte-order mark
    enum file_kind kind; // of the decompressed text
    uint64_t file_bytes; // bytes of the file, as stored, read so far
    XXH3_state_t *checksum;
    bool in_frame; // inside a gzip member or a zstd frame
    bool in_gzip;  // zlib's state is initialized
    z_stream gzip;
    ZSTD_DStream *zstd;
};

// ---- opening and reading the file

static enum status read_block(struct text_input *input) {
    input->at = input->n = 0;
    // A loop, because one read from a pipe may return fewer than FILE_KIND_START_BYTES bytes.
    while (!input->at_end && input->n < FILE_KIND_START_BYTES) {
        const ssize_t got = read(input->descriptor, input->block + input->n, BLOCK_BYTES - input->n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return FAIL(STATUS_FAILED, "cannot read %s: %s", input->name, strerror(errno));
        input->at_end = got == 0;
        input->n += (size_t)got;
    }
    input->file_bytes += input->n;
    XXH3_64bits_update(input->checksum, input->block, input->n);
    return STATUS_OK;
}

static enum status need_bytes(struct text_input *input) {
    return input->at == input->n ? read_block(input) : STATUS_OK;
}

static enum status open_file(struct text_input *input) {
    struct stat info;
    const bool is_stdin = strcmp(input->path, "-") == 0;
    input->name = is_stdin ? "standard input" : input->path;
    input->descriptor =
        is_stdin ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0) : open(input->path, O_RDONLY | O_CLOEXEC);
    if (input->descriptor < 0)
        return FAIL(STATUS_INVALID, "cannot open %s: %s", input->name, strerror(errno));
    if (fstat(input->descriptor, &info) != 0)
        return FAIL(STATUS_FAILED, "cannot stat %s: %s", input->name, strerror(errno));
    if (S_ISDIR(info.st_mode))
        return FAIL(STATUS_INVALID, "%s is a folder, expected a file", input->name);
    return STATUS_OK;
}

static enum status open_unpacker(struct text_input *input) {
    const enum file_kind kind = file_kind_of(input->block, input->n);
    if (kind == FILE_KIND_GZIP) {
        input->in_gzip = inflateInit2(&input->gzip, 16 + MAX_WBITS) == Z_OK; // 16: expect a gzip header
        return input->in_gzip ? STATUS_OK
                              : FAIL(STATUS_FAILED, "out of memory while unpacking %s", input->name);
    }
    if (kind == FILE_KIND_ZSTD) {
        input->zstd = ZSTD_createDStream();
        return input->zstd ? STATUS_OK : FAIL(STATUS_FAILED, "out of memory while unpacking %s", input->name);
    }
    return STATUS_OK;
}

static enum status read_text(struct text_input *input, char *out, size_t room, size_t *n);

static enum status check_kind(struct text_input *input) {
    enum status status = STATUS_OK;
    for (size_t n = 1; status == STATUS_OK && n > 0; input->start_n += n)
        status = read_text(input, input->start + input->start_n, FILE_KIND_START_BYTES - input->start_n, &n);
    TRY(status);
    input->kind = file_kind_of(input->start, input->start_n);
    input->start_at = input->mark_bytes = text_mark_bytes(input->start, input->start_n);
    return input->start_n == 0 || file_kind_is_text(input->kind)
               ? STATUS_OK
               : file_kind_refuse(input->kind, input->name, text_input_is_packed(input) ? ", unpacked" : "",
                                  "text, JSON Lines, or either packed with gzip or zstd");
}

enum status text_input_open(const char *path, struct text_input **out) {
    struct text_input *input = *out = allocate(1, sizeof *input);
    input->descriptor = -1;
    input->path = copy_string(path);
    input->block = allocate(BLOCK_BYTES, 1);
    input->start = allocate(FILE_KIND_START_BYTES, 1);
    input->checksum = XXH3_createState();
    enum status status =
        input->checksum ? open_file(input) : FAIL(STATUS_FAILED, "out of memory while reading %s", path);
    if (status == STATUS_OK)
        XXH3_64bits_reset(input->checksum);
    if (status == STATUS_OK)
        status = read_block(input);
    if (status == STATUS_OK)
        status = open_unpacker(input);
    if (status == STATUS_OK)
        status = check_kind(input);
    if (status != STATUS_OK) {
        text_input_close(input);
        *out = NULL;
    }
    return status;
}

void text_input_close(struct text_input *input) {
    if (!input)
        return;
    if (input->descriptor >= 0)
        close(input->descriptor);
    if (input->in_gzip)
        inflateEnd(&input->gzip);
    ZSTD_freeDStream(input->zstd);
    XXH3_freeState(input->checksum);
    free(input->start);
    free(input->block);
    free(input->path);
    free(input);
}

// ---- decompression

static enum status damaged(const struct text_input *input, const char *packing, const char *reason) {
    return FAIL(STATUS_INVALID,
                "%s: its %s data is damaged at or before byte %llu (%s); fetch or pack the file again",
                input->name, packing, (unsigned long long)(input->file_bytes - input->n + input->at), reason);
}

static enum status ends_early(const struct text_input *input, const char *packing) {
    return FAIL(STATUS_INVALID,
                "%s is truncated: it ends after %llu bytes in the middle of its %s data; fetch or pack the "
                "file again",
                input->name, (unsigned long long)input->file_bytes, packing);
}

// Skips zero bytes, which may pad a gzip member, and begins the next member.
//   at_end   [out] the file has no more members
static enum status next_member(struct text_input *input, bool *at_end) {
    for (;; input->at++) {
        TRY(need_bytes(input));
        *at_end = input->at == input->n;
        if (*at_end || input->block[input->at] != '\0')
            break;
    }
    if (*at_end)
        return STATUS_OK;
    if (inflateReset(&input->gzip) != Z_OK)
        return damaged(input, "gzip", "zlib cannot continue");
    input->in_frame = true;
    return STATUS_OK;
}

static enum status read_gzip(struct text_input *input, char *out, size_t room, size_t *n) {
    room = room < INT32_MAX ? room : INT32_MAX;
    for (bool at_end = false; *n == 0;) {
        if (!input->in_frame)
            TRY(next_member(input, &at_end));
        if (at_end)
            return STATUS_OK;
        TRY(need_bytes(input));
        if (input->at == input->n)
            return ends_early(input, "gzip");
        input->gzip.next_in = (unsigned char *)input->block + input->at;
        input->gzip.avail_in = (unsigned)(input->n - input->at);
        input->gzip.next_out = (unsigned char *)out;
        input->gzip.avail_out = (unsigned)room;
        const int result = inflate(&input->gzip, Z_NO_FLUSH);
        input->at = input->n - input->gzip.avail_in;
        *n = room - input->gzip.avail_out;
        if (result == Z_MEM_ERROR)
            return FAIL(STATUS_FAILED, "out of memory while unpacking %s", input->name);
        if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
            return damaged(input, "gzip", input->gzip.msg ? input->gzip.msg : "not valid gzip data");
        input->in_frame = result != Z_STREAM_END;
    }
    return STATUS_OK;
}

static enum status read_zstd(struct text_input *input, char *out, size_t room, size_t *n) {
    ZSTD_outBuffer to = {out, room, 0};
    while (to.pos == 0) {
        TRY(need_bytes(input));
        // At the end of the file, the decompressor may still hold text that did not fit into `out` before. So
        // it is also called there.
        const bool at_end = input->at == input->n;
        ZSTD_inBuffer from = {input->block + input->at, input->n - input->at, 0};
        if (at_end && !input->in_frame)
            break;
        const size_t result = ZSTD_decompressStream(input->zstd, &to, &from);
        input->at += from.pos;
        if (ZSTD_isError(result) && ZSTD_getErrorCode(result) == ZSTD_error_frameParameter_windowTooLarge)
            return FAIL(
                STATUS_INVALID,
                "%s was packed with a zstd window of more than 128 MiB; unpack it first: unzstd --long=31 %s",
                input->name, input->path);
        if (ZSTD_isError(result))
            return damaged(input, "zstd", ZSTD_getErrorName(result));
        input->in_frame = result != 0;
        if (at_end && to.pos == 0 && input->in_frame)
            return ends_early(input, "zstd");
    }
    *n = to.pos;
    return STATUS_OK;
}

static enum status read_plain(struct text_input *input, char *out, size_t room, size_t *n) {
    TRY(need_bytes(input));
    *n = input->n - input->at < room ? input->n - input->at : room;
    memcpy(out, input->block + input->at, *n);
    input->at += *n;
    return STATUS_OK;
}

static enum status read_text(struct text_input *input, char *out, size_t room, size_t *n) {
    *n = 0;
    return room == 0             ? STATUS_OK
           : input->in_gzip      ? read_gzip(input, out, room, n)
           : input->zstd != NULL ? read_zstd(input, out, room, n)
                                 : read_plain(input, out, room, n);
}

enum status text_input_read(struct text_input *input, char *out, size_t room, size_t *n) {
    const size_t left = input->start_n - input->start_at;
    if (left == 0)
        return read_text(input, out, room, n);
    *n = left < room ? left : room;
    memcpy(out, input->start + input->start_at, *n);
    input->start_at += *n;
    return STATUS_OK;
}

enum status text_input_read_all(const char *path, struct text *out) {
    struct text_input *input;
    TRY(text_input_open(path, &input));
    char *block = allocate(BLOCK_BYTES, 1);
    enum status status = input->kind == FILE_KIND_TEXT_UTF_16
                             ? file_kind_refuse(input->kind, input->name, "", "UTF-8")
                             : STATUS_OK;
    if (input->kind == FILE_KIND_TEXT_8_BIT)
        log_warning("%s is not UTF-8; its bytes are taken as they are", input->name);
    for (size_t n = 1; status == STATUS_OK && n > 0;) {
        status = text_input_read(input, block, BLOCK_BYTES, &n);
        text_add_bytes(out, block, status == STATUS_OK ? n : 0);
    }
    free(block);
    text_input_close(input);
    return status;
}

bool text_input_is_packed(const struct text_input *input) {
    return input->in_gzip || input->zstd;
}

size_t text_input_mark_bytes(const struct text_input *input) {
    return input->mark_bytes;
}

const char *text_input_name(const struct text_input *input) {
    return input->name;
}

uint64_t text_input_file_bytes(const struct text_input *input) {
    return input->file_bytes;
}

uint64_t text_input_checksum(const struct text_input *input) {
    return XXH3_64bits_digest(input->checksum);
}
