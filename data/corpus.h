// Where the documents of a text end, and where it is split into training text and a held-out tail.
#ifndef ZERO_DATA_CORPUS_H
#define ZERO_DATA_CORPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define CORPUS_END_OF_TEXT "<|endoftext|>" // GPT-2's marker between documents

// The next document of a text, from *at on, which moves behind it and its marker. Returns false at the end.
// Without `documents`, all of the text is one.
//   end               of the text
//   document, bytes   [out] without the marker; may be empty
bool corpus_next_document(const char **at, const char *end, bool documents, const char **document,
                          size_t *bytes);
// The bytes of a text wherever they are.
struct corpus_bytes {
    enum status (*read)(void *context, uint64_t offset, size_t n, char *out); // n bytes, within `bytes`
    void *context;
    uint64_t bytes;
};
// Where to split a text so that about `wanted` bytes come before: at the end of its document, with
// `documents` and where there is a marker; else at the end of its line; within the last line, at the end of
// its UTF-8 character. Memory does not grow with the text.
enum status corpus_split_point(const struct corpus_bytes *text, uint64_t wanted, bool documents,
                               uint64_t *point) MUST_CHECK;

#endif
