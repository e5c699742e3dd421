// Holds the whole text in memory. For a larger corpus, run ./train tokenize several times.
#include "data/corpus.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

static enum status read_text(struct corpus_text *text) {
    const char *path = strcmp(text->path, "-") == 0 ? "/dev/stdin" : text->path;
    return file_read_stream(path, SIZE_MAX / 2, &text->text, &text->bytes);
}

// Where to split the text so that about `wanted` bytes come before: after a line, else after a UTF-8
// character.
static size_t split_point(const struct corpus_text *text, size_t wanted) {
    if (wanted >= text->bytes)
        return text->bytes;
    const char *newline = memchr(text->text + wanted, '\n', text->bytes - wanted);
    size_t at = newline ? (size_t)(newline - text->text) + 1 : text->bytes;
    if (at < text->bytes || wanted == 0)
        return wanted == 0 ? 0 : at;
    at = wanted;
    while (at < text->bytes && ((unsigned char)text->text[at] & 0xC0) == 0x80)
        at++;
    return at;
}

static void split(struct corpus *corpus, double held_out) {
    size_t wanted = (size_t)((double)corpus->bytes * (1 - held_out));
    for (int i = 0; i < corpus->n_texts; i++) {
        struct corpus_text *text = &corpus->texts[i];
        text->train_bytes = held_out > 0 ? split_point(text, wanted) : text->bytes;
        wanted -= wanted < text->train_bytes ? wanted : text->train_bytes;
        corpus->train_bytes += text->train_bytes;
    }
}

enum status corpus_read(struct corpus *corpus, const char *const *paths, int n_paths, double held_out) {
    *corpus = (struct corpus){.texts = calloc((size_t)n_paths + 1, sizeof *corpus->texts)};
    if (!corpus->texts)
        return FAIL(STATUS_FAILED, "out of memory for %d texts", n_paths);
    for (int i = 0; i < n_paths; i++) {
        struct corpus_text *text = &corpus->texts[corpus->n_texts++];
        text->path = paths[i];
        TRY(read_text(text));
        corpus->bytes += text->bytes;
    }
    split(corpus, held_out);
    return STATUS_OK;
}

void corpus_free(struct corpus *corpus) {
    for (int i = 0; i < corpus->n_texts; i++)
        free(corpus->texts[i].text);
    free(corpus->texts);
    *corpus = (struct corpus){0};
}
