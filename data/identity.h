// The identity of token shards: what they hold, whatever their paths. Ranks compare theirs, and a resumed run
// compares it with its checkpoint's, as another list of shards is another order of sequences.
#ifndef ZERO_DATA_IDENTITY_H
#define ZERO_DATA_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "data/shard.h"

#define IDENTITY_MAX_ENTRIES 1024
#define IDENTITY_NAME_BYTES  48

// One shard, or several in a row where there are more than IDENTITY_MAX_ENTRIES. Plain bytes, to be sent.
struct identity_entry {
    uint64_t tokens, checksum;
    char name[IDENTITY_NAME_BYTES]; // file name of the first, printable ASCII, maybe cut: for messages only
};

struct identity {
    uint64_t n_shards, n_tokens;
    uint64_t digest; // over the sizes and checksums of all shards, in order
    uint32_t shards_per_entry, n_entries;
    struct identity_entry *entries;
};

// For n_shards shards, which identity_add then takes in order. A shard's checksum covers its size and 8
// blocks of 2,048 tokens spread evenly over it (all of a shard that is smaller).
enum status identity_init(struct identity *identity, int n_shards) MUST_CHECK;
enum status identity_add(struct identity *identity, struct shard *shard) MUST_CHECK;
enum status identity_copy(struct identity *copy, const struct identity *identity) MUST_CHECK;
void identity_free(struct identity *identity);

bool identity_is_same(const struct identity *a, const struct identity *b);

// How two identities are told apart: "shard 2 (b.bin) has changed, shard 4 (d.bin) is new", with these words.
struct identity_words {
    const char *changed, *only_before, *only_now; // "has changed", "is gone", "is new"
};
void identity_add_changes(const struct identity *before, const struct identity *now,
                          const struct identity_words *words, struct text *out);

#endif
