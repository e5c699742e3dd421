// Internal to ./train tokenize: its flags, and the token shards that it writes. Until all shards are
// complete, they are in OUT/tokenize.unfinished, with a record of their inputs. A shard gets its final name
// there when it is finished, so that the same command keeps it after a kill.
#ifndef ZERO_CLI_TOKENIZE_TOKENIZE_H
#define ZERO_CLI_TOKENIZE_TOKENIZE_H

#include "data/shard.h"
#include "data/text/sources.h"
#include "data/tokenizer/tokenizer.h"

struct tokenize_options {
    const char *out, *tokenizer_path; // tokenizer_path: NULL only with `raw`
    const char *field;                // --field, for JSON Lines; NULL: not given
    const char *dtype;                // "uint16", "uint32"; NULL: not given
    double held_out;
    int64_t shard_tokens;
    bool end_of_text, raw, force;
};

// The counts of a split so far; a restart continues from them.
struct split_counts {
    uint64_t n_tokens, n_bytes, n_documents;
    uint64_t n_kept;   // tokens in the finished shards
    uint64_t is_ended; // the split is complete
};
// One split being written, shard by shard.
struct split_writer {
    const char *name; // "train", "val"
    const char *folder;
    size_t shard_tokens, token_bytes;
    struct tokenizer_identity tokenizer; // recorded in each shard
    struct shard_writer shard;           // the last shard, while it is open
    bool is_open;
    struct split_counts counts;
};
struct output {
    const char *folder;
    struct split_writer train, val;
};
// The counts of a source; bytes and checksum are those of its file.
struct source_counts {
    uint64_t documents, text_bytes, tokens;
    uint64_t bytes, checksum;
};
// The inputs of the shards, as recorded in meta.json.
struct meta {
    const struct tokenizer *tokenizer; // NULL: not known (--raw)
    const char *tokenizer_path;
    const char *const *paths;            // (n_sources)
    const struct source_counts *sources; // (n_sources)
    int n_sources;
};

// Initializes the output. Tokens have 4 bytes if the tokenizer's ids do not fit into 2, or if options->dtype
// requests it.
void output_init(struct output *output, const struct tokenize_options *options,
                 const struct tokenizer_identity *tokenizer);
// Adds tokens. Tokens of finished shards that were kept (counts.n_kept) are only counted.
enum status split_add(struct split_writer *split, const int32_t *ids, size_t n) MUST_CHECK;
// Finishes the last shard.
enum status split_end(struct split_writer *split) MUST_CHECK;
// Whether the shards of the first counts.n_kept tokens exist, all complete.
bool split_is_kept(const struct split_writer *split);
void split_report(const struct split_writer *split);

// Moves the fraction `held_out` from the end of `train` to `val`. The cut is at the next start of a document,
// or inside a single document. `train` must have ended, and `val` must be empty.
enum status output_hold_out(struct output *output, double held_out,
                            const struct tokenizer *tokenizer) MUST_CHECK;
// Moves the shards to the folder, removes other shards of an earlier run, and writes meta.json.
enum status output_publish(struct output *output, const struct meta *meta) MUST_CHECK;
// XXH3 of a file.
enum status meta_checksum(const char *path, uint64_t *checksum) MUST_CHECK;
// Closes the open shards. Removes all shards, unless `keep` keeps the finished ones for a restart.
void output_abandon(struct output *output, bool keep);
// The number of a split's shard from its file name ("train-00002.bin"), or -1 for another name.
int output_shard_index(const char *name, const char *split);
// "FOLDER/tokenize.unfinishedNAME"
char *output_unfinished_path(const char *folder, const char *name);

// Shows progress: on a terminal one line that is redrawn, elsewhere one line per minute.
struct tokenize_shown {
    double began_s, shown_s;           // base/clock.h
    uint64_t began_bytes, total_bytes; // bytes of the files; total_bytes 0: unknown
};
//   done    bytes read of all files
//   tokens  tokens of all splits so far
void tokenize_show(struct tokenize_shown *shown, uint64_t done, uint64_t tokens);

// Tokenizes the sources into shards and publishes them.
enum status texts_tokenize(const struct tokenize_options *options, const struct tokenizer *tokenizer,
                           const struct text_sources *sources) MUST_CHECK;

#endif
