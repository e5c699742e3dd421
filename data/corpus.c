// Holds the whole text in memory: for training a tokenizer. ./train tokenize reads chunk by chunk
// (data/text/).
#include "data/corpus.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/file_kind.h"
#include "base/log.h"
#include "base/utf8.h"

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

void corpus_warn_of_encoding(const char *path, enum file_kind kind, uint64_t offset, unsigned char byte,
                             const char *use) {
    const bool is_named = kind != FILE_KIND_UNKNOWN && kind != FILE_KIND_TEXT && kind != FILE_KIND_TEXT_8_BIT;
    char *advice = file_kind_advice(is_named ? kind : FILE_KIND_TEXT_8_BIT, path);
    if (byte == 0 && !is_named)
        log_warning("%s is not text: there is a zero byte at offset %llu. It is %s as bytes", path,
                    (unsigned long long)offset, use);
    else
        log_warning("%s is not UTF-8%s%s: byte 0x%02x at offset %llu. It is %s as bytes; %s", path,
                    is_named ? " but " : "", is_named ? file_kind_name(kind) : "", byte,
                    (unsigned long long)offset, use, advice);
    free(advice);
}

void corpus_warn_of_markers(uint64_t n, const char *use) {
    if (n > 0)
        log_warning(CORPUS_END_OF_TEXT " occurs %llu time%s and is %s as text; with --end-of-text it ends a "
                                       "document",
                    (unsigned long long)n, n == 1 ? "" : "s", use);
}

size_t corpus_text_bytes(const char *text, size_t n) {
    const char *zero = memchr(text, '\0', n);
    return utf8_valid_bytes(text, zero ? (size_t)(zero - text) : n);
}

void corpus_warn(const struct corpus *corpus, bool documents, const char *use) {
    for (int i = 0; i < corpus->n_texts; i++) {
        const struct corpus_text *text = &corpus->texts[i];
        const size_t bad = corpus_text_bytes(text->text, text->bytes);
        if (bad < text->bytes)
            corpus_warn_of_encoding(text->path, file_kind_of(text->text, text->bytes), bad,
                                    (unsigned char)text->text[bad], use);
    }
    corpus_warn_of_markers(documents ? 0 : count_markers(corpus), use);
}

// ---- the split

#define WINDOW_BYTES ((size_t)1 << 20)

// Finds `word` at or after `from`. at: [out] its offset, or `bytes` when it does not occur.
static enum status find_word(const struct corpus_bytes *text, uint64_t from, const char *word, size_t length,
                             char *window, uint64_t *at) {
    for (*at = from; text->bytes - *at >= length;) {
        const uint64_t left = text->bytes - *at;
        const size_t n = left < WINDOW_BYTES ? (size_t)left : WINDOW_BYTES;
        TRY(text->read(text->context, *at, n, window));
        const char *found = memmem(window, n, word, length);
        if (found) {
            *at += (uint64_t)(found - window);
            return STATUS_OK;
        }
        *at += n - (length - 1); // the word may begin in the window's last bytes
    }
    *at = text->bytes;
    return STATUS_OK;
}

// The end of the UTF-8 character that the byte before `from` belongs to.
static enum status find_character_end(const struct corpus_bytes *text, uint64_t from, uint64_t *at) {
    for (*at = from; *at < text->bytes; ++*at) {
        char byte;
        TRY(text->read(text->context, *at, 1, &byte));
        if (((unsigned char)byte & 0xC0) != 0x80)
            break;
    }
    return STATUS_OK;
}

static enum status find_split(const struct corpus_bytes *text, uint64_t wanted, bool documents, char *window,
                              uint64_t *point) {
    // From a marker's length before on, so that no marker is cut.
    const uint64_t from = wanted < MARKER_BYTES ? 0 : wanted - MARKER_BYTES + 1;
    if (documents)
        TRY(find_word(text, from, CORPUS_END_OF_TEXT, MARKER_BYTES, window, point));
    if (documents && *point < text->bytes)
        return STATUS_OK;
    TRY(find_word(text, wanted, "\n", 1, window, point));
    if (*point + 1 >= text->bytes)
        return find_character_end(text, wanted, point);
    ++*point;
    return STATUS_OK;
}

enum status corpus_split_point(const struct corpus_bytes *text, uint64_t wanted, bool documents,
                               uint64_t *point) {
    *point = wanted < text->bytes ? wanted : text->bytes;
    if (wanted == 0 || wanted >= text->bytes)
        return STATUS_OK;
    char *window = allocate(WINDOW_BYTES, 1);
    enum status status = find_split(text, wanted, documents, window, point);
    free(window);
    return status;
}

static enum status read_memory(void *context, uint64_t offset, size_t n, char *out) {
    const struct corpus_text *text = context;
    memcpy(out, text->text + offset, n);
    return STATUS_OK;
}

static enum status split(struct corpus *corpus, double held_out, bool documents) {
    size_t wanted = (size_t)((double)corpus->bytes * (1 - held_out));
    for (int i = 0; i < corpus->n_texts; i++) {
        struct corpus_text *text = &corpus->texts[i];
        uint64_t point = text->bytes;
        if (held_out > 0)
            TRY(corpus_split_point(&(struct corpus_bytes){read_memory, text, text->bytes}, wanted, documents,
                                   &point));
        text->train_bytes = (size_t)point;
        wanted -= wanted < text->train_bytes ? wanted : text->train_bytes;
        corpus->train_bytes += text->train_bytes;
    }
    return STATUS_OK;
}

enum status corpus_read(struct corpus *corpus, const char *const *paths, int n_paths, double held_out,
                        bool documents) {
    *corpus = (struct corpus){.texts = allocate((size_t)n_paths, sizeof *corpus->texts)};
    for (int i = 0; i < n_paths; i++) {
        struct corpus_text *text = &corpus->texts[corpus->n_texts++];
        text->path = paths[i];
        TRY(read_text(text));
        corpus->bytes += text->bytes;
    }
    return split(corpus, held_out, documents);
}

void corpus_free(struct corpus *corpus) {
    for (int i = 0; i < corpus->n_texts; i++)
        free(corpus->texts[i].text);
    free(corpus->texts);
    *corpus = (struct corpus){0};
}
