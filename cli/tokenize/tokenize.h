// Internal to ./train tokenize: its options, and the token shards that it writes. Until all shards are
// complete, they are in OUT/tokenize.unfinished, with a record of their inputs. After a kill, the same
// command keeps the shards that are finished there and continues after them.
#ifndef ZERO_CLI_TOKENIZE_TOKENIZE_H
#define ZERO_CLI_TOKENIZE_TOKENIZE_H

#include "data/shard.h"
#include "data/text/sources.h"
#include "data/tokenizer/tokenizer.h"

struct tokenize_options {
    const char *out, *tokenizer_path; // --out, --tokenizer. tokenizer_path is NULL only with `raw`
    const char *field;                // --field, for JSON Lines; NULL: not given
    const char *dtype;                // --dtype: "uint16" or "uint32"; NULL: not given
    double held_out;                  // --split: fraction of the text for validation
    int64_t shard_tokens;             // tokens per shard
    bool end_of_text, raw, force;
};

// Counts of what has been added to a split so far. A restart continues from them.
struct split_counts {
    uint64_t n_tokens, n_bytes, n_documents; // n_bytes: bytes of the text that the tokens stand for
    uint64_t n_kept;                         // tokens in the finished shards
    uint64_t is_ended;                       // 1: the split is complete
};
// One split being written, shard by shard.
struct split_writer {
    const char *name; // "train", "val"
    const char *folder;
    size_t shard_tokens, token_bytes;
    struct tokenizer_identity tokenizer; // recorded in each shard
    struct shard_writer shard;           // the shard that is being written, if is_open
    bool is_open;
    struct split_counts counts;
};
struct output {
    const char *folder;
    struct split_writer train, val;
};
// What a source contains. `bytes` and `checksum` are those of its file, which may be compressed.
struct source_counts {
    uint64_t documents, text_bytes, tokens;
    uint64_t bytes, checksum;
};
// What meta.json records about the inputs of the shards.
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
// Appends tokens to the split. The first counts.n_kept tokens of the split are in finished shards already,
// so they are counted but not written.
enum status split_add(struct split_writer *split, const int32_t *ids, size_t n) MUST_CHECK;
// Ends the split: finishes its last shard.
enum status split_end(struct split_writer *split) MUST_CHECK;
// Returns true if all shards of the first counts.n_kept tokens exist and are complete.
bool split_is_kept(const struct split_writer *split);
// Logs the counts of the split.
void split_report(const struct split_writer *split);

// Moves about the fraction `held_out` from the end of `train` to `val`. The cut is at the first document that
// begins in this fraction; if there is none, at the last document. A single document is cut at the fraction.
// `train` must have ended, and `val` must be empty.
enum status output_hold_out(struct output *output, double held_out,
                            const struct tokenizer *tokenizer) MUST_CHECK;
// Moves the shards to the folder OUT, removes other shards there, which an earlier run wrote, and writes
// meta.json.
enum status output_publish(struct output *output, const struct meta *meta) MUST_CHECK;
// Computes the XXH3 checksum of a file.
enum status meta_checksum(const char *path, uint64_t *checksum) MUST_CHECK;
// Ends an output that is not published: removes the shards that are being written.
//   keep   keep the finished shards and the record, for a restart; false: remove OUT/tokenize.unfinished
void output_abandon(struct output *output, bool keep);
// Returns the index of a split's shard from its file name: 2 for "train-00002.bin" and "train"; -1 for other
// names.
int output_shard_index(const char *name, const char *split);
// Returns a path, to be freed: FOLDER/tokenize.unfinished if `name` is ""; a file in it if `name` begins with
// "/".
char *output_unfinished_path(const char *folder, const char *name);

// When progress was shown, and what is needed to show speed and time left.
struct tokenize_shown {
    double began_s, shown_s; // clock_monotonic_s at the start and at the last update
    uint64_t began_bytes;    // bytes that were read before began_s
    uint64_t total_bytes;    // bytes of all files; 0: unknown
};
// Shows progress: on a terminal as one line that is redrawn, elsewhere as a message once per minute.
//   done     bytes read so far, of all files
//   tokens   tokens so far, of both splits
void tokenize_show(struct tokenize_shown *shown, uint64_t done, uint64_t tokens);

// Tokenizes the sources into shards and publishes them.
enum status texts_tokenize(const struct tokenize_options *options, const struct tokenizer *tokenizer,
                           const struct text_sources *sources) MUST_CHECK;

#endif
