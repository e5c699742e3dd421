// Holds the whole text in memory. For a larger corpus, run ./train tokenize several times.
#include "data/corpus.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "data/file_kind.h"
#include "data/utf8.h"

static enum status read_text(struct corpus_text *text) {
    const char *path = strcmp(text->path, "-") == 0 ? "/dev/stdin" : text->path;
    return file_read_stream(path, SIZE_MAX / 2, &text->text, &text->bytes);
}

#define MARKER_BYTES (sizeof CORPUS_END_OF_TEXT - 1)

static const char *find_marker(const char *text, size_t bytes) {
    return memmem(text, bytes, CORPUS_END_OF_TEXT, MARKER_BYTES);
}

bool corpus_next_document(const char **at, const char *end, bool documents, const char **document,
                          size_t *bytes) {
    if (*at >= end)
        return false;
    const char *marker = documents ? find_marker(*at, (size_t)(end - *at)) : NULL;
    *document = *at;
    *bytes = (size_t)((marker ? marker : end) - *at);
    *at = marker ? marker + MARKER_BYTES : end;
    return true;
}

// ---- warnings

static size_t count_markers(const struct corpus *corpus) {
    size_t n = 0;
    for (int i = 0; i < corpus->n_texts; i++) {
        const struct corpus_text *text = &corpus->texts[i];
        const char *end = text->text + text->bytes;
        for (const char *at = text->text; (at = find_marker(at, (size_t)(end - at))); at += MARKER_BYTES)
            n++;
    }
    return n;
}

static void warn_of_encoding(const struct corpus_text *text, const char *use) {
    const char *zero = memchr(text->text, '\0', text->bytes);
    const size_t valid = utf8_valid_bytes(text->text, text->bytes),
                 bad = zero && (size_t)(zero - text->text) < valid ? (size_t)(zero - text->text) : valid;
    if (bad == text->bytes)
        return;
    const enum file_kind kind = file_kind_of(text->text, text->bytes);
    const bool is_named = kind != FILE_KIND_UNKNOWN && kind != FILE_KIND_TEXT && kind != FILE_KIND_TEXT_8_BIT;
    char *advice = file_kind_advice(is_named ? kind : FILE_KIND_TEXT_8_BIT, text->path);
    if (bad < valid && !is_named)
        log_warning("%s is not text: there is a zero byte at offset %zu. It is %s as bytes", text->path, bad,
                    use);
    else
        log_warning("%s is not UTF-8%s%s: byte 0x%02x at offset %zu. It is %s as bytes; %s", text->path,
                    is_named ? " but " : "", is_named ? file_kind_name(kind) : "",
                    (unsigned char)text->text[bad], bad, use, advice ? advice : "");
    free(advice);
}

void corpus_warn(const struct corpus *corpus, bool documents, const char *use) {
    const size_t n_markers = documents ? 0 : count_markers(corpus);
    for (int i = 0; i < corpus->n_texts; i++)
        warn_of_encoding(&corpus->texts[i], use);
    if (n_markers > 0)
        log_warning(CORPUS_END_OF_TEXT " occurs %zu time%s and is %s as text; with --end-of-text it ends a "
                                       "document",
                    n_markers, n_markers == 1 ? "" : "s", use);
}

// Where to split the text so that about `wanted` bytes come before: before a marker, after a line, else after
// a UTF-8 character.
static size_t split_point(const struct corpus_text *text, size_t wanted, bool documents) {
    if (wanted >= text->bytes)
        return text->bytes;
    // From a marker's length before on, so that no marker is cut.
    const size_t from = wanted < MARKER_BYTES ? 0 : wanted - MARKER_BYTES + 1;
    const char *marker = documents && wanted > 0 ? find_marker(text->text + from, text->bytes - from) : NULL;
    if (marker)
        return (size_t)(marker - text->text);
    const char *newline = memchr(text->text + wanted, '\n', text->bytes - wanted);
    size_t at = newline ? (size_t)(newline - text->text) + 1 : text->bytes;
    if (at < text->bytes || wanted == 0)
        return wanted == 0 ? 0 : at;
    at = wanted;
    while (at < text->bytes && ((unsigned char)text->text[at] & 0xC0) == 0x80)
        at++;
    return at;
}

static void split(struct corpus *corpus, double held_out, bool documents) {
    size_t wanted = (size_t)((double)corpus->bytes * (1 - held_out));
    for (int i = 0; i < corpus->n_texts; i++) {
        struct corpus_text *text = &corpus->texts[i];
        text->train_bytes = held_out > 0 ? split_point(text, wanted, documents) : text->bytes;
        wanted -= wanted < text->train_bytes ? wanted : text->train_bytes;
        corpus->train_bytes += text->train_bytes;
    }
}

enum status corpus_read(struct corpus *corpus, const char *const *paths, int n_paths, double held_out,
                        bool documents) {
    *corpus = (struct corpus){.texts = calloc((size_t)n_paths + 1, sizeof *corpus->texts)};
    if (!corpus->texts)
        return FAIL(STATUS_FAILED, "out of memory for %d texts", n_paths);
    for (int i = 0; i < n_paths; i++) {
        struct corpus_text *text = &corpus->texts[corpus->n_texts++];
        text->path = paths[i];
        TRY(read_text(text));
        corpus->bytes += text->bytes;
    }
    split(corpus, held_out, documents);
    return STATUS_OK;
}

void corpus_free(struct corpus *corpus) {
    for (int i = 0; i < corpus->n_texts; i++)
        free(corpus->texts[i].text);
    free(corpus->texts);
    *corpus = (struct corpus){0};
}
