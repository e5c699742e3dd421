// ./train tokenizer train|encode|decode: trains a byte-pair tokenizer, encodes text, decodes ids.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/log.h"
#include "base/output.h"
#include "base/overwrite.h"
#include "cli/commands.h"
#include "data/corpus.h"
#include "data/text/documents.h"
#include "data/tokenizer/tokenizer.h"

static int64_t vocab_size = 4096;
static double held_out = 0;
static const char *out_path = NULL, *tokenizer_path = NULL;
static struct document_options documents;
static bool force = false;

static const struct arg flags[] = {
    {"--vocab-size", ARG_INTEGER, &vocab_size, 257, 65536,
     "train: number of ids, including end-of-text (4096)"},
    {"--split", ARG_NUMBER, &held_out, 0, 0.99,
     "train: fraction of the text, from its end, to leave out (0)"},
    {"--out", ARG_STRING, &out_path, 0, 0, "train: the file to write, in tiktoken's format (required)"},
    {"--end-of-text", ARG_FLAG, &documents.end_of_text, 0, 0,
     "train, encode: read <|endoftext|> as the end of a document, not as text"},
    {"--field", ARG_STRING, &documents.field, 0, 0,
     "train, encode: inputs are JSON Lines, and this member of each line's object is the text (\"text\")"},
    {"--force", ARG_FLAG, &force, 0, 0, "train: overwrite any file at --out"},
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

// The text that a tokenizer is trained on.
struct training_text {
    struct text text;
    size_t *starts; // (n) byte offsets in `text` at which documents begin
    size_t n, capacity;
};

static enum status take_part(void *context, const struct document_part *part) {
    struct training_text *training = context;
    if (part->starts) {
        RESERVE(training->starts, training->n + 1, training->capacity);
        training->starts[training->n++] = training->text.length;
    }
    text_add_bytes(&training->text, part->text, part->n);
    return STATUS_OK;
}

// Cuts off about the fraction --split at the end of the text, as ./train tokenize does when sizes are not
// known in advance. The cut is at the first document that begins in this fraction; if there is none, at the
// last document. A single document is cut at the fraction.
static void hold_out(struct training_text *training) {
    const size_t target = (size_t)((double)training->text.length * (1 - held_out));
    size_t n = 1, end = target > 0 ? target : 1;
    for (size_t i = 1; i < training->n; i++) {
        end = training->starts[n = i];
        if (end >= target)
            break;
    }
    training->text.length = end;
    training->n = n;
}

static enum status read_training_text(const struct text_sources *sources, struct training_text *training) {
    struct text_split split;
    TRY(text_sources_split(sources, held_out, documents.end_of_text, &split));
    TRY(documents_read(sources, &documents, (struct token_rules){0}, split, "learned", take_part, training));
    if (held_out > 0 && !text_sources_are_sized(sources) && training->text.length > 0)
        hold_out(training);
    return training->text.length > 0
               ? STATUS_OK
               : FAIL(STATUS_INVALID, "train tokenizer train: %s contains no text", sources->list[0].path);
}

static enum status train_on(const struct training_text *training) {
    struct tokenizer *tokenizer = NULL;
    TRY(tokenizer_train(training->text.data, training->text.length, training->starts, training->n,
                        (int)vocab_size, &tokenizer));
    const size_t first_missing = file_first_missing(out_path);
    enum status status = make_out_folder();
    if (status == STATUS_OK)
        status = tokenizer_save(tokenizer, out_path);
    if (status != STATUS_OK)
        file_remove_made(out_path, first_missing);
    if (status == STATUS_OK)
        log_info("%s: %d ids from %zu bytes of text", out_path, tokenizer_n_ids(tokenizer),
                 training->text.length);
    tokenizer_delete(tokenizer);
    return status;
}

static enum status train_tokenizer(const char *const *paths, int n_paths) {
    struct text_sources sources;
    struct training_text training = {0};
    if (!out_path)
        return FAIL(STATUS_INVALID, "train tokenizer train: --out FILE is missing");
    if (n_paths == 0)
        return FAIL(STATUS_INVALID, "train tokenizer train: expected text files (- for standard input)");
    const struct overwrite overwrite = {.writer = "train tokenizer train",
                                        .inputs = paths,
                                        .n_inputs = n_paths,
                                        .is_kind = tokenizer_is_file,
                                        .kind = "a tokenizer",
                                        .force = force};
    TRY(overwrite_check(&overwrite, out_path));
    TRY(text_sources_find(paths, n_paths, documents.field != NULL, &sources));
    enum status status = read_training_text(&sources, &training);
    if (status == STATUS_OK)
        status = train_on(&training);
    text_sources_free(&sources);
    text_free(&training.text);
    free(training.starts);
    return status;
}

static enum status encode(const struct tokenizer *tokenizer, const char *const *paths, int n_paths) {
    static const char *const standard_input[] = {"-"};
    struct token_list list = {0};
    enum status status = documents_encode(n_paths ? paths : standard_input, n_paths ? n_paths : 1, &documents,
                                          tokenizer, false, &list);
    for (size_t i = 0; i < list.n && status == STATUS_OK; i++)
        printf("%" PRId32 "%c", list.ids[i], i + 1 < list.n ? ' ' : '\n');
    token_list_free(&list);
    return status;
}

// Parses token ids from text and appends them to the list.
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
    .details =
        "TEXT is as for train tokenize: a file, a folder or -; compressed or not; plain or JSON Lines.\n"
        "encode and decode read standard input when no TEXT or ID is given.",
    .examples =
        "Train a tokenizer of 4096 ids on a text.\n"
        "./train tokenizer train book.txt --vocab-size 4096 --out book.tiktoken\n"
        "Encode a text with this tokenizer.\n./train tokenizer encode --tokenizer book.tiktoken <book.txt\n",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_tokenizer,
};
