// The sources of a run's data: groups of token shards, opened and checked. Most data has one source; a
// mixture has several, each with a weight. Relies on data/shard and data/identity.
//
// Shards of all sources are numbered one after another, and so are their sequences: T + 1 tokens of one
// shard, of which the last is only a target. Consecutive sequences overlap by that token, so a shard of n
// tokens holds (n - 1) / T sequences.
#ifndef ZERO_DATA_SOURCES_H
#define ZERO_DATA_SOURCES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/file.h"
#include "base/status.h"
#include "data/identity.h"
#include "data/shard.h"

struct source_option {
    const struct file_list *patterns; // paths or globs of shards, in order
    double weight;                    // above 0; or 0 in all sources: by their number of sequences
};

struct sources_options {
    const struct source_option *list; // (n), 1 <= n <= IDENTITY_MAX_SOURCES
    int n;
    const char *option; // config option that names them ("data.train"), for messages
    double held_out;    // fraction of each source's tokens, from the end, that is held out (of few tokens at
                        // least one sequence); 0: none
    bool of_held_out;   // what is held out, instead of what comes before it
    int seq_len;        // T
};

struct source {
    char *option; // "data.train" if it is the only one, else "data.train[1]"
    char *name;   // its first pattern as written, for people
    int first_shard, n_shards;
    size_t n_tokens, n_sequences;
    double share; // of the rows of a batch; those of all sources add up to 1
};

struct sources {
    char *option; // "data.train"
    struct source *list;
    int n;
    struct shard *shards;   // (n_shards) of all sources
    size_t *first_sequence; // (n_shards + 1) number of each shard's first sequence, then the total
    int n_shards, seq_len;
    size_t n_tokens;
    struct identity identity;
    struct tokenizer_identity tokenizer; // of the shards that record one
    const struct shard *tokenizer_shard; // the first of these
    // Ring of the shards whose files are open. It is bounded, so any number of shards can be read.
    int *open_shards, n_open, most_open, next_open;
};

// Opens all shards. Free with sources_free, also after a failure. Keeps no pointer into the options.
// STATUS_INVALID: a pattern matches nothing, a shard is damaged, two shards were made with different
// tokenizers, or a source holds no sequence.
enum status sources_open(struct sources *sources, const struct sources_options *options) MUST_CHECK;
void sources_free(struct sources *sources);

// The shard with this number, kept open to be read; another one may be closed for it.
struct shard *sources_shard(struct sources *sources, int index);
// The number of the shard that holds a sequence.
int sources_find_shard(const struct sources *sources, size_t sequence);
// The number of a source's first sequence.
static inline size_t source_first_sequence(const struct sources *sources, const struct source *source) {
    return sources->first_sequence[source->first_shard];
}

#endif
