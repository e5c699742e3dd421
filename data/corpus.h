// Text files as a corpus: read whole, and split into a part to train on and a held-out tail.
#ifndef ZERO_DATA_CORPUS_H
#define ZERO_DATA_CORPUS_H

#include <stddef.h>

#include "base/status.h"

struct corpus_text {
    const char *path;
    char *text; // NUL-terminated
    size_t bytes;
    size_t train_bytes; // the rest is held out
};
struct corpus {
    struct corpus_text *texts; // documents, in order
    int n_texts;
    size_t bytes, train_bytes; // of all
};

// Reads the files; "-" is standard input. The last `held_out` part by bytes, over all texts, is held out; the
// cut falls after the line in which it would fall, or after the character where that is the text's last line.
// STATUS_INVALID when a file is absent. An empty text is a text.
enum status corpus_read(struct corpus *corpus, const char *const *paths, int n_paths,
                        double held_out) MUST_CHECK;
void corpus_free(struct corpus *corpus);

#endif
