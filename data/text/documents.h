// The documents that texts hold: plain text, or the strings of JSON Lines. Empty ones are left out. All
// commands that take text read its documents here, so that they count and encode the same.
#ifndef ZERO_DATA_TEXT_DOCUMENTS_H
#define ZERO_DATA_TEXT_DOCUMENTS_H

#include "base/text.h"
#include "data/text/reader.h"

struct document_options {
    const char *field; // of JSON Lines; NULL: "text"
    bool end_of_text;  // CORPUS_END_OF_TEXT ends a document; else it is text
};

// A document, or what of it is in one chunk.
struct document_part {
    const char *text; // valid until the next part
    size_t n;
    bool starts; // false: it goes on from the chunk before
};

// Iterates over the parts in a chunk. Start with zeros, and free with documents_free; `line` is kept between
// chunks.
struct documents {
    const struct document_options *options;
    const char *source; // its name, for messages; NULL: plain text
    const char *lines, *end;
    uint64_t number; // of the next line
    const char *at, *text_end;
    bool starts;
    struct text line;
    uint64_t n_markers; // that are text
};
void documents_begin(struct documents *documents, const struct document_options *options,
                     const struct text_source *source, const struct text_batch *batch,
                     const struct text_chunk *chunk);
//   part   [out] n is 0 at the end
// STATUS_INVALID: a line of JSON is malformed or has no such string.
enum status documents_next(struct documents *documents, struct document_part *part) MUST_CHECK;
void documents_free(struct documents *documents);

// The number of bytes before the first that is not UTF-8, or zero; n when all are.
size_t documents_valid_bytes(const char *text, size_t n);
// Warns of that byte, bad_at in its chunk.
//   use   what is done with the text: "encoded", "learned"
void documents_warn_of_encoding(const struct text_source *source, const struct text_batch *batch,
                                const struct text_chunk *chunk, size_t bad_at, const char *use);
// Warns of markers that are not the end of a document.
void documents_warn_of_markers(uint64_t n, const char *use);

// Gives `take` all parts up to the split, in order, and warns as above.
//   rules   of the tokenizer, if the parts are to be encoded
typedef enum status document_take(void *context, const struct document_part *part);
enum status documents_read(const struct text_sources *sources, const struct document_options *options,
                           struct token_rules rules, struct text_split split, const char *use,
                           document_take *take, void *context) MUST_CHECK;
// Appends the tokens of a file, a folder or standard input.
//   as_shards   with what ./train tokenize writes before the first document and after the last one; else only
//               what it writes between documents
enum status documents_encode(const char *const *paths, int n_paths, const struct document_options *options,
                             const struct tokenizer *tokenizer, bool as_shards,
                             struct token_list *list) MUST_CHECK;

#endif
