// Finds where documents of a text end, and where to split it into training text and a held-out tail.
#ifndef ZERO_DATA_CORPUS_H
#define ZERO_DATA_CORPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define CORPUS_END_OF_TEXT "<|endoftext|>" // GPT-2's marker between documents

// Returns the next document of a text, starting at *at, and moves *at past it and its marker. Returns false
// at the end. Without `documents`, the whole text is one document.
//   end               end of the text
//   document, bytes   [out] without the marker; may be empty
bool corpus_next_document(const char **at, const char *end, bool documents, const char **document,
                          size_t *bytes);
// The bytes of a text, in memory or in files.
struct corpus_bytes {
    enum status (*read)(void *context, uint64_t offset, size_t n, char *out); // reads n bytes within `bytes`
    void *context;
    uint64_t bytes;
};
// Returns where to split a text after about `wanted` bytes. Memory does not grow with the text. The split is
// - at the end of a document, if `documents` is set and a marker follows
// - otherwise at the end of the line
// - within the last line, at the end of a UTF-8 character
enum status corpus_split_point(const struct corpus_bytes *text, uint64_t wanted, bool documents,
                               uint64_t *point) MUST_CHECK;

#endif
