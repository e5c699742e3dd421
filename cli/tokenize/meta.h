// meta.json: what token shards were made of, with checksums.
#ifndef ZERO_CLI_TOKENIZE_META_H
#define ZERO_CLI_TOKENIZE_META_H

#include "cli/tokenize/output.h"
#include "data/tokenizer.h"

// What a source has become. done: it was read to its end, and bytes and checksum are of its file.
struct source_counts {
    uint64_t documents, text_bytes, tokens;
    uint64_t bytes, checksum;
    bool done;
};

struct meta {
    const struct tokenizer *tokenizer; // NULL: not known (--raw)
    const char *tokenizer_path;
    const struct output *output;
    const char *const *paths;            // (n_sources)
    const struct source_counts *sources; // (n_sources)
    int n_sources;
};

// Appends meta.json for shards that have their names already; reads them for their checksums.
enum status meta_add(void *meta, struct text *json) MUST_CHECK;
// XXH3 of a file.
enum status meta_checksum(const char *path, uint64_t *checksum) MUST_CHECK;
// Whether a file is a meta.json of token shards.
bool meta_is_file(const char *path);

#endif
