// Reads sources one after the other and cuts them into chunks for threads to encode. A chunk of plain text
// ends where the encoding of what follows does not depend on it (tokenizer_next_boundary); a chunk of JSON
// Lines is whole lines. Memory does not grow with the sources.
#ifndef ZERO_DATA_TEXT_READER_H
#define ZERO_DATA_TEXT_READER_H

#include "data/text/sources.h"
#include "data/tokenizer/tokenizer.h"

struct text_chunk {
    size_t at, n; // in batch.bytes
    int source;
    uint64_t offset, line; // of its start in the source's text; lines from 1
    bool starts_document;  // plain text: no document of the chunk before goes on
    bool held_out;         // from the split point on
};

// What a source was, once it is read to its end.
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
    uint64_t file_bytes; // of all files, packed, read so far
};
void text_batch_free(struct text_batch *batch);

struct text_reader;
//   sources       must outlive the reader
//   rules         of the tokenizer that will encode the chunks
//   split         plain text from there on is held out
//   documents     CORPUS_END_OF_TEXT ends a document
//   target        bytes of a batch; of many small sources a batch has fewer, as its chunks are limited too
struct text_reader *text_reader_new(const struct text_sources *sources, struct token_rules rules,
                                    struct text_split split, bool documents, size_t target);
void text_reader_delete(struct text_reader *reader); // NULL does nothing
// Reads the next batch; n_chunks is 0 at the end. STATUS_INVALID: a source cannot be read or is damaged, or a
// line or a word is too long.
enum status text_reader_next(struct text_reader *reader, struct text_batch *batch) MUST_CHECK;

#endif
