// A corpus of text files, read into memory and split into training text and a held-out tail.
#ifndef ZERO_DATA_CORPUS_H
#define ZERO_DATA_CORPUS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#define CORPUS_END_OF_TEXT "<|endoftext|>" // GPT-2's marker between documents

struct corpus_text {
    const char *path;
    char *text; // NUL-terminated
    size_t bytes;
    size_t train_bytes; // for training; the rest is held out
};
struct corpus {
    struct corpus_text *texts; // documents, in order
    int n_texts;
    size_t bytes, train_bytes; // totals
};

// Reads the files; "-" is standard input. An empty file counts as a document.
//   held_out    fraction of all bytes to hold out, from the end of the corpus
//   documents   CORPUS_END_OF_TEXT in a text ends a document
// The split point moves to the end of its document, with `documents` and where there is a marker; else to the
// end of its line; within the last line of a text, to the end of its UTF-8 character. STATUS_INVALID: a file
// is absent.
enum status corpus_read(struct corpus *corpus, const char *const *paths, int n_paths, double held_out,
                        bool documents) MUST_CHECK;
// The next document of a text, from *at on, which moves behind it and its marker. Returns false at the end.
// Without `documents`, all of the text is one.
//   end               of the text
//   document, bytes   [out] without the marker; may be empty
bool corpus_next_document(const char **at, const char *end, bool documents, const char **document,
                          size_t *bytes);
// Warns of each text that is not UTF-8 (or holds zero bytes), with the offset of its first bad byte; and,
// without `documents`, of markers.
//   use   what is done with the text: "encoded", "learned"
void corpus_warn(const struct corpus *corpus, bool documents, const char *use);
void corpus_free(struct corpus *corpus);

#endif
