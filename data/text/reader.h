// Reads sources in order and cuts them into chunks, which threads can encode in parallel. A chunk of plain
// text ends where splitting the text does not change its tokens. A chunk of JSON Lines consists of whole
// lines. Memory use does not grow with the sources.
#ifndef ZERO_DATA_TEXT_READER_H
#define ZERO_DATA_TEXT_READER_H

#include "data/text/sources.h"
#include "data/tokenizer/tokenizer.h"

struct text_chunk {
    size_t at, n;          // its bytes: batch.bytes[at .. at + n)
    int source;            // index in text_sources.list
    uint64_t offset, line; // start of the chunk in the source's text: byte offset, and line number from 1
    bool starts_document;  // plain text: true: a document begins; false: it continues the previous chunk's
    bool held_out;         // the chunk is after the split point
};

// A source that has been read to its end.
struct text_source_end {
    int source;
    uint64_t bytes, checksum; // size and XXH3 of the file as stored
};

struct text_batch {
    char *bytes;
    size_t n, capacity;
    struct text_chunk *chunks;
    int n_chunks, chunks_capacity;
    struct text_source_end *ends; // sources that end in this batch
    int n_ends, ends_capacity;
    uint64_t file_bytes; // bytes of all files, as stored, that the reader has read since it was made
};
void text_batch_free(struct text_batch *batch);

struct text_reader;
// Makes a reader that begins with the first source.
//   sources     must outlive the reader
//   rules       the rules of the tokenizer that will encode the chunks
//   split       the split point; the text after it is held out
//   documents   true: CORPUS_END_OF_TEXT ends a document; false: it counts as text
//   target      about how many bytes of text a batch has. With many small sources a batch has fewer, because
//               its number of chunks is limited too
struct text_reader *text_reader_new(const struct text_sources *sources, struct token_rules rules,
                                    struct text_split split, bool documents, size_t target);
void text_reader_delete(struct text_reader *reader); // NULL does nothing
// Replaces the contents of `batch` by the next batch; n_chunks is 0 after the last source. STATUS_INVALID: a
// source cannot be opened, is not text or is damaged, or a line or a word is too long.
enum status text_reader_next(struct text_reader *reader, struct text_batch *batch) MUST_CHECK;

#endif
