// Finds where the documents of a text end, and where to split a text into training and held-out text.
#ifndef ZERO_DATA_CORPUS_H
#define ZERO_DATA_CORPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define CORPUS_END_OF_TEXT "<|endoftext|>" // GPT-2's marker between documents

// Finds the document that begins at *at, and moves *at past it and past the marker that ends it. Returns
// false if *at is the end of the text.
//   end               end of the text
//   documents         true: CORPUS_END_OF_TEXT ends a document; false: the rest of the text is one document
//   document, bytes   [out] the document without the marker; may be empty
bool corpus_next_document(const char **at, const char *end, bool documents, const char **document,
                          size_t *bytes);
// Gives access to a text of `bytes` bytes, in memory or in a file. `read` copies n bytes of the text, from
// `offset` on, to `out`.
struct corpus_bytes {
    enum status (*read)(void *context, uint64_t offset, size_t n, char *out);
    void *context; // passed to `read`
    uint64_t bytes;
};
// Finds the offset at which to split a text in two, near offset `wanted`. Memory use does not grow with the
// text. The first rule that applies decides:
// - `wanted` is 0, or at least the text's length: the split is at the start or the end of the text.
// - `documents` is set: the split is before the first CORPUS_END_OF_TEXT that contains byte `wanted` or
//   follows it, if there is one.
// - Byte `wanted` is not in the last line: the split is after its line.
// - In the last line, the split is before the first UTF-8 character that begins at or after `wanted`.
enum status corpus_split_point(const struct corpus_bytes *text, uint64_t wanted, bool documents,
                               uint64_t *point) MUST_CHECK;

#endif
