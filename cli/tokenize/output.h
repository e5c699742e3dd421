// The token shards of ./train tokenize. They are written as NAME.unfinished, so that an interrupted run can
// go on with them, and get their names together at the end.
#ifndef ZERO_CLI_TOKENIZE_OUTPUT_H
#define ZERO_CLI_TOKENIZE_OUTPUT_H

#include "base/text.h"
#include "cli/tokenize/options.h"
#include "data/shard.h"
#include "data/tokenizer.h"

// One split being written, shard by shard.
struct split_writer {
    const char *name; // "train", "val"
    const char *folder;
    size_t shard_tokens, token_bytes;
    struct tokenizer_identity tokenizer; // recorded in each shard
    struct shard_writer shard;           // the last one, while it is open
    bool is_open;
    uint64_t n_tokens, n_bytes, n_documents;
};
struct output {
    const char *folder;
    struct split_writer train, val;
};

// Tokens have 4 bytes if the tokenizer has more ids than fit into 2, or options->dtype says so.
void output_init(struct output *output, const struct tokenize_options *options,
                 const struct tokenizer_identity *tokenizer);
// Opens the shards that have room left, after n_tokens of an earlier run were set.
enum status output_continue(struct output *output) MUST_CHECK;
enum status split_add(struct split_writer *split, const int32_t *ids, size_t n) MUST_CHECK;
// Flushes to disk what was added so far.
enum status output_sync(struct output *output) MUST_CHECK;
// Finishes the last shards; nothing can be added any more.
enum status output_finish(struct output *output) MUST_CHECK;
int split_n_shards(const struct split_writer *split);

// Moves the last tokens of `train`, which is finished, to `val`, which is empty: the fraction `held_out`,
// from the next start of a document on; of a single document, from that place on. The shards of `train` keep
// what was moved until output_publish.
enum status output_hold_out(struct output *output, double held_out,
                            const struct tokenizer *tokenizer) MUST_CHECK;

// Gives the shards their names and removes other shards of an earlier run; then does the same with meta.json.
// Can be repeated after it was interrupted.
//   add_meta   appends the contents of meta.json, once the shards are there
enum status output_publish(struct output *output, enum status (*add_meta)(void *context, struct text *json),
                           void *context) MUST_CHECK;
// Closes the shards and leaves them for a later run; or removes what is unfinished.
void output_keep(struct output *output);
enum status output_discard(struct output *output) MUST_CHECK;

// The number of a split's shard from its file name ("train-00002.bin"), or -1 for another name.
//   suffix   "" or FILE_UNFINISHED
int output_shard_index(const char *name, const char *split, const char *suffix);
// "FOLDER/train-00002.bin"; NULL when out of memory.
char *output_shard_path(const struct split_writer *split, int index);

#endif
