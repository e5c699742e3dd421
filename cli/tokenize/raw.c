// See cli/tokenize/raw.h.
#include "cli/tokenize/raw.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/tokenize/meta.h"
#include "cli/tokenize/texts.h"
#include "data/file_kind.h"

struct raw {
    const struct tokenizer *tokenizer; // NULL: not known
    const char *tokenizer_path;
    size_t token_bytes; // 2 or 4
};

// Ids of 4 bytes without a tokenizer must be some that a model can have: other files then fail early.
static enum status check_ids(const struct raw *raw, const char *path, const int32_t *tokens, size_t n,
                             uint64_t first) {
    const uint32_t n_ids = (uint32_t)(raw->tokenizer ? tokenizer_n_ids(raw->tokenizer) : TOKENIZER_MAX_IDS);
    for (size_t i = 0; i < n; i++)
        if ((uint32_t)tokens[i] >= n_ids)
            return FAIL(STATUS_INVALID, "%s: token %llu is %u, but %s has the ids 0 to %u: it is %s", path,
                        (unsigned long long)(first + i), (unsigned)tokens[i],
                        raw->tokenizer ? raw->tokenizer_path : "the largest vocabulary", (unsigned)n_ids - 1,
                        raw->tokenizer ? "another tokenizer's" : "no file of ids of this --dtype");
    return STATUS_OK;
}

static size_t read_ids(const struct raw *raw, const char *bytes, size_t n, int32_t *ids) {
    for (size_t i = 0; i < n / raw->token_bytes; i++) {
        uint32_t id = 0; // little-endian
        memcpy(&id, bytes + i * raw->token_bytes, raw->token_bytes);
        ids[i] = (int32_t)id;
    }
    return n / raw->token_bytes;
}

// Ids have no header: any file of an even size could be some.
static enum status refuse_other_kinds(const struct raw *raw, const char *path, const char *start, size_t n) {
    const enum file_kind kind = file_kind_of(start, n);
    if (kind == FILE_KIND_SHARD)
        return FAIL(STATUS_INVALID, "%s has a header already: it is a token shard and needs no --raw", path);
    return kind == FILE_KIND_UNKNOWN
               ? STATUS_OK
               : file_kind_refuse(kind, path, "",
                                  raw->token_bytes == 2 ? "token ids of 2 bytes without a header"
                                                        : "token ids of 4 bytes without a header");
}

static enum status add_stream(const struct raw *raw, struct split_writer *split, const char *path,
                              FILE *stream, struct source_counts *counts) {
    char bytes[8192];
    int32_t ids[sizeof bytes / 2];
    size_t n;
    while ((n = fread(bytes, 1, sizeof bytes, stream)) > 0) {
        if (counts->tokens == 0)
            TRY(refuse_other_kinds(raw, path, bytes, n));
        if (n % raw->token_bytes != 0)
            return FAIL(STATUS_INVALID,
                        "%s has %llu bytes, which is no multiple of %zu: expected tokens of %zu bytes", path,
                        (unsigned long long)(counts->bytes + n), raw->token_bytes, raw->token_bytes);
        const size_t n_ids = read_ids(raw, bytes, n, ids);
        TRY(check_ids(raw, path, ids, n_ids, counts->tokens));
        TRY(split_add(split, ids, n_ids));
        counts->tokens += n_ids;
        counts->bytes += n;
    }
    return ferror(stream) ? FAIL(STATUS_FAILED, "cannot read %s: %s", path, strerror(errno)) : STATUS_OK;
}

static enum status add_files(const struct raw *raw, struct output *output, const char *const *paths,
                             int n_paths, struct source_counts *counts) {
    for (int i = 0; i < n_paths; i++) {
        const char *slash = strrchr(paths[i], '/'), *name = slash ? slash + 1 : paths[i];
        FILE *stream = fopen(paths[i], "rb");
        if (!stream)
            return FAIL(STATUS_INVALID, "cannot open %s: %s", paths[i], strerror(errno));
        enum status status = add_stream(raw, strstr(name, "val") ? &output->val : &output->train, paths[i],
                                        stream, &counts[i]);
        fclose(stream);
        TRY(status);
        TRY(meta_checksum(paths[i], &counts[i].checksum));
    }
    if (output->train.n_tokens + output->val.n_tokens == 0)
        return FAIL(STATUS_INVALID, "train tokenize: %s contains no tokens", paths[0]);
    return output_finish(output);
}

enum status raw_tokenize(const struct tokenize_options *options, const struct tokenizer *tokenizer,
                         const char *const *paths, int n_paths) {
    const bool is_32 = options->dtype && strcmp(options->dtype, "uint32") == 0;
    const struct raw raw = {tokenizer, options->tokenizer_path, is_32 ? sizeof(uint32_t) : sizeof(uint16_t)};
    struct tokenizer_identity identity = {0};
    struct output output;
    if (tokenizer)
        identity = tokenizer_identify(tokenizer, options->tokenizer_path);
    TRY(file_make_folders(options->out));
    TRY(options->restart ? state_remove(options->out) : state_refuse(options->out));
    output_init(&output, options, &identity);
    TRY(output_discard(&output)); // what a process that was killed has left
    struct source_counts *counts = calloc((size_t)n_paths + 1, sizeof *counts);
    if (!counts)
        return FAIL(STATUS_FAILED, "out of memory for %d files", n_paths);
    enum status status = add_files(&raw, &output, paths, n_paths, counts);
    struct meta meta = {tokenizer, options->tokenizer_path, &output, paths, counts, n_paths};
    if (status == STATUS_OK)
        status = output_publish(&output, meta_add, &meta);
    if (status == STATUS_OK) {
        texts_report(&output.train, false);
        texts_report(&output.val, false);
    } else {
        const enum status discarded =
            output_discard(&output); // the first failure is the one that is reported
        (void)discarded;
    }
    free(counts);
    return status;
}
