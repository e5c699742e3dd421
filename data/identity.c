// Checksums cover samples instead of whole shards, so that starting a run does not read a terabyte of tokens.
// Shards that were tokenized again differ nearly everywhere, so samples detect the change.
#include "data/identity.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"

#define SAMPLE_TOKENS 2048
#define N_SAMPLES     8
#define MOST_NAMED    4 // shards or sources listed in a message

void identity_init(struct identity *identity, int n_shards) {
    uint32_t n = (uint32_t)n_shards, per_entry = (n + IDENTITY_MAX_ENTRIES - 1) / IDENTITY_MAX_ENTRIES;
    *identity = (struct identity){.shards_per_entry = per_entry ? per_entry : 1};
    identity->entries = allocate((size_t)n / identity->shards_per_entry + 1, sizeof *identity->entries);
}

void identity_free(struct identity *identity) {
    free(identity->entries);
    *identity = (struct identity){0};
}

void identity_copy(struct identity *copy, const struct identity *identity) {
    *copy = *identity;
    copy->entries = allocate(identity->n_entries, sizeof *copy->entries);
    if (identity->n_entries > 0)
        memcpy(copy->entries, identity->entries, (size_t)identity->n_entries * sizeof *copy->entries);
}

// Returns the hash of two numbers, with `digest` as its seed. Adding shards one after the other in this way
// makes the result depend on their order.
static uint64_t chain(uint64_t digest, uint64_t tokens, uint64_t checksum) {
    const uint64_t pair[2] = {tokens, checksum};
    return XXH3_64bits_withSeed(pair, sizeof pair, digest);
}

static enum status sample(struct shard *shard, uint64_t *checksum) {
    uint32_t stored[SAMPLE_TOKENS]; // tokens of 2 or 4 bytes
    const size_t n = shard->n_tokens;
    const bool whole = n <= (size_t)N_SAMPLES * SAMPLE_TOKENS;
    *checksum = 0;
    for (size_t i = 0, first = 0; i < N_SAMPLES && first < n; i++) {
        size_t now = n - first < SAMPLE_TOKENS ? n - first : SAMPLE_TOKENS;
        TRY(shard_read_stored(shard, first, now, stored));
        *checksum = XXH3_64bits_withSeed(stored, now * shard->token_bytes, *checksum);
        // The last sample ends at the end of the shard.
        first = whole ? first + SAMPLE_TOKENS : (n - SAMPLE_TOKENS) / (N_SAMPLES - 1) * (i + 1);
        if (!whole && i == N_SAMPLES - 2)
            first = n - SAMPLE_TOKENS;
    }
    return STATUS_OK;
}

static void set_name(struct identity_entry *entry, const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    for (size_t i = 0; name[i] && i + 1 < sizeof entry->name; i++)
        entry->name[i] = name[i] >= ' ' && name[i] <= '~' ? name[i] : '?';
}

enum status identity_add(struct identity *identity, struct shard *shard) {
    uint64_t checksum;
    TRY(sample(shard, &checksum));
    if (identity->n_shards % identity->shards_per_entry == 0)
        set_name(&identity->entries[identity->n_entries++], shard->path);
    struct identity_entry *entry = &identity->entries[identity->n_entries - 1];
    entry->tokens += shard->n_tokens;
    entry->checksum = chain(entry->checksum, shard->n_tokens, checksum);
    identity->n_shards++;
    identity->n_tokens += shard->n_tokens;
    identity->digest = chain(identity->digest, shard->n_tokens, checksum);
    return STATUS_OK;
}

void identity_add_source(struct identity *identity, uint32_t n_shards, double share) {
    uint64_t bits;
    memcpy(&bits, &share, sizeof bits);
    identity->sources[identity->n_sources++] = (struct identity_source){n_shards, share};
    identity->digest = chain(identity->digest, n_shards, bits);
}

bool identity_is_same(const struct identity *a, const struct identity *b) {
    return a->n_shards == b->n_shards && a->n_tokens == b->n_tokens && a->digest == b->digest;
}

// ---- differences between identities

static bool same_entry(const struct identity_entry *a, const struct identity_entry *b) {
    return a->tokens == b->tokens && a->checksum == b->checksum;
}

// Returns for each entry of `a` whether `b` has an equal entry: at the same index, or else at any index.
// Each entry of `b` matches at most one entry of `a`. The caller frees the array.
static bool *match(const struct identity *a, const struct identity *b) {
    bool *matched = allocate(a->n_entries, sizeof *matched), *taken = allocate(b->n_entries, sizeof *taken);
    for (uint32_t i = 0; i < a->n_entries && i < b->n_entries; i++)
        matched[i] = taken[i] = same_entry(&a->entries[i], &b->entries[i]);
    for (uint32_t i = 0; i < a->n_entries; i++)
        for (uint32_t k = 0; k < b->n_entries && !matched[i]; k++)
            if (!taken[k] && same_entry(&a->entries[i], &b->entries[k]))
                matched[i] = taken[k] = true;
    free(taken);
    return matched;
}

static bool has_unmatched(const struct identity *identity, const bool *matched, const char *name) {
    for (uint32_t i = 0; i < identity->n_entries; i++)
        if (!matched[i] && strcmp(identity->entries[i].name, name) == 0)
            return true;
    return false;
}

struct naming {
    struct text *out;
    int n_named, n_left_out;
};

static void name_entry(struct naming *naming, const struct identity *identity, uint32_t i, const char *verb) {
    if (naming->n_named == MOST_NAMED) {
        naming->n_left_out++;
        return;
    }
    const char *comma = naming->n_named++ > 0 ? ", " : "";
    unsigned long long first = (unsigned long long)i * identity->shards_per_entry + 1,
                       last = first + identity->shards_per_entry - 1;
    if (identity->shards_per_entry == 1)
        text_add(naming->out, "%sshard %llu (%s) %s", comma, first, identity->entries[i].name, verb);
    else
        text_add(naming->out, "%sat least one of shards %llu to %llu (%s, ...) %s", comma, first,
                 last < identity->n_shards ? last : identity->n_shards, identity->entries[i].name, verb);
}

static bool has_same_order(const struct identity *a, const struct identity *b) {
    bool same = a->n_entries == b->n_entries;
    for (uint32_t i = 0; same && i < a->n_entries; i++)
        same = same_entry(&a->entries[i], &b->entries[i]);
    return same;
}

static bool same_sources(const struct identity *a, const struct identity *b) {
    bool same = a->n_sources == b->n_sources;
    for (uint32_t i = 0; same && i < a->n_sources; i++)
        same = a->sources[i].n_shards == b->sources[i].n_shards && a->sources[i].share == b->sources[i].share;
    return same;
}

static uint32_t count_sources(const struct identity *identity) {
    return identity->n_sources > 0 ? identity->n_sources : 1;
}

// For two identities with the same shards in the same order: appends how their sources differ.
static void name_sources(const struct identity *before, const struct identity *now, struct text *out) {
    int n_named = 0;
    uint64_t shard = 0;
    if (count_sources(before) != count_sources(now)) {
        text_add(out, "the shards are divided into %u source%s instead of %u", count_sources(now),
                 count_sources(now) == 1 ? "" : "s", count_sources(before));
        return;
    }
    for (uint32_t i = 0; i < now->n_sources; shard += now->sources[i++].n_shards) {
        const struct identity_source *is = &now->sources[i], *was = &before->sources[i];
        const char *name = now->entries[shard / now->shards_per_entry].name;
        if (is->n_shards == was->n_shards && is->share == was->share)
            continue;
        if (++n_named > MOST_NAMED)
            continue;
        text_add(out, "%ssource %u (%s) ", n_named > 1 ? ", " : "", i + 1, name);
        if (is->n_shards != was->n_shards)
            text_add(out, "has %u shards instead of %u", is->n_shards, was->n_shards);
        else
            text_add(out, "has a share of %.6g instead of %.6g", is->share, was->share);
    }
    if (n_named > MOST_NAMED)
        text_add(out, ", and %d more", n_named - MOST_NAMED);
}

void identity_add_changes(const struct identity *before, const struct identity *now,
                          const struct identity_words *words, struct text *out) {
    if (before->shards_per_entry != now->shards_per_entry) {
        text_add(out, "there are too many shards to name those that differ");
        return;
    }
    bool *was = match(before, now), *is = match(now, before);
    struct naming naming = {.out = out};
    for (uint32_t i = 0; i < now->n_entries; i++)
        if (!is[i])
            name_entry(&naming, now, i,
                       has_unmatched(before, was, now->entries[i].name) ? words->changed : words->only_now);
    for (uint32_t i = 0; i < before->n_entries; i++)
        if (!was[i] && !has_unmatched(now, is, before->entries[i].name))
            name_entry(&naming, before, i, words->only_before);
    const bool in_place = naming.n_named == 0 && has_same_order(before, now);
    if (naming.n_left_out > 0)
        text_add(out, ", and %d more", naming.n_left_out);
    else if (in_place && !same_sources(before, now))
        name_sources(before, now, out);
    else if (naming.n_named == 0)
        text_add(out, "the shards are in another order");
    free(was);
    free(is);
}
