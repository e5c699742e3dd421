// Encodes the chunks of a batch in parallel. What a chunk becomes follows from the chunk alone.
#ifndef ZERO_CLI_TOKENIZE_ENCODE_H
#define ZERO_CLI_TOKENIZE_ENCODE_H

#include "data/text/reader.h"
#include "data/tokenizer.h"

// What a chunk has become.
struct encoded {
    struct token_list ids; // each document is preceded by tokenizer_add_separator; empty ones are left out
    uint64_t n_documents;  // that begin in the chunk
    uint64_t n_bytes;      // of their text
    uint64_t n_markers;    // that were encoded as text
    size_t bad_at;         // of plain text: the first byte that is not text; the chunk's length when all are
    enum status status;
};

struct encoders;
//   field         of JSON Lines
//   end_of_text   CORPUS_END_OF_TEXT ends a document
enum status encoders_new(const struct tokenizer *tokenizer, const char *field, bool end_of_text,
                         struct encoders **out) MUST_CHECK;
void encoders_delete(struct encoders *encoders); // NULL does nothing

// Encodes a batch, and meanwhile reads the next one: of several threads, one reads first.
//   encoded      [out] (batch->n_chunks) valid until the next call
//   next_status  [out] of text_reader_next(reader, next)
// STATUS_INVALID: the first chunk in the order of the text that is malformed.
enum status encoders_run(struct encoders *encoders, const struct text_sources *sources,
                         const struct text_batch *batch, struct text_reader *reader, struct text_batch *next,
                         const struct encoded **encoded, enum status *next_status) MUST_CHECK;

#endif
