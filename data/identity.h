// The identity of a list of token shards: a fingerprint of their content and order and, in a mixture, of
// the sources and their shares. It does not depend on paths. Ranks compare their identities, and a resumed
// run compares its own with the checkpoint's: different shards would mean a different order of sequences.
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

// The identity of one shard. If there are more than IDENTITY_MAX_ENTRIES shards, each entry covers
// shards_per_entry consecutive shards. An entry has no pointers, because ranks send entries as bytes.
struct identity_entry {
    uint64_t tokens, checksum;
    char name[IDENTITY_NAME_BYTES]; // file name of the first shard, for messages: ASCII, may be truncated
};

// A source of a mixture: consecutive shards, and the share of rows that come from them.
struct identity_source {
    uint32_t n_shards;
    double share;
};

struct identity {
    uint64_t n_shards, n_tokens;
    uint64_t digest; // hash of all shards' sizes and checksums, in order, and of the sources
    uint32_t shards_per_entry, n_entries;
    struct identity_entry *entries;
    uint32_t n_sources; // 0: not a mixture
    struct identity_source sources[IDENTITY_MAX_SOURCES];
};

// Starts the identity of n_shards shards; then call identity_add for each, in order. The checksum of a
// shard covers the number of its tokens and 8 evenly spaced samples of 2,048 tokens each. In a shard of up
// to 8 x 2,048 tokens, it covers all of them.
void identity_init(struct identity *identity, int n_shards);
enum status identity_add(struct identity *identity, struct shard *shard) MUST_CHECK;
// Records a source of a mixture. Call it after the last identity_add, at most IDENTITY_MAX_SOURCES times.
void identity_add_source(struct identity *identity, uint32_t n_shards, double share);
void identity_copy(struct identity *copy, const struct identity *identity);
void identity_free(struct identity *identity);

bool identity_is_same(const struct identity *a, const struct identity *b);

// What identity_add_changes writes after the name of a shard that has changed, is only in the identity
// `before`, or is only in `now`: for example "has changed", "is gone", "is new".
struct identity_words {
    const char *changed, *only_before, *only_now;
};
// Appends how two identities differ, for example "shard 2 (b.bin) has changed, shard 4 (d.bin) is new". If
// only the sources differ, appends for example "source 2 (b.bin) has a share of 0.7 instead of 0.5".
void identity_add_changes(const struct identity *before, const struct identity *now,
                          const struct identity_words *words, struct text *out);

#endif
