#include "data/corpus.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

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

// ---- splitting a text in two

#define WINDOW_BYTES ((size_t)1 << 20)

// Finds the first `word` that begins at or after `from`.
//   window   scratch (WINDOW_BYTES)
//   at       [out] the offset of `word`; the text's length if it does not occur
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
        *at += n - (length - 1); // the word may begin in the last length - 1 bytes of the window
    }
    *at = text->bytes;
    return STATUS_OK;
}

// Finds the first offset at or after `from` at which a UTF-8 character begins; the text's length if there
// is none.
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
    // A marker that contains byte `wanted` begins at `from` or later. The split must not cut it in two.
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
