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
};

static enum status check_ids(const struct raw *raw, const char *path, const uint16_t *tokens, size_t n,
                             uint64_t first) {
    for (size_t i = 0; raw->tokenizer && i < n; i++)
        if (tokens[i] >= tokenizer_n_ids(raw->tokenizer))
            return FAIL(STATUS_INVALID,
                        "%s: token %llu is %d, but %s has the ids 0 to %d: it is another tokenizer's", path,
                        (unsigned long long)(first + i), tokens[i], raw->tokenizer_path,
                        tokenizer_n_ids(raw->tokenizer) - 1);
    return STATUS_OK;
}

// Ids have no header: any file of an even size could be some.
static enum status refuse_other_kinds(const char *path, const char *start, size_t n) {
    const enum file_kind kind = file_kind_of(start, n);
    if (kind == FILE_KIND_SHARD)
        return FAIL(STATUS_INVALID, "%s has a header already: it is a token shard and needs no --raw", path);
    return kind == FILE_KIND_UNKNOWN
               ? STATUS_OK
               : file_kind_refuse(kind, path, "", "token ids of 2 bytes without a header");
}

static enum status add_stream(const struct raw *raw, struct split_writer *split, const char *path,
                              FILE *stream, struct source_counts *counts) {
    char bytes[8192];
    uint16_t tokens[sizeof bytes / 2];
    int32_t ids[sizeof bytes / 2];
    size_t n;
    while ((n = fread(bytes, 1, sizeof bytes, stream)) > 0) {
        memcpy(tokens, bytes, n);
        if (counts->tokens == 0)
            TRY(refuse_other_kinds(path, bytes, n));
        if (n % 2 != 0)
            return FAIL(STATUS_INVALID, "%s has an odd number of bytes, expected tokens of 2 bytes", path);
        TRY(check_ids(raw, path, tokens, n / 2, counts->tokens));
        for (size_t i = 0; i < n / 2; i++)
            ids[i] = tokens[i];
        TRY(split_add(split, ids, n / 2));
        counts->tokens += n / 2;
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
    const struct raw raw = {tokenizer, options->tokenizer_path};
    struct tokenizer_identity identity = {0};
    struct output output;
    if (tokenizer)
        identity = tokenizer_identify(tokenizer, options->tokenizer_path);
    TRY(file_make_folders(options->out));
    TRY(options->restart ? state_remove(options->out) : state_refuse(options->out));
    output_init(&output, options->out, (size_t)options->shard_tokens, &identity);
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
