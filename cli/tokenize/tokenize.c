// ./train tokenize TEXT... --out DIR
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/overwrite.h"
#include "cli/tokenize/meta.h"
#include "cli/tokenize/raw.h"
#include "cli/tokenize/texts.h"
#include "data/shard.h"

static struct tokenize_options options = {.shard_tokens = SHARD_MAX_TOKENS};

static const struct arg flags[] = {
    {"--out", ARG_STRING, &options.out, 0, 0,
     "the folder for train-*.bin, val-*.bin and meta.json (required)"},
    {"--tokenizer", ARG_STRING, &options.tokenizer_path, 0, 0,
     "a tiktoken file, vocab.bpe, tokenizer.json, vocab.json, a folder with one, or \"bytes\" (required; "
     "with --raw optional: the one that made the ids)"},
    {"--split", ARG_NUMBER, &options.held_out, 0, 0.99,
     "fraction of the text, from its end, to hold out for validation (0)"},
    {"--end-of-text", ARG_FLAG, &options.end_of_text, 0, 0,
     "read <|endoftext|> in the texts as the end of a document, not as text"},
    {"--field", ARG_STRING, &options.field, 0, 0,
     "all inputs are JSON Lines, and this member of each line's object is the text (\"text\")"},
    {"--raw", ARG_FLAG, &options.raw, 0, 0,
     "the files hold token ids without a header (nanoGPT's .bin); val in a file's name: for validation"},
    {"--dtype", ARG_STRING, &options.dtype, 0, 0,
     "uint16 or uint32: of the ids of --raw (uint16); else of the shards (uint16 up to 65536 ids)"},
    {"--restart", ARG_FLAG, &options.restart, 0, 0,
     "begin again where an unfinished run in --out would be continued"},
    {"--force", ARG_FLAG, &options.force, 0, 0, "overwrite files of --out that tokenize did not write"},
    {"--shard-tokens", ARG_INTEGER, &options.shard_tokens, 1, 1e9, "tokens per shard (100000000)"},
};

// Every file that tokenize may replace or remove.
static enum status check_overwritten(const char *const *paths, int n_paths) {
    const struct overwrite shards = {"tokenize", paths, n_paths, "a token shard", shard_is_file},
                           meta = {"tokenize", paths, n_paths, "the meta.json of token shards", meta_is_file};
    struct file_list names = {0};
    if (options.force || !file_is_folder(options.out))
        return STATUS_OK;
    enum status status = file_list_folder(&names, options.out);
    for (int i = 0; i < names.n_paths && status == STATUS_OK; i++) {
        const char *name = names.paths[i];
        const bool is_shard =
            output_shard_index(name, "train", "") >= 0 || output_shard_index(name, "val", "") >= 0;
        if (!is_shard && strcmp(name, "meta.json") != 0)
            continue;
        char *path = file_path("%s/%s", options.out, name);
        status = path ? overwrite_check(is_shard ? &shards : &meta, path) : STATUS_FAILED;
        free(path);
    }
    file_list_free(&names);
    return status;
}

static enum status check_dtype(const struct tokenizer *tokenizer) {
    if (!options.dtype)
        return STATUS_OK;
    if (strcmp(options.dtype, "uint16") != 0 && strcmp(options.dtype, "uint32") != 0)
        return FAIL(STATUS_INVALID, "train tokenize: --dtype %s, expected uint16 or uint32", options.dtype);
    if (strcmp(options.dtype, "uint16") == 0 && !options.raw &&
        tokenizer_n_ids(tokenizer) > SHARD_MOST_IDS_16)
        return FAIL(STATUS_INVALID, "%s has %d ids, and --dtype uint16 holds %d; leave --dtype out",
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
        return FAIL(STATUS_INVALID, "train tokenize: --raw copies token ids and takes none of --split, "
                                    "--end-of-text and --field; name "
                                    "the validation file with val, or train with data.val_split");
    return STATUS_OK;
}

static enum status tokenize_texts(const char *const *paths, int n_paths, const struct tokenizer *tokenizer) {
    struct text_sources sources;
    TRY(text_sources_find(paths, n_paths, options.field != NULL, &sources));
    enum status status = texts_tokenize(&options, tokenizer, &sources);
    text_sources_free(&sources);
    return status;
}

static enum status tokenize(const char *const *paths, int n_paths) {
    struct tokenizer *tokenizer = NULL;
    TRY(check_arguments(n_paths));
    TRY(check_overwritten(paths, n_paths));
    if (options.tokenizer_path)
        TRY(tokenizer_load(options.tokenizer_path, &tokenizer));
    enum status status = check_dtype(tokenizer);
    if (status == STATUS_OK && tokenizer && !options.raw && tokenizer_n_lost_bytes(tokenizer) > 0)
        log_warning("%s has no token for %d of the 256 bytes: characters with them are left out, as in other "
                    "programs that use it",
                    options.tokenizer_path, tokenizer_n_lost_bytes(tokenizer));
    if (status == STATUS_OK)
        status = options.raw ? raw_tokenize(&options, tokenizer, paths, n_paths)
                             : tokenize_texts(paths, n_paths, tokenizer);
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
    .synopsis =
        "TEXT... --out DIR --tokenizer FILE [--split 0.05] [--end-of-text] [--field text] | --raw FILE... "
        "--out DIR",
    .summary = "tokenize text files into token shards, with a validation split",
    .details = "TEXT is a file, a folder (all files in it) or - (standard input); gzip and zstd are "
               "unpacked. A file is\n"
               "one document, preceded by end-of-text; with --end-of-text, <|endoftext|> in it separates "
               "documents.\n"
               "Files named .jsonl, .ndjson or .json, and all with --field, hold one JSON object per line: a "
               "document\n"
               "each. After an interruption the same command goes on where it stopped.",
    .examples = "Make shards of a text, with the last 5 % for validation.\n"
                "./train tokenize book.txt --tokenizer book.tiktoken --split 0.05 --out shards\n"
                "Read the field of packed JSON Lines.\n"
                "./train tokenize dump.jsonl.zst --field text --tokenizer gpt2.tiktoken --out shards\n",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_tokenize,
};
