// ./train tokenizer train|encode|decode
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/log.h"
#include "base/output.h"
#include "cli/commands.h"
#include "cli/overwrite.h"
#include "data/corpus.h"
#include "data/tokenizer/tokenizer.h"

static int64_t vocab_size = 4096;
static double held_out = 0;
static const char *out_path = NULL, *tokenizer_path = NULL;
static bool force = false, end_of_text = false;

static const struct arg flags[] = {
    {"--vocab-size", ARG_INTEGER, &vocab_size, 257, 65536,
     "train: number of ids, including end-of-text (4096)"},
    {"--split", ARG_NUMBER, &held_out, 0, 0.99,
     "train: fraction of the text, from its end, to leave out (0)"},
    {"--out", ARG_STRING, &out_path, 0, 0, "train: the file to write, in tiktoken's format (required)"},
    {"--end-of-text", ARG_FLAG, &end_of_text, 0, 0,
     "train, encode: read <|endoftext|> as the end of a document, not as text"},
    {"--force", ARG_FLAG, &force, 0, 0, "train: overwrite --out whatever it is"},
    {"--tokenizer", ARG_STRING, &tokenizer_path, 0, 0,
     "encode, decode: a tiktoken file, vocab.bpe, tokenizer.json, a folder with one, or "
     "\"bytes\""},
};

// Creates the folder of --out if necessary.
static enum status make_out_folder(void) {
    const char *slash = strrchr(out_path, '/');
    if (!slash || slash == out_path)
        return STATUS_OK;
    char *folder = file_path("%.*s", (int)(slash - out_path), out_path);
    enum status status = file_make_folders(folder);
    free(folder);
    return status;
}

static enum status train_tokenizer(const char *const *paths, int n_paths) {
    struct corpus corpus = {0};
    struct tokenizer *tokenizer = NULL;
    struct text text = {0};
    if (!out_path)
        return FAIL(STATUS_INVALID, "train tokenizer train: --out FILE is missing");
    if (n_paths == 0)
        return FAIL(STATUS_INVALID, "train tokenizer train: expected text files (- for standard input)");
    const struct overwrite overwrite = {"tokenizer train", paths, n_paths, "a tokenizer", tokenizer_is_file};
    if (!force)
        TRY(overwrite_check(&overwrite, out_path));
    enum status status = corpus_read(&corpus, paths, n_paths, held_out, end_of_text);
    if (status == STATUS_OK && corpus.bytes == 0)
        status = FAIL(STATUS_INVALID, "train tokenizer train: %s contains no text", paths[0]);
    if (status == STATUS_OK)
        corpus_warn(&corpus, end_of_text, "learned");
    for (int i = 0; i < corpus.n_texts && status == STATUS_OK; i++) {
        const char *at = corpus.texts[i].text, *end = at + corpus.texts[i].train_bytes, *document;
        for (size_t bytes; corpus_next_document(&at, end, end_of_text, &document, &bytes);)
            text_add_bytes(&text, document, bytes);
    }
    if (status == STATUS_OK)
        status = tokenizer_train(text.data, text.length, (int)vocab_size, &tokenizer);
    if (status == STATUS_OK)
        status = make_out_folder();
    if (status == STATUS_OK)
        status = tokenizer_save(tokenizer, out_path);
    if (status == STATUS_OK)
        log_info("%s: %d ids from %zu bytes of text", out_path, tokenizer_n_ids(tokenizer), text.length);
    tokenizer_delete(tokenizer);
    text_free(&text);
    corpus_free(&corpus);
    return status;
}

// What is between documents stands where the marker was.
static enum status encode_text(const struct tokenizer *tokenizer, const struct corpus_text *text,
                               struct token_list *list) {
    const char *at = text->text, *end = at + text->bytes, *document;
    for (size_t bytes; corpus_next_document(&at, end, end_of_text, &document, &bytes);) {
        TRY(tokenizer_encode(tokenizer, document, bytes, list));
        if (document + bytes < end)
            tokenizer_add_separator(tokenizer, false, list);
    }
    return STATUS_OK;
}

static enum status encode(const struct tokenizer *tokenizer, const char *const *paths, int n_paths) {
    static const char *const standard_input[] = {"-"};
    struct corpus corpus = {0};
    struct token_list list = {0};
    enum status status =
        corpus_read(&corpus, n_paths ? paths : standard_input, n_paths ? n_paths : 1, 0, end_of_text);
    for (int i = 0; i < corpus.n_texts && status == STATUS_OK; i++)
        status = encode_text(tokenizer, &corpus.texts[i], &list);
    for (size_t i = 0; i < list.n && status == STATUS_OK; i++)
        printf("%" PRId32 "%c", list.ids[i], i + 1 < list.n ? ' ' : '\n');
    token_list_free(&list);
    corpus_free(&corpus);
    return status;
}

// Parses ids from text, and adds them to the list.
static enum status parse_ids(const struct tokenizer *tokenizer, const char *text, struct token_list *list) {
    for (const char *at = text; *(at += strspn(at, " \t\r\n,"));) {
        char *end;
        long id = strtol(at, &end, 10);
        if (end == at || id < 0 || id >= tokenizer_n_ids(tokenizer))
            return FAIL(STATUS_INVALID,
                        "train tokenizer decode: \"%.*s\" is not an id of this tokenizer (0 to %d)",
                        (int)strcspn(at, " \t\r\n,"), at, tokenizer_n_ids(tokenizer) - 1);
        token_list_add(list, (int32_t)id);
        at = end;
    }
    return STATUS_OK;
}

static enum status read_ids(const struct tokenizer *tokenizer, const char *const *ids, int n_ids,
                            struct token_list *list) {
    for (int i = 0; i < n_ids; i++)
        TRY(parse_ids(tokenizer, ids[i], list));
    if (n_ids > 0)
        return STATUS_OK;
    char *text = NULL;
    size_t bytes;
    TRY(file_read_stream("/dev/stdin", SIZE_MAX / 2, &text, &bytes));
    enum status status = parse_ids(tokenizer, text, list);
    free(text);
    return status;
}

static enum status decode(const struct tokenizer *tokenizer, const char *const *ids, int n_ids) {
    struct token_list list = {0};
    struct text text = {0};
    enum status status = read_ids(tokenizer, ids, n_ids, &list);
    if (status == STATUS_OK)
        tokenizer_add_text(tokenizer, list.ids, list.n, &text);
    output_text(&text);
    token_list_free(&list);
    return status;
}

static enum status run_with(const char **words, int n_words) {
    const char *action = n_words > 0 ? words[0] : "";
    struct tokenizer *tokenizer = NULL;
    if (strcmp(action, "train") == 0)
        return train_tokenizer(words + 1, n_words - 1);
    bool encoding = strcmp(action, "encode") == 0;
    if (!encoding && strcmp(action, "decode") != 0)
        return FAIL(
            STATUS_INVALID,
            "train tokenizer: expected train, encode or decode, got \"%s\"; see: train help tokenizer",
            action);
    if (!tokenizer_path)
        return FAIL(STATUS_INVALID, "train tokenizer %s: --tokenizer FILE is missing", action);
    TRY(tokenizer_load(tokenizer_path, &tokenizer));
    enum status status =
        encoding ? encode(tokenizer, words + 1, n_words - 1) : decode(tokenizer, words + 1, n_words - 1);
    tokenizer_delete(tokenizer);
    return status;
}

static enum status run_tokenizer(int n_args, char **args) {
    const char **words = allocate((size_t)n_args, sizeof *words);
    int n_words;
    enum status status =
        args_parse("tokenizer", flags, sizeof flags / sizeof *flags, n_args, args, words, n_args, &n_words);
    if (status == STATUS_OK)
        status = run_with(words, n_words);
    free(words);
    return status;
}

const struct command command_tokenizer = {
    .name = "tokenizer",
    .synopsis = "train TEXT... --out FILE [--force] | encode [TEXT...] --tokenizer FILE | decode [ID...] "
                "--tokenizer FILE",
    .summary = "train a byte-pair tokenizer, encode text, decode ids",
    .details = "encode and decode read standard input when no TEXT or ID is given.",
    .examples = "Train a tokenizer of 4096 ids on a text.\n"
                "./train tokenizer train book.txt --vocab-size 4096 --out book.tiktoken\n"
                "Encode with it.\n./train tokenizer encode --tokenizer book.tiktoken <book.txt\n",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_tokenizer,
};
