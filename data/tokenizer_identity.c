// See data/tokenizer_identity.h.
#include "data/tokenizer_identity.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct tokenizer_identity tokenizer_identify(const struct tokenizer *tokenizer, const char *path) {
    struct tokenizer_identity identity = {.n_ids = tokenizer_n_ids(tokenizer),
                                          .document_start = tokenizer_document_start(tokenizer),
                                          .checksum = tokenizer_checksum(tokenizer)};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    for (size_t i = 0; name[i] && i + 1 < sizeof identity.name; i++)
        identity.name[i] = name[i] >= ' ' && name[i] <= '~' ? name[i] : '?';
    return identity;
}

bool tokenizer_identity_differs(const struct tokenizer_identity *a, const struct tokenizer_identity *b) {
    return a->n_ids > 0 && b->n_ids > 0 && (a->n_ids != b->n_ids || a->checksum != b->checksum);
}

const char *tokenizer_identity_describe(const struct tokenizer_identity *identity,
                                        char buffer[TOKENIZER_DESCRIPTION_BYTES]) {
    snprintf(buffer, TOKENIZER_DESCRIPTION_BYTES, "%s (%" PRId32 " ids, checksum %016" PRIx64 ")",
             identity->name[0] ? identity->name : "a tokenizer", identity->n_ids, identity->checksum);
    return buffer;
}
