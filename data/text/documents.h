// Iterates over the documents of texts: plain text, or JSON Lines, where each line begins a document. Empty
// documents are left out. All commands that read text use these functions, so that they count and encode
// the same documents.
#ifndef ZERO_DATA_TEXT_DOCUMENTS_H
#define ZERO_DATA_TEXT_DOCUMENTS_H

#include "base/text.h"
#include "data/text/reader.h"

struct document_options {
    const char *field; // JSON Lines: name of the member that holds the text; NULL: "text"
    bool end_of_text;  // true: CORPUS_END_OF_TEXT ends a document; false: it counts as text
};

// A document or, if it spans chunks, its portion in one chunk.
struct document_part {
    const char *text; // valid until the next part is read
    size_t n;         // bytes
    bool starts;      // true: a document begins; false: it continues the previous chunk's document
};

// Iterates over the document parts in a chunk. Zero-initialize it once; then call documents_begin for each
// chunk. Free with documents_free.
struct documents {
    const struct document_options *options;
    const char *source; // JSON Lines: name of the source, for messages; NULL: plain text
    // JSON Lines: the lines of the chunk from `lines` up to `end` have not been read yet.
    const char *lines, *end;
    uint64_t number; // JSON Lines: number of the next line in the source
    // The text from `at` up to `text_end` has not been returned yet. It belongs to the chunk of plain text,
    // or to `line`.
    const char *at, *text_end;
    bool starts;        // a document begins at `at`
    struct text line;   // JSON Lines: the decoded text of the current line
    uint64_t n_markers; // number of CORPUS_END_OF_TEXT in the chunk so far, if it counts as text; else 0
};
// Starts to iterate over a chunk.
//   source   the chunk's source
//   batch    the batch that contains the chunk
void documents_begin(struct documents *documents, const struct document_options *options,
                     const struct text_source *source, const struct text_batch *batch,
                     const struct text_chunk *chunk);
// Returns the next part of the chunk.
//   part   [out] n == 0 at the end of the chunk
// STATUS_INVALID: a line of JSON Lines is malformed, or has no string with the name options.field.
enum status documents_next(struct documents *documents, struct document_part *part) MUST_CHECK;
void documents_free(struct documents *documents);

// Returns the number of bytes before the first byte that is zero or not UTF-8; n if there is none.
size_t documents_valid_bytes(const char *text, size_t n);
// Warns of a byte that is zero or not UTF-8.
//   bad_at   offset of the byte in the chunk
//   use      what is done with the text, for the message: "encoded" or "learned"
void documents_warn_of_encoding(const struct text_source *source, const struct text_batch *batch,
                                const struct text_chunk *chunk, size_t bad_at, const char *use);
// Warns that CORPUS_END_OF_TEXT occurs n times as text. No-op for n == 0.
//   use   as in documents_warn_of_encoding
void documents_warn_of_markers(uint64_t n, const char *use);

// A function that documents_read calls with each part. If it fails, documents_read returns its status at
// once.
typedef enum status document_take(void *context, const struct document_part *part);
// Passes all document parts before the split to `take`, in order. Warns with documents_warn_of_encoding and
// documents_warn_of_markers.
//   rules     the tokenizer's rules, if `take` encodes the text; otherwise zero
//   use       what `take` does with the text, for the warnings: "encoded" or "learned"
//   context   passed to `take`
enum status documents_read(const struct text_sources *sources, const struct document_options *options,
                           struct token_rules rules, struct text_split split, const char *use,
                           document_take *take, void *context) MUST_CHECK;
// Encodes the text of files, folders or standard input (paths as for text_sources_find), and appends the
// tokens to `list`.
//   as_shards   false: add separator tokens only between documents; true: like ./train tokenize, also add a
//               separator before the first document and, if the tokenizer has bos, end-of-text after the last
enum status documents_encode(const char *const *paths, int n_paths, const struct document_options *options,
                             const struct tokenizer *tokenizer, bool as_shards,
                             struct token_list *list) MUST_CHECK;

#endif
