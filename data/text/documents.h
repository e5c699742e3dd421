// The documents in texts: plain text, or the strings of JSON Lines. Empty documents are left out. All
// commands that take text read documents with these functions, so that they count and encode the same.
#ifndef ZERO_DATA_TEXT_DOCUMENTS_H
#define ZERO_DATA_TEXT_DOCUMENTS_H

#include "base/text.h"
#include "data/text/reader.h"

struct document_options {
    const char *field; // name in JSON Lines; NULL: "text"
    bool end_of_text;  // CORPUS_END_OF_TEXT ends a document; false: it is text
};

// A document, or its portion in one chunk.
struct document_part {
    const char *text; // valid until the next part
    size_t n;
    bool starts; // false: continues the document of the previous chunk
};

// Iterates over the document portions in a chunk. Start with zeros; free with documents_free. Keep `line`
// from one chunk to the next.
struct documents {
    const struct document_options *options;
    const char *source; // name of the source, for messages; NULL: plain text
    const char *lines, *end;
    uint64_t number; // number of the next line
    const char *at, *text_end;
    bool starts;
    struct text line;
    uint64_t n_markers; // markers that count as text
};
void documents_begin(struct documents *documents, const struct document_options *options,
                     const struct text_source *source, const struct text_batch *batch,
                     const struct text_chunk *chunk);
//   part   [out] with n == 0 at the end
// STATUS_INVALID: a line of JSON is malformed or has no such string.
enum status documents_next(struct documents *documents, struct document_part *part) MUST_CHECK;
void documents_free(struct documents *documents);

// Returns the number of bytes before the first byte that is zero or not UTF-8; n if there is none.
size_t documents_valid_bytes(const char *text, size_t n);
// Warns of that byte, at bad_at in its chunk.
//   use   what is done with the text: "encoded", "learned"
void documents_warn_of_encoding(const struct text_source *source, const struct text_batch *batch,
                                const struct text_chunk *chunk, size_t bad_at, const char *use);
// Warns of markers that do not end a document.
void documents_warn_of_markers(uint64_t n, const char *use);

// Passes all document portions up to the split to `take`, in order, and warns as above.
//   rules   of the tokenizer, if the text is to be encoded
typedef enum status document_take(void *context, const struct document_part *part);
enum status documents_read(const struct text_sources *sources, const struct document_options *options,
                           struct token_rules rules, struct text_split split, const char *use,
                           document_take *take, void *context) MUST_CHECK;
// Appends the tokens of a file, a folder or standard input.
//   as_shards   also add what ./train tokenize writes before the first and after the last document; false:
//               only what it writes between documents
enum status documents_encode(const char *const *paths, int n_paths, const struct document_options *options,
                             const struct tokenizer *tokenizer, bool as_shards,
                             struct token_list *list) MUST_CHECK;

#endif
