// ./train tokenize TEXT... --out DIR
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/overwrite.h"
#include "data/corpus.h"
#include "data/file_kind.h"
#include "data/shard.h"
#include "data/tokenizer.h"

static double held_out = 0;
static int64_t shard_tokens = SHARD_MAX_TOKENS;
static const char *out_folder = NULL, *tokenizer_path = NULL;
static bool force = false, end_of_text = false, raw = false;

static const struct arg flags[] = {
    {"--out", ARG_STRING, &out_folder, 0, 0,
     "the folder for train-*.bin, val-*.bin and meta.json (required)"},
    {"--tokenizer", ARG_STRING, &tokenizer_path, 0, 0,
     "a tiktoken file, vocab.bpe, tokenizer.json, vocab.json, a folder with one, or \"bytes\" (required; "
     "with --raw optional: the one that made the ids)"},
    {"--split", ARG_NUMBER, &held_out, 0, 0.99,
     "fraction of the text, from its end, to hold out for validation (0)"},
    {"--end-of-text", ARG_FLAG, &end_of_text, 0, 0,
     "read <|endoftext|> in the texts as the end of a document, not as text"},
    {"--raw", ARG_FLAG, &raw, 0, 0,
     "the files hold 2-byte token ids without a header (nanoGPT's .bin); val in a file's name: for "
     "validation"},
    {"--force", ARG_FLAG, &force, 0, 0, "overwrite files of --out that tokenize did not write"},
    {"--shard-tokens", ARG_INTEGER, &shard_tokens, 1, 1e9, "tokens per shard (100000000)"},
};

// One split being written, shard by shard. All shards keep temporary names until everything is on disk, so
// that a full disk leaves the files of an earlier run intact.
struct split_writer {
    const char *name; // "train", "val"
    struct shard_writer *shards;
    int n_shards, capacity;
    struct tokenizer_identity tokenizer; // recorded in each shard
    bool open;                           // the last shard is not full yet
    size_t n_tokens, n_bytes;
};

static enum status finish_shard(struct split_writer *split) {
    bool open = split->open;
    split->open = false;
    return open ? shard_writer_finish(&split->shards[split->n_shards - 1]) : STATUS_OK;
}

static enum status next_shard(struct split_writer *split) {
    TRY(finish_shard(split));
    if (split->n_shards == split->capacity) {
        int capacity = split->capacity ? 2 * split->capacity : 16;
        struct shard_writer *grown = realloc(split->shards, (size_t)capacity * sizeof *grown);
        if (!grown)
            return FAIL(STATUS_FAILED, "out of memory for %d shards", capacity);
        split->shards = grown;
        split->capacity = capacity;
    }
    char *path = file_path("%s/%s-%05d.bin", out_folder, split->name, split->n_shards);
    enum status status = path ? shard_writer_open(&split->shards[split->n_shards], path) : STATUS_FAILED;
    free(path);
    split->open = status == STATUS_OK;
    if (split->open)
        split->shards[split->n_shards].tokenizer = split->tokenizer;
    split->n_shards += split->open;
    return status;
}

static void split_discard(struct split_writer *split) {
    for (int i = 0; i < split->n_shards; i++)
        shard_writer_discard(&split->shards[i]);
    free(split->shards);
    split->shards = NULL;
}

static enum status add_ids(struct split_writer *split, const int32_t *ids, size_t n) {
    uint16_t tokens[4096];
    for (size_t i = 0, now; i < n; i += now) {
        if (!split->open || split->shards[split->n_shards - 1].n_tokens == (size_t)shard_tokens)
            TRY(next_shard(split));
        struct shard_writer *shard = &split->shards[split->n_shards - 1];
        size_t room = (size_t)shard_tokens - shard->n_tokens;
        now = n - i < room ? n - i : room;
        now = now < sizeof tokens / sizeof *tokens ? now : sizeof tokens / sizeof *tokens;
        for (size_t k = 0; k < now; k++)
            tokens[k] = (uint16_t)ids[i + k];
        shard_writer_add(shard, tokens, now);
    }
    split->n_tokens += n;
    return STATUS_OK;
}

// Adds a document, or the part of it that belongs to the split: end-of-text, then its tokens.
static enum status add_document(struct split_writer *split, const struct tokenizer *tokenizer,
                                const char *text, size_t bytes) {
    struct token_list list = {0};
    const int32_t end_id = tokenizer_end_of_text(tokenizer);
    if (bytes == 0)
        return STATUS_OK;
    enum status status = add_ids(split, &end_id, 1);
    if (status == STATUS_OK)
        status = tokenizer_encode(tokenizer, text, bytes, &list);
    if (status == STATUS_OK)
        status = add_ids(split, list.ids, list.n);
    split->n_bytes += bytes;
    token_list_free(&list);
    return status;
}

// Adds the documents of a text, or of the part of it that belongs to the split.
static enum status add_text(struct split_writer *split, const struct tokenizer *tokenizer, const char *text,
                            size_t bytes) {
    const char *at = text, *document;
    for (size_t n; corpus_next_document(&at, text + bytes, end_of_text, &document, &n);)
        TRY(add_document(split, tokenizer, document, n));
    return STATUS_OK;
}

// ---- token ids without a header

static enum status check_raw(const char *path, const uint16_t *tokens, size_t n,
                             const struct tokenizer *tokenizer, size_t first) {
    for (size_t i = 0; tokenizer && i < n; i++)
        if (tokens[i] >= tokenizer_n_ids(tokenizer))
            return FAIL(STATUS_INVALID,
                        "%s: token %zu is %d, but %s has the ids 0 to %d: it is another tokenizer's", path,
                        first + i, tokens[i], tokenizer_path, tokenizer_n_ids(tokenizer) - 1);
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

static enum status add_raw_stream(struct split_writer *split, const struct tokenizer *tokenizer,
                                  const char *path, FILE *stream) {
    char bytes[8192];
    uint16_t tokens[sizeof bytes / 2];
    int32_t ids[sizeof bytes / 2];
    size_t n, before = split->n_tokens;
    while ((n = fread(bytes, 1, sizeof bytes, stream)) > 0) {
        memcpy(tokens, bytes, n);
        if (split->n_tokens == before)
            TRY(refuse_other_kinds(path, bytes, n));
        if (n % 2 != 0)
            return FAIL(STATUS_INVALID, "%s has an odd number of bytes, expected tokens of 2 bytes", path);
        TRY(check_raw(path, tokens, n / 2, tokenizer, split->n_tokens - before));
        for (size_t i = 0; i < n / 2; i++)
            ids[i] = tokens[i];
        TRY(add_ids(split, ids, n / 2));
    }
    return ferror(stream) ? FAIL(STATUS_FAILED, "cannot read %s: %s", path, strerror(errno)) : STATUS_OK;
}

static enum status add_raw_files(struct split_writer splits[2], const struct tokenizer *tokenizer,
                                 const char *const *paths, int n_paths) {
    for (int i = 0; i < n_paths; i++) {
        const char *slash = strrchr(paths[i], '/'), *name = slash ? slash + 1 : paths[i];
        FILE *stream = fopen(paths[i], "rb");
        if (!stream)
            return FAIL(STATUS_INVALID, "cannot open %s: %s", paths[i], strerror(errno));
        enum status status =
            add_raw_stream(&splits[strstr(name, "val") != NULL], tokenizer, paths[i], stream);
        fclose(stream);
        TRY(status);
    }
    if (splits[0].n_tokens + splits[1].n_tokens == 0)
        return FAIL(STATUS_INVALID, "train tokenize: %s contains no tokens", paths[0]);
    TRY(finish_shard(&splits[0]));
    return finish_shard(&splits[1]);
}

static void report(const struct split_writer *split) {
    if (raw && split->n_tokens > 0)
        log_info("%s: %zu tokens in %d shard%s", split->name, split->n_tokens, split->n_shards,
                 split->n_shards == 1 ? "" : "s");
    else if (split->n_bytes > 0)
        log_info("%s: %zu bytes, %zu tokens in %d shard%s, %.2f bytes per token", split->name, split->n_bytes,
                 split->n_tokens, split->n_shards, split->n_shards == 1 ? "" : "s",
                 (double)split->n_bytes / (double)split->n_tokens);
}

// The number of a split's shard from its file name ("train-00002.bin"), or -1 for another name.
static int shard_index(const char *name, const char *split) {
    size_t length = strlen(split);
    int index, end = 0;
    bool is_shard = strncmp(name, split, length) == 0 &&
                    sscanf(name + length, "-%5d.bin%n", &index, &end) == 1 && end > 0 &&
                    name[length + (size_t)end] == '\0';
    return is_shard ? index : -1;
}

// Removes the split's shards that an earlier run left beyond those just written, and counts them.
static enum status remove_stale(const struct split_writer *split, int *n_removed) {
    struct file_list names = {0};
    enum status status = file_list_folder(&names, out_folder);
    for (int i = 0; i < names.n_paths && status == STATUS_OK; i++) {
        const char *name = names.paths[i];
        if (shard_index(name, split->name) < split->n_shards)
            continue;
        char *path = file_path("%s/%s", out_folder, name);
        status = path ? file_remove_tree(path) : STATUS_FAILED;
        *n_removed += status == STATUS_OK;
        free(path);
    }
    file_list_free(&names);
    return status;
}

static void add_tokenizer(struct text *json, const struct tokenizer *tokenizer) {
    char *absolute = realpath(tokenizer_path, NULL); // NULL for "bytes"
    json_add_string(json, tokenizer_path);
    text_add(json, ",\n  \"tokenizer_path\": ");
    json_add_string(json, absolute ? absolute : tokenizer_path);
    text_add(json, ",\n  \"ids\": %d,\n  \"tokenizer_xxh3\": \"%016llx\"", tokenizer_n_ids(tokenizer),
             (unsigned long long)tokenizer_checksum(tokenizer));
    free(absolute);
}

//   tokenizer   NULL: not known (--raw)
static enum status write_meta(const struct tokenizer *tokenizer, const struct split_writer splits[2],
                              const char *path, struct file_writer *meta) {
    struct text json = {0};
    text_add(&json, "{\n  \"tokenizer\": ");
    if (tokenizer)
        add_tokenizer(&json, tokenizer);
    else
        text_add(&json, "null,\n  \"ids\": null");
    for (int i = 0; i < 2; i++)
        text_add(&json, ",\n  \"%s\": {\"bytes\": %zu, \"tokens\": %zu, \"shards\": %d}", splits[i].name,
                 splits[i].n_bytes, splits[i].n_tokens, splits[i].n_shards);
    text_add(&json, "\n}\n");
    enum status status = text_status(&json);
    if (status == STATUS_OK)
        status = file_writer_open(meta, path);
    if (status == STATUS_OK) {
        file_write(meta, json.data, json.length);
        status = file_finish(meta);
    }
    text_free(&json);
    return status;
}

// Renames the shards, when all data is on disk. meta.json is removed first and written last, so that it
// always describes the shards next to it.
static enum status publish(struct split_writer splits[2], const char *meta_path, struct file_writer *meta) {
    int n_removed = 0;
    if (unlink(meta_path) != 0 && errno != ENOENT)
        return FAIL(STATUS_FAILED, "cannot replace %s: %s", meta_path, strerror(errno));
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < splits[i].n_shards; k++)
            TRY(shard_writer_commit(&splits[i].shards[k]));
        TRY(remove_stale(&splits[i], &n_removed));
    }
    if (n_removed > 0)
        log_info("removed %d older shard%s of %s", n_removed, n_removed == 1 ? "" : "s", out_folder);
    TRY(file_commit(meta));
    return file_sync_folder(out_folder);
}

static enum status add_texts(struct split_writer splits[2], const struct tokenizer *tokenizer,
                             const struct corpus *corpus) {
    for (int i = 0; i < corpus->n_texts; i++) {
        const struct corpus_text *text = &corpus->texts[i];
        TRY(add_text(&splits[0], tokenizer, text->text, text->train_bytes));
        TRY(add_text(&splits[1], tokenizer, text->text + text->train_bytes, text->bytes - text->train_bytes));
    }
    TRY(finish_shard(&splits[0]));
    return finish_shard(&splits[1]);
}

// What the shards are made of: the documents of a corpus or, with --raw, files of token ids.
struct source {
    const struct tokenizer *tokenizer; // NULL: not known (--raw)
    const struct corpus *corpus;
    const char *const *paths; // (n_paths)
    int n_paths;
};

static enum status write_shards(const struct source *source) {
    struct split_writer splits[2] = {{.name = "train"}, {.name = "val"}};
    struct file_writer meta = {0};
    if (source->tokenizer)
        splits[0].tokenizer = splits[1].tokenizer = tokenizer_identify(source->tokenizer, tokenizer_path);
    TRY(file_make_folders(out_folder));
    char *meta_path = file_path("%s/meta.json", out_folder);
    enum status status = !meta_path ? STATUS_FAILED
                         : raw      ? add_raw_files(splits, source->tokenizer, source->paths, source->n_paths)
                                    : add_texts(splits, source->tokenizer, source->corpus);
    if (status == STATUS_OK)
        status = write_meta(source->tokenizer, splits, meta_path, &meta);
    if (status == STATUS_OK)
        status = publish(splits, meta_path, &meta);
    for (int i = 0; i < 2; i++) {
        if (status == STATUS_OK)
            report(&splits[i]);
        split_discard(&splits[i]);
    }
    file_discard(&meta);
    free(meta_path);
    return status;
}

// ---- what is there already

static bool is_meta(const char *path) {
    cJSON *json = NULL;
    bool is_ours = json_read_file(path, &json) == STATUS_OK &&
                   cJSON_GetObjectItemCaseSensitive(json, "ids") &&
                   cJSON_GetObjectItemCaseSensitive(json, "tokenizer");
    cJSON_Delete(json);
    if (!is_ours)
        status_clear();
    return is_ours;
}

// Every file that tokenize may replace or remove.
static enum status check_overwritten(const char *const *paths, int n_paths) {
    const struct overwrite shards = {"tokenize", paths, n_paths, "a token shard", shard_is_file},
                           meta = {"tokenize", paths, n_paths, "the meta.json of token shards", is_meta};
    struct file_list names = {0};
    if (force || !file_is_folder(out_folder))
        return STATUS_OK;
    enum status status = file_list_folder(&names, out_folder);
    for (int i = 0; i < names.n_paths && status == STATUS_OK; i++) {
        const char *name = names.paths[i];
        bool is_shard = shard_index(name, "train") >= 0 || shard_index(name, "val") >= 0;
        if (!is_shard && strcmp(name, "meta.json") != 0)
            continue;
        char *path = file_path("%s/%s", out_folder, name);
        status = path ? overwrite_check(is_shard ? &shards : &meta, path) : STATUS_FAILED;
        free(path);
    }
    file_list_free(&names);
    return status;
}

static enum status read_corpus(struct corpus *corpus, const char *const *paths, int n_paths) {
    TRY(corpus_read(corpus, paths, n_paths, held_out, end_of_text));
    if (corpus->bytes == 0)
        return FAIL(STATUS_INVALID, "train tokenize: %s contains no text", paths[0]);
    corpus_warn(corpus, end_of_text, "encoded");
    return STATUS_OK;
}

static enum status check_arguments(int n_paths) {
    const char *missing = n_paths == 0              ? "TEXT"
                          : !out_folder             ? "--out DIR"
                          : !tokenizer_path && !raw ? "--tokenizer FILE"
                                                    : NULL;
    if (missing)
        return FAIL(STATUS_INVALID, "train tokenize: %s is missing; see: train help tokenize", missing);
    if (raw && (held_out > 0 || end_of_text))
        return FAIL(
            STATUS_INVALID,
            "train tokenize: --raw copies token ids and takes neither --split nor --end-of-text; name the "
            "validation file with val, or train with data.val_split");
    return STATUS_OK;
}

static enum status tokenize(const char *const *paths, int n_paths) {
    struct tokenizer *tokenizer = NULL;
    struct corpus corpus = {0};
    TRY(check_arguments(n_paths));
    TRY(check_overwritten(paths, n_paths));
    if (tokenizer_path)
        TRY(tokenizer_load(tokenizer_path, &tokenizer));
    enum status status = STATUS_OK;
    if (tokenizer && tokenizer_n_ids(tokenizer) > TOKENIZER_MAX_IDS)
        status = FAIL(STATUS_INVALID, "%s has %d ids, but token shards support at most %d", tokenizer_path,
                      tokenizer_n_ids(tokenizer), TOKENIZER_MAX_IDS);
    if (status == STATUS_OK && !raw)
        status = read_corpus(&corpus, paths, n_paths);
    if (status == STATUS_OK)
        status = write_shards(&(struct source){tokenizer, &corpus, paths, n_paths});
    corpus_free(&corpus);
    tokenizer_delete(tokenizer);
    return status;
}

static enum status run_tokenize(int n_args, char **args) {
    const char **paths = calloc((size_t)n_args + 1, sizeof *paths);
    int n_paths;
    if (!paths)
        return FAIL(STATUS_FAILED, "out of memory for %d arguments", n_args);
    enum status status =
        args_parse("tokenize", flags, sizeof flags / sizeof *flags, n_args, args, paths, n_args, &n_paths);
    if (status == STATUS_OK)
        status = tokenize(paths, n_paths);
    free(paths);
    return status;
}

const struct command command_tokenize = {
    .name = "tokenize",
    .synopsis = "TEXT... --out DIR --tokenizer FILE [--split 0.05] [--end-of-text] | --raw FILE... --out DIR",
    .summary = "tokenize text files into token shards, with a validation split",
    .details =
        "Each file is one document, preceded by end-of-text; - reads standard input. With --end-of-text,\n"
        "<|endoftext|> in a file separates documents.",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_tokenize,
};
