// Reads sources in order and cuts them into chunks for threads to encode. A chunk of plain text ends where
// the encoding of the text after it does not depend on it (tokenizer_next_boundary). A chunk of JSON Lines is
// whole lines. Memory does not grow with the sources.
#ifndef ZERO_DATA_TEXT_READER_H
#define ZERO_DATA_TEXT_READER_H

#include "data/text/sources.h"
#include "data/tokenizer/tokenizer.h"

struct text_chunk {
    size_t at, n; // its bytes: batch.bytes[at .. at + n)
    int source;
    uint64_t offset, line; // start of the chunk in the source's text; lines count from 1
    bool starts_document;  // plain text: it does not continue the previous chunk's document
    bool held_out;         // after the split point
};

// A source that has been read to its end.
struct text_source_end {
    int source;
    uint64_t bytes, checksum; // of the file
};

struct text_batch {
    char *bytes;
    size_t n, capacity;
    struct text_chunk *chunks;
    int n_chunks, chunks_capacity;
    struct text_source_end *ends; // sources that end in this batch
    int n_ends, ends_capacity;
    uint64_t file_bytes; // bytes read of all files, as stored (compressed)
};
void text_batch_free(struct text_batch *batch);

struct text_reader;
//   sources       must outlive the reader
//   rules         of the tokenizer that will encode the chunks
//   split         plain text after it is held out
//   documents     CORPUS_END_OF_TEXT ends a document
//   target        bytes per batch; fewer with many small sources, as the number of chunks is limited too
struct text_reader *text_reader_new(const struct text_sources *sources, struct token_rules rules,
                                    struct text_split split, bool documents, size_t target);
void text_reader_delete(struct text_reader *reader); // NULL does nothing
// Reads the next batch; n_chunks is 0 at the end. STATUS_INVALID: a source cannot be read or is damaged, or a
// line or a word is too long.
enum status text_reader_next(struct text_reader *reader, struct text_batch *batch) MUST_CHECK;

#endif
