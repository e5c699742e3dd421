// Inside ./train tokenize: its flags, and the token shards that it writes. They and a record of their inputs
// are in OUT/tokenize.unfinished until all are complete. A shard gets its name there when it is finished, so
// that the same command keeps it after a kill.
#ifndef ZERO_CLI_TOKENIZE_TOKENIZE_H
#define ZERO_CLI_TOKENIZE_TOKENIZE_H

#include "data/shard.h"
#include "data/text/sources.h"
#include "data/tokenizer/tokenizer.h"

struct tokenize_options {
    const char *out, *tokenizer_path; // tokenizer_path: NULL only with `raw`
    const char *field;                // of JSON Lines; NULL: not given
    const char *dtype;                // "uint16", "uint32"; NULL: not given
    double held_out;
    int64_t shard_tokens;
    bool end_of_text, raw, force;
};

// What a split has become so far; a restart goes on with it.
struct split_counts {
    uint64_t n_tokens, n_bytes, n_documents;
    uint64_t n_kept;   // tokens of the finished shards
    uint64_t is_ended; // nothing can be added any more
};
// One split being written, shard by shard.
struct split_writer {
    const char *name; // "train", "val"
    const char *folder;
    size_t shard_tokens, token_bytes;
    struct tokenizer_identity tokenizer; // recorded in each shard
    struct shard_writer shard;           // the last one, while it is open
    bool is_open;
    struct split_counts counts;
};
struct output {
    const char *folder;
    struct split_writer train, val;
};
// What a source has become; bytes and checksum are of its file.
struct source_counts {
    uint64_t documents, text_bytes, tokens;
    uint64_t bytes, checksum;
};
// What meta.json says that the shards were made of.
struct meta {
    const struct tokenizer *tokenizer; // NULL: not known (--raw)
    const char *tokenizer_path;
    const char *const *paths;            // (n_sources)
    const struct source_counts *sources; // (n_sources)
    int n_sources;
};

// Tokens have 4 bytes if the tokenizer has more ids than fit into 2, or options->dtype says so.
void output_init(struct output *output, const struct tokenize_options *options,
                 const struct tokenizer_identity *tokenizer);
// Adds tokens; those of a finished shard that was kept (counts.n_kept) are only counted.
enum status split_add(struct split_writer *split, const int32_t *ids, size_t n) MUST_CHECK;
// Finishes the last shard.
enum status split_end(struct split_writer *split) MUST_CHECK;
// Whether the shards of counts.n_kept tokens are there, all in full.
bool split_is_kept(const struct split_writer *split);
void split_report(const struct split_writer *split);

// Moves the last tokens of `train`, which has ended, to `val`, which is empty: the fraction `held_out`, from
// the next start of a document on; of a single document, from that place on.
enum status output_hold_out(struct output *output, double held_out,
                            const struct tokenizer *tokenizer) MUST_CHECK;
// Moves the shards to the folder, removes other shards of an earlier run, and writes meta.json.
enum status output_publish(struct output *output, const struct meta *meta) MUST_CHECK;
// XXH3 of a file.
enum status meta_checksum(const char *path, uint64_t *checksum) MUST_CHECK;
// Closes the open shards. Unless finished ones are to be kept for a restart, removes all.
void output_abandon(struct output *output, bool keep);
// The number of a split's shard from its file name ("train-00002.bin"), or -1 for another name.
int output_shard_index(const char *name, const char *split);
// "FOLDER/tokenize.unfinishedNAME"
char *output_unfinished_path(const char *folder, const char *name);

// What is shown meanwhile: on a terminal a line that is redrawn, elsewhere one per minute.
struct tokenize_shown {
    double began_s, shown_s;           // base/clock.h
    uint64_t began_bytes, total_bytes; // of files; total_bytes 0: not known
};
//   done    bytes of all files
//   tokens  of all splits so far
void tokenize_show(struct tokenize_shown *shown, uint64_t done, uint64_t tokens);

// Tokenizes the sources into shards, and publishes them.
enum status texts_tokenize(const struct tokenize_options *options, const struct tokenizer *tokenizer,
                           const struct text_sources *sources) MUST_CHECK;

#endif
