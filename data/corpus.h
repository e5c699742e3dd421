// A corpus of text files, read into memory and split into training text and a held-out tail.
#ifndef ZERO_DATA_CORPUS_H
#define ZERO_DATA_CORPUS_H

#include <stddef.h>

#include "base/status.h"

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
//   held_out   fraction of all bytes to hold out, from the end of the corpus
// The split point moves to the end of its line; within the last line of a text, to the end of its UTF-8
// character. STATUS_INVALID: a file is absent.
enum status corpus_read(struct corpus *corpus, const char *const *paths, int n_paths,
                        double held_out) MUST_CHECK;
void corpus_free(struct corpus *corpus);

#endif
