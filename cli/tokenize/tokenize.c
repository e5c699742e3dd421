// ./train tokenize TEXT... --out DIR: writes texts, or token ids without a header, as token shards.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/file_kind.h"
#include "base/json.h"
#include "base/log.h"
#include "base/overwrite.h"
#include "cli/commands.h"
#include "cli/tokenize/tokenize.h"

static struct tokenize_options options = {.shard_tokens = SHARD_MAX_TOKENS};

static const struct arg flags[] = {
    {"--out", ARG_STRING, &options.out, 0, 0,
     "the folder for train-*.bin, val-*.bin and meta.json (required)"},
    {"--tokenizer", ARG_STRING, &options.tokenizer_path, 0, 0,
     "a tiktoken file, vocab.bpe, tokenizer.json, a folder with one, or \"bytes\" (required; "
     "with --raw optional: the one that made the ids)"},
    {"--split", ARG_NUMBER, &options.held_out, 0, 0.99,
     "fraction of the text, from its end, to hold out for validation (0)"},
    {"--end-of-text", ARG_FLAG, &options.end_of_text, 0, 0,
     "read <|endoftext|> in the texts as the end of a document, not as text"},
    {"--field", ARG_STRING, &options.field, 0, 0,
     "all inputs are JSON Lines, and this member of each line's object is the text (\"text\")"},
    {"--raw", ARG_FLAG, &options.raw, 0, 0,
     "the files hold token ids without a header (nanoGPT's .bin); those named *val* are for validation"},
    {"--dtype", ARG_STRING, &options.dtype, 0, 0,
     "uint16 or uint32: dtype of the ids in --raw files (uint16) or, without --raw, in the shards "
     "(uint16 for a tokenizer of at most 65536 ids)"},
    {"--force", ARG_FLAG, &options.force, 0, 0, "overwrite files in --out that tokenize did not write"},
    {"--shard-tokens", ARG_INTEGER, &options.shard_tokens, 1, 1e9, "tokens per shard (100000000)"},
};

// ---- --raw: token ids without a header

struct raw {
    const struct tokenizer *tokenizer; // the one that made the ids; NULL: unknown
    const char *tokenizer_path;
    size_t token_bytes; // 2 or 4
};

// Checks that all ids are below the tokenizer's number of ids; without a tokenizer, below TOKENIZER_MAX_IDS,
// so that files of another kind fail early.
//   first   index of the first of these tokens in the file
static enum status check_ids(const struct raw *raw, const char *path, const int32_t *tokens, size_t n,
                             uint64_t first) {
    const uint32_t n_ids = (uint32_t)(raw->tokenizer ? tokenizer_n_ids(raw->tokenizer) : TOKENIZER_MAX_IDS);
    for (size_t i = 0; i < n; i++)
        if ((uint32_t)tokens[i] >= n_ids)
            return FAIL(STATUS_INVALID, "%s: token %llu is %u, but %s has the ids 0 to %u: the file %s", path,
                        (unsigned long long)(first + i), (unsigned)tokens[i],
                        raw->tokenizer ? raw->tokenizer_path : "the largest vocabulary", (unsigned)n_ids - 1,
                        raw->tokenizer ? "is of another tokenizer" : "does not hold ids of this --dtype");
    return STATUS_OK;
}

static size_t read_ids(const struct raw *raw, const char *bytes, size_t n, int32_t *ids) {
    for (size_t i = 0; i < n / raw->token_bytes; i++) {
        uint32_t id = 0; // the bytes of ids are little-endian
        memcpy(&id, bytes + i * raw->token_bytes, raw->token_bytes);
        ids[i] = (int32_t)id;
    }
    return n / raw->token_bytes;
}

#define LEAST_TEXT 64 // bytes; token ids of this size or more hardly ever look like text

// Refuses files for --raw that are not token ids. Ids have no header, so any file of an even size could be
// ids. Small ids look like UTF-16, and a few ids may look like text; both are accepted. Longer texts, and
// files with a known signature, are accepted only if --dtype is given. Token shards are always refused.
//   start   the first n bytes of the file
static enum status refuse_other_kinds(const struct raw *raw, const char *path, const char *start, size_t n) {
    const enum file_kind kind = file_kind_of(start, n);
    if (kind == FILE_KIND_SHARD)
        return FAIL(STATUS_INVALID, "%s has a header already: it is a token shard and needs no --raw", path);
    if (kind == FILE_KIND_UNKNOWN || kind == FILE_KIND_TEXT_UTF_16 ||
        (file_kind_is_text(kind) && n < LEAST_TEXT))
        return STATUS_OK;
    if (options.dtype) {
        log_warning("%s looks like %s, and is read as token ids, as --raw and --dtype say", path,
                    file_kind_name(kind));
        return STATUS_OK;
    }
    char expected[100];
    snprintf(expected, sizeof expected,
             "token ids of %zu bytes without a header (if the file does hold ids, add --dtype)",
             raw->token_bytes);
    return file_kind_refuse(kind, path, "", expected);
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
                        "%s has %llu bytes, which is not a multiple of %zu: expected tokens of %zu bytes",
                        path, (unsigned long long)(counts->bytes + n), raw->token_bytes, raw->token_bytes);
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
    if (output->train.counts.n_tokens + output->val.counts.n_tokens == 0)
        return FAIL(STATUS_INVALID, "train tokenize: %s contains no tokens", paths[0]);
    TRY(split_end(&output->train));
    return split_end(&output->val);
}

static enum status tokenize_raw(const struct tokenizer *tokenizer, const char *const *paths, int n_paths) {
    const bool is_32 = options.dtype && strcmp(options.dtype, "uint32") == 0;
    const struct raw raw = {tokenizer, options.tokenizer_path, is_32 ? sizeof(uint32_t) : sizeof(uint16_t)};
    struct tokenizer_identity identity = {0};
    struct output output;
    if (tokenizer)
        identity = tokenizer_identify(tokenizer, options.tokenizer_path);
    output_init(&output, &options, &identity);
    output_abandon(&output, false); // removes the files of a process that was killed
    struct source_counts *counts = allocate((size_t)n_paths, sizeof *counts);
    char *folder = output_unfinished_path(options.out, "");
    enum status status = file_make_folders(folder);
    if (status == STATUS_OK)
        status = add_files(&raw, &output, paths, n_paths, counts);
    if (status == STATUS_OK)
        status = output_publish(&output,
                                &(struct meta){tokenizer, options.tokenizer_path, paths, counts, n_paths});
    if (status == STATUS_OK) {
        split_report(&output.train);
        split_report(&output.val);
    } else
        output_abandon(&output, false);
    free(folder);
    free(counts);
    return status;
}

// ---- the command

static bool is_meta(const char *path) {
    cJSON *json = NULL;
    const bool is_ours = json_read_file(path, &json) == STATUS_OK &&
                         cJSON_GetObjectItemCaseSensitive(json, "ids") &&
                         cJSON_GetObjectItemCaseSensitive(json, "tokenizer");
    cJSON_Delete(json);
    if (!is_ours)
        status_clear();
    return is_ours;
}

// Checks every file that tokenize may replace or remove.
static enum status check_overwritten(const char *const *paths, int n_paths) {
    struct overwrite overwrite = {
        .writer = "train tokenize", .inputs = paths, .n_inputs = n_paths, .force = options.force};
    struct file_list names = {0};
    if (!file_is_folder(options.out))
        return STATUS_OK;
    enum status status = file_list_folder(&names, options.out);
    for (int i = 0; i < names.n_paths && status == STATUS_OK; i++) {
        const char *name = names.paths[i];
        const bool is_shard = output_shard_index(name, "train") >= 0 || output_shard_index(name, "val") >= 0;
        if (!is_shard && strcmp(name, "meta.json") != 0)
            continue;
        char *path = file_path("%s/%s", options.out, name);
        overwrite.is_kind = is_shard ? shard_is_file : is_meta;
        overwrite.kind = is_shard ? "a token shard" : "the meta.json of token shards";
        status = overwrite_check(&overwrite, path);
        free(path);
    }
    file_list_free(&names);
    return status;
}

static enum status check_dtype(const struct tokenizer *tokenizer) {
    if (!options.dtype)
        return STATUS_OK;
    if (strcmp(options.dtype, "uint16") != 0 && strcmp(options.dtype, "uint32") != 0)
        return FAIL(STATUS_INVALID, "train tokenize: unknown --dtype %s, expected uint16 or uint32",
                    options.dtype);
    if (strcmp(options.dtype, "uint16") == 0 && !options.raw &&
        tokenizer_n_ids(tokenizer) > SHARD_MOST_IDS_16)
        return FAIL(STATUS_INVALID, "%s has %d ids, but uint16 can hold only %d; leave out --dtype uint16",
                    options.tokenizer_path, tokenizer_n_ids(tokenizer), SHARD_MOST_IDS_16);
    return STATUS_OK;
}

static enum status check_arguments(int n_paths) {
    const char *missing = n_paths == 0                              ? "TEXT"
                          : !options.out                            ? "--out DIR"
                          : !options.tokenizer_path && !options.raw ? "--tokenizer FILE"
                                                                    : NULL;
    if (missing)
        return FAIL(STATUS_INVALID, "train tokenize: %s is missing; see: train help tokenize", missing);
    if (options.raw && (options.held_out > 0 || options.end_of_text || options.field))
        return FAIL(STATUS_INVALID,
                    "train tokenize: --raw copies token ids and takes none of --split, "
                    "--end-of-text and --field; give the validation file a name with \"val\", "
                    "or train with data.val_split");
    return STATUS_OK;
}

static enum status tokenize_texts(const char *const *paths, int n_paths, const struct tokenizer *tokenizer) {
    struct text_sources sources;
    TRY(text_sources_find(paths, n_paths, options.field != NULL, &sources));
    enum status status = texts_tokenize(&options, tokenizer, &sources);
    text_sources_free(&sources);
    return status;
}

// Creates the folder --out and locks it, because two processes must not write the same shards. The folder
// itself is locked, so that no lock file remains. If the file system has no locks, continues without one.
static enum status lock_folder(int *descriptor) {
    TRY(file_make_folders(options.out));
    *descriptor = open(options.out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*descriptor >= 0 && flock(*descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return FAIL(STATUS_INVALID, "another ./train tokenize is writing to %s; wait for it to end",
                    options.out);
    return STATUS_OK;
}

static enum status tokenize(const char *const *paths, int n_paths) {
    struct tokenizer *tokenizer = NULL;
    int lock = -1;
    TRY(check_arguments(n_paths));
    TRY(check_overwritten(paths, n_paths));
    if (options.tokenizer_path)
        TRY(tokenizer_load(options.tokenizer_path, &tokenizer));
    enum status status = check_dtype(tokenizer);
    if (status == STATUS_OK && tokenizer && !options.raw && tokenizer_n_lost_bytes(tokenizer) > 0)
        log_warning(
            "%s has no token for %d of the 256 bytes: characters with these bytes are left out, as by "
            "other programs with this tokenizer",
            options.tokenizer_path, tokenizer_n_lost_bytes(tokenizer));
    const size_t first_missing = file_first_missing(options.out);
    if (status == STATUS_OK)
        status = lock_folder(&lock);
    if (status == STATUS_OK)
        status =
            options.raw ? tokenize_raw(tokenizer, paths, n_paths) : tokenize_texts(paths, n_paths, tokenizer);
    if (status != STATUS_OK)
        file_remove_made(options.out, first_missing);
    if (lock >= 0)
        close(lock);
    tokenizer_delete(tokenizer);
    return status;
}

static enum status run_tokenize(int n_args, char **args) {
    const char **paths = allocate((size_t)n_args, sizeof *paths);
    int n_paths;
    enum status status =
        args_parse("tokenize", flags, sizeof flags / sizeof *flags, n_args, args, paths, n_args, &n_paths);
    if (status == STATUS_OK)
        status = tokenize(paths, n_paths);
    free(paths);
    return status;
}

const struct command command_tokenize = {
    .name = "tokenize",
    .synopsis =
        "TEXT... --out DIR --tokenizer FILE [--split 0.05] [--end-of-text] [--field text] | --raw FILE... "
        "--out DIR",
    .summary = "tokenize text files into token shards, with a validation split",
    .details =
        "TEXT is a file, a folder (all files in it) or - (standard input); gzip and zstd are unpacked.\n"
        "A file is one document, preceded by end-of-text; with --end-of-text, <|endoftext|> in it\n"
        "separates documents. Files named .jsonl, .ndjson or .json, and all files with --field, hold one\n"
        "JSON object per line, each a document. After an interruption, the same command keeps the\n"
        "shards that were finished.",
    .examples = "Make shards of a text, with the last 5 % for validation.\n"
                "./train tokenize book.txt --tokenizer book.tiktoken --split 0.05 --out shards\n"
                "Read one field of compressed JSON Lines.\n"
                "./train tokenize dump.jsonl.zst --field text --tokenizer gpt2.tiktoken --out shards\n",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_tokenize,
};
