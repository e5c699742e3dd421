// The identity of a list of token shards: a fingerprint of their content and order, independent of paths.
// Ranks compare their identities, and a resumed run compares its own with the checkpoint's. A different list
// of shards would mean a different order of sequences.
#ifndef ZERO_DATA_IDENTITY_H
#define ZERO_DATA_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "data/shard.h"

#define IDENTITY_MAX_ENTRIES 1024
#define IDENTITY_NAME_BYTES  48
#define IDENTITY_MAX_SOURCES 256

// One shard, or several consecutive ones if there are more than IDENTITY_MAX_ENTRIES shards. It has no
// pointers: ranks send entries as bytes.
struct identity_entry {
    uint64_t tokens, checksum;
    char name[IDENTITY_NAME_BYTES]; // file name of the first shard, for messages; printable ASCII; may be
                                    // truncated
};

// A source of a mixture: consecutive shards, and the share of rows that come from them.
struct identity_source {
    uint32_t n_shards;
    double share;
};

struct identity {
    uint64_t n_shards, n_tokens;
    uint64_t digest; // of the sources, and of all shards' sizes and checksums, in order
    uint32_t shards_per_entry, n_entries;
    struct identity_entry *entries;
    uint32_t n_sources; // 0: not a mixture
    struct identity_source sources[IDENTITY_MAX_SOURCES];
};

// Starts the identity of n_shards shards; then call identity_add for each, in order. A shard's checksum
// covers its size and 8 evenly spaced samples of 2,048 tokens (the whole shard if it is smaller).
void identity_init(struct identity *identity, int n_shards);
enum status identity_add(struct identity *identity, struct shard *shard) MUST_CHECK;
// Records a source of a mixture. Call it after the last shard was added, at most IDENTITY_MAX_SOURCES times.
void identity_add_source(struct identity *identity, uint32_t n_shards, double share);
void identity_copy(struct identity *copy, const struct identity *identity);
void identity_free(struct identity *identity);

bool identity_is_same(const struct identity *a, const struct identity *b);

// Appends how two identities differ: "shard 2 (b.bin) has changed, shard 4 (d.bin) is new". If the shards are
// the same: "source 2 (b.bin) has a share of 0.7 instead of 0.5".
//   words   the verbs
struct identity_words {
    const char *changed, *only_before, *only_now; // "has changed", "is gone", "is new"
};
void identity_add_changes(const struct identity *before, const struct identity *now,
                          const struct identity_words *words, struct text *out);

#endif
