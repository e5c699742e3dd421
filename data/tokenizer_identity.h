// The identity of a tokenizer: what token shards and checkpoints record of the one that they were made with.
// Ids of one tokenizer mean nothing to another, even if both have the same number of them.
#ifndef ZERO_DATA_TOKENIZER_IDENTITY_H
#define ZERO_DATA_TOKENIZER_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "data/tokenizer.h"

#define TOKENIZER_NAME_BYTES 64
#define TOKENIZER_MAX_IDS    (1 << 23) // that a model can have (kernels/ops.h: sample)

struct tokenizer_identity {
    int32_t n_ids;                   // including end-of-text. 0: unknown, as in shards of other programs
    int32_t document_start;          // tokenizer_document_start
    uint64_t checksum;               // tokenizer_checksum
    char name[TOKENIZER_NAME_BYTES]; // file name or "bytes", for messages; printable ASCII, may be cut
};

// path: as given to tokenizer_load; its last component becomes the name.
struct tokenizer_identity tokenizer_identify(const struct tokenizer *tokenizer, const char *path);
// Whether both are known and differ. Names do not matter.
bool tokenizer_identity_differs(const struct tokenizer_identity *a, const struct tokenizer_identity *b);
// "my.tiktoken (4096 ids, checksum 0123456789abcdef)". Returns buffer.
#define TOKENIZER_DESCRIPTION_BYTES (TOKENIZER_NAME_BYTES + 64)
const char *tokenizer_identity_describe(const struct tokenizer_identity *identity,
                                        char buffer[TOKENIZER_DESCRIPTION_BYTES]);

#endif
