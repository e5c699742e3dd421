// The data loader. With the same data and options, a batch depends only on (seed, step). So a resumed run
// needs only the step number, and the global batch does not depend on the number of ranks. A thread
// prefetches the next batch. Uses data/shard and data/order.
//
// Rows are counted over all steps since the order began (loader_begin_order). In a mixture, data/order
// assigns each row a source. The row gets the next sequence of that source. So each source has its own
// epochs:
// - Without shuffle, sequences come in file order and repeat after the last.
// - With shuffle, each epoch visits all sequences in a permutation that depends on (seed, source, epoch).
//   In each epoch, the sequences of a shard are also shifted towards the shard's end, so that they begin at
//   other tokens than in other epochs. The shift depends on (seed, source, shard, epoch). It is at most
//   seq_len - 1 tokens, and at most the number of tokens left after the shard's last whole sequence.
#ifndef ZERO_DATA_LOADER_H
#define ZERO_DATA_LOADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/status.h"
#include "base/token_batch.h"
#include "data/identity.h"
#include "data/shard.h"

// ---- the sources of a run's data: sets of token shards, opened and checked. Most data has one source; a
// mixture has several, each with a weight.
//
// Shards of all sources are numbered consecutively, and so are their sequences. A sequence is T + 1 tokens of
// one shard (T: seq_len); its last token is only a target. Consecutive sequences overlap by that token, so a
// shard of n tokens has (n - 1) / T sequences, rounded down.

struct source_option {
    const struct file_list *patterns; // paths or globs of shards, in order
    // Weight relative to the other sources: above 0 for all sources, or 0 for all. If it is 0, the number of
    // the source's sequences is the weight.
    double weight;
};

struct sources_options {
    const struct source_option *list; // (n), 1 <= n <= IDENTITY_MAX_SOURCES
    int n;
    const char *option; // config option that names the shards ("data.train"), for messages
    // Fraction of each source's tokens to hold out, from its end; 0: none. If these tokens contain no whole
    // sequence, more are held out: the last T + 1 tokens of the last shard that has at least T + 1, and all
    // shards after it. This is not done if no whole sequence would be left before them.
    double held_out;
    bool of_held_out; // true: read the held-out tokens; false: the tokens before them
    int seq_len;      // T
};

struct source {
    char *option; // "data.train" if there is only one source, else "data.train[1]"
    char *name;   // its first pattern as written, for messages
    int first_shard, n_shards;
    size_t n_tokens, n_sequences;
    double share; // fraction of all rows that come from this source; the shares add up to 1
};

struct sources {
    char *option; // "data.train"
    struct source *list;
    int n;
    struct shard *shards;   // (n_shards) shards of all sources
    size_t *first_sequence; // (n_shards + 1) index of each shard's first sequence, then the number of all
    int n_shards, seq_len;
    size_t n_tokens;
    struct identity identity;
    struct tokenizer_identity tokenizer; // the one that the shards record; n_ids 0: no shard records one
    const struct shard *tokenizer_shard; // the first shard that records a tokenizer
    // Ring buffer of the indices of the n_open shards whose files are open: at most most_open, so that the
    // process's limit on open files does not limit the number of shards. next_open is the slot for the next
    // shard that is opened.
    int *open_shards, n_open, most_open, next_open;
};

// Opens all shards. Free with sources_free, also after a failure. Keeps no pointer into the options.
// STATUS_INVALID: a pattern matches nothing, a shard is damaged, two shards were made with different
// tokenizers, or a source has no sequence.
enum status sources_open(struct sources *sources, const struct sources_options *options) MUST_CHECK;
void sources_free(struct sources *sources);

// ---- the loader

struct loader;

struct loader_options {
    struct sources_options sources; // its seq_len is ignored; the one below is used
    int vocab_size;                 // loader_batch fails if a token id is at or above it
    int seq_len;                    // T
    int batch_size;                 // sequences per step, over all micro-batches and ranks
    // Returns the number of rows in all steps before `step`, for runs whose batch size changes between
    // steps. NULL: every step has batch_size rows. Called by the functions below, not by the prefetching
    // thread.
    uint64_t (*rows_before)(const void *context, int64_t step);
    const void *context;  // passed to rows_before
    int micro_batch_size; // B: sequences (rows) per loader_batch
    // Which micro-batches this rank will request, so that they are prefetched. It makes passes over a step:
    // the first pass takes those that begin at rows first_row, first_row + row_stride, ...; each further pass
    // begins pass_stride rows later than the pass before, and at a row below row_stride. After the last pass
    // comes the step that is step_stride later. row_stride 0 means B, pass_stride 0 means row_stride, and
    // step_stride 0 means 1.
    int first_row, row_stride, pass_stride, step_stride;
    bool shuffle;
    uint64_t seed;
    // Computes the weights (T) of a sequence's targets from its tokens (T + 1) alone. The prefetching thread
    // calls it too. NULL: all weights are 1.
    void (*weigh)(const int32_t *tokens, int T, float *weights);
};

// Opens the sources and starts the prefetching thread. STATUS_INVALID: for the same reasons as in
// sources_open. If there are fewer sequences than rows in a batch, a batch continues with the next epoch
// and repeats some sequences.
enum status loader_new(const struct loader_options *options, struct loader **out) MUST_CHECK;
void loader_delete(struct loader *loader);

// Returns a micro-batch: rows [first_row, first_row + B) of the global batch of `step`. Steps count from 0.
//   first_row   with N ranks, micro-batch k of rank r begins at row (k * N + r) * B
//   (zero/partition/logical.h) batch       [out] valid until the next call; `weights` is NULL unless the
//   loader has options.weigh or a
//               row is padding (loader_spread)
// Requests in the order of loader_options are prefetched; others are read in this call.
// STATUS_INVALID: a token is outside the vocabulary. The batch returned by the previous call stays valid.
enum status loader_batch(struct loader *loader, int64_t step, int first_row,
                         struct token_batch *batch) MUST_CHECK;
// True if the loader has options.weigh.
bool loader_is_weighted(const struct loader *loader);
// Sums the weights of all targets in a step's micro-batches of this rank: those that begin at rows
// options.first_row, options.first_row + options.pass_stride, ... Reads their tokens from the shards. Call
// it only if the loader has options.weigh: otherwise all weights are 1.
enum status loader_sum_weights(struct loader *loader, int64_t step, double *sum) MUST_CHECK;

// Sets the token that begins a document. loader_batch computes token_batch.starts from it. -1, the default:
// every sequence is one document. Call it before the first loader_batch.
void loader_set_document_start(struct loader *loader, int32_t token);
// Starts a new order of sequences: `first_step` gets the first sequences of epoch 0 under `seed`. For
// resumed runs whose data has changed. Without this call, the order starts at step 0 under options.seed. Call
// it before the first loader_batch.
void loader_begin_order(struct loader *loader, int64_t first_step, uint64_t seed);
// Finds where the sequence of a row of the global batch of `step` is stored.
//   path, token   [out] path of the shard, and index of the sequence's first token in it; `path` is valid as
//                 long as the loader
void loader_locate(struct loader *loader, int64_t step, int row, const char **path, size_t *token);
// For a loader without shuffle: makes all rows come from one source, which has N sequences. Rows 0 to n - 1
// are n evenly spaced sequences: row i is sequence i * N / n, rounded down. With n == 0 or n >= N, rows 0 to
// N - 1 are all N sequences, in order. Later rows are padding: they repeat these sequences, with weight 0.
void loader_spread(struct loader *loader, int source, size_t n);
const struct sources *loader_sources(const struct loader *loader);
// Returns how many rows of the steps before n_steps come from a source. Counts from the step at which the
// current order of sequences began.
uint64_t loader_n_drawn(const struct loader *loader, int source, int64_t n_steps);
const struct identity *loader_identity(const struct loader *loader);
// Returns the tokenizer of the shards; n_ids is 0 if no shard records one.
const struct tokenizer_identity *loader_tokenizer(const struct loader *loader);

size_t loader_n_tokens(const struct loader *loader);    // in all shards, as selected by of_held_out
size_t loader_n_sequences(const struct loader *loader); // in one epoch of all sources
int loader_n_shards(const struct loader *loader);

#endif
