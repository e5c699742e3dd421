// The data loader. A batch is a pure function of (seed, step): a resumed run needs only the step number, and
// the global batch does not depend on the number of ranks. A thread prefetches the next batch. Uses
// data/shard and data/order.
//
// Rows are counted over the whole run. In a mixture, data/order assigns each row a source; the row gets the
// next sequence of that source. So each source has its own epochs:
// - Without shuffle, sequences come in file order and repeat after the last.
// - With shuffle, each epoch visits all sequences in a permutation keyed by (seed, source, epoch). Each epoch
//   also shifts the start of every shard's sequences by an offset in [0, T), so that windows differ between
//   epochs. The offset is keyed in the same way, and limited by the tokens left over at the shard's end.
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
// one shard; its last token is only a target. Consecutive sequences overlap by that token, so a shard of n
// tokens has (n - 1) / T sequences.

struct source_option {
    const struct file_list *patterns; // paths or globs of shards, in order
    double weight;                    // above 0; or 0 in all sources: weigh them by their number of sequences
};

struct sources_options {
    const struct source_option *list; // (n), 1 <= n <= IDENTITY_MAX_SOURCES
    int n;
    const char *option; // config option that names them ("data.train"), for messages
    double held_out;    // fraction of each source's tokens, from the end, that is held out; more, where it
                        // would hold no sequence: the last one, and what comes after it. 0: none
    bool of_held_out;   // use the held-out tokens instead of those before them
    int seq_len;        // T
};

struct source {
    char *option; // "data.train" if there is only one source, else "data.train[1]"
    char *name;   // its first pattern as written, for messages
    int first_shard, n_shards;
    size_t n_tokens, n_sequences;
    double share; // fraction of the rows of a batch; all sources add up to 1
};

struct sources {
    char *option; // "data.train"
    struct source *list;
    int n;
    struct shard *shards;   // (n_shards) shards of all sources
    size_t *first_sequence; // (n_shards + 1) index of each shard's first sequence, then the total
    int n_shards, seq_len;
    size_t n_tokens;
    struct identity identity;
    struct tokenizer_identity tokenizer; // of the shards that record a tokenizer
    const struct shard *tokenizer_shard; // the first shard that records one
    // Ring of the shards whose files are open. It is bounded, so any number of shards can be read.
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
    struct sources_options sources; // seq_len is set from the member below
    int vocab_size; // tokens at or above it are refused; the message has file and token offset
    int seq_len;    // T
    int batch_size; // sequences per step, over all micro-batches and ranks
    // If batch sizes differ between steps: the number of rows in the steps before `step`. NULL: step *
    // batch_size. Called only by the functions below.
    uint64_t (*rows_before)(const void *context, int64_t step);
    const void *context;
    int micro_batch_size; // B: sequences (rows) per loader_batch
    // What this rank will request, for prefetching: rows first_row, first_row + row_stride, ... of a step,
    // then the same rows step_stride steps later. Strides of 0 mean B and 1: all rows of every step.
    int first_row, row_stride, step_stride;
    bool shuffle;
    uint64_t seed;
    // Computes the weights (T) of a sequence's targets from its tokens (T + 1) alone. The prefetching thread
    // calls it too. NULL: all weights are 1.
    void (*weigh)(const int32_t *tokens, int T, float *weights);
};

// STATUS_INVALID: as sources_open. If there are fewer sequences than rows in a batch, a batch continues with
// the next epoch and repeats some.
enum status loader_new(const struct loader_options *options, struct loader **out) MUST_CHECK;
void loader_delete(struct loader *loader);

// Returns rows [first_row, first_row + B) of the global batch of `step` (from 0).
//   first_row   (k * N + r) * B for micro-batch k of rank r of N
//   batch       [out] valid until the next call; `weights` is NULL unless the loader has options.weigh or a
//               row is padding (loader_spread)
// Requests in the order of loader_options are prefetched; others are read in this call.
// STATUS_INVALID: a token is outside the vocabulary. The batch returned by the previous call stays valid.
enum status loader_batch(struct loader *loader, int64_t step, int first_row,
                         struct token_batch *batch) MUST_CHECK;
// True if the loader has options.weigh.
bool loader_is_weighted(const struct loader *loader);
// Sums the weights of all targets that this rank requests for a step: rows options.first_row,
// options.first_row + options.row_stride, ... Reads them, so it is for loaders with options.weigh.
enum status loader_sum_weights(struct loader *loader, int64_t step, double *sum) MUST_CHECK;

// Sets the token that begins a document, for `starts` of batches; -1, the default: every sequence is one
// document. Call it before the first loader_batch.
void loader_set_document_start(struct loader *loader, int32_t token);
// Starts a new order of sequences: `first_step` gets the first sequences of epoch 0 under `seed`. For runs
// whose data changed; otherwise the order starts at step 0. Call it before the first loader_batch.
void loader_begin_order(struct loader *loader, int64_t first_step, uint64_t seed);
// Finds the sequence of a row of a step's batch.
//   path, token   [out] its shard, and its first token there; valid as long as the loader
void loader_locate(struct loader *loader, int64_t step, int row, const char **path, size_t *token);
// For an unshuffled loader: rows are those of one source only. Rows 0 to n - 1 become n sequences evenly
// spaced over it (row i is sequence i N / n of N, rounded down). n == 0, or at least N: all sequences, in
// order. Later rows are padding: they repeat these sequences, and their targets have weight 0.
void loader_spread(struct loader *loader, int source, size_t n);
const struct sources *loader_sources(const struct loader *loader);
// Returns how many rows the steps before n_steps take from a source, since the start of the current order.
uint64_t loader_n_drawn(const struct loader *loader, int source, int64_t n_steps);
const struct identity *loader_identity(const struct loader *loader);
// Returns the tokenizer of the shards; n_ids is 0 if no shard records one.
const struct tokenizer_identity *loader_tokenizer(const struct loader *loader);

size_t loader_n_tokens(const struct loader *loader);    // in all shards
size_t loader_n_sequences(const struct loader *loader); // in one epoch of every source
int loader_n_shards(const struct loader *loader);

#endif
