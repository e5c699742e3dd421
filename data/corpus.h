// A corpus of text files, read into memory and split into training text and a held-out tail.
#ifndef ZERO_DATA_CORPUS_H
#define ZERO_DATA_CORPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file_kind.h"
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
// The split is at corpus_split_point of its text. STATUS_INVALID: a file is absent.
enum status corpus_read(struct corpus *corpus, const char *const *paths, int n_paths, double held_out,
                        bool documents) MUST_CHECK;
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

// The number of bytes before the first that is not UTF-8, or zero; n when all are.
size_t corpus_text_bytes(const char *text, size_t n);
// Warns of that byte, and of markers that are not the end of a document.
//   kind   of the text's start
//   use    what is done with the text: "encoded", "learned"
void corpus_warn_of_encoding(const char *path, enum file_kind kind, uint64_t offset, unsigned char byte,
                             const char *use);
void corpus_warn_of_markers(uint64_t n, const char *use);
// Warns of each text that is not UTF-8 (or holds zero bytes), with the offset of its first bad byte; and,
// without `documents`, of markers.
//   use   what is done with the text: "encoded", "learned"
void corpus_warn(const struct corpus *corpus, bool documents, const char *use);
void corpus_free(struct corpus *corpus);

#endif
