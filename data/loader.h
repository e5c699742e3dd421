// The data loader. A batch is a pure function of (seed, step): a resumed run needs only the step number, and
// the global batch does not depend on the number of ranks. A thread prefetches the next batch. Relies on
// data/sources and data/mixture.
//
// Rows are counted over the whole run. In a mixture of sources, data/mixture gives each row its source; the
// row then gets the next sequence of that source. So each source runs through epochs of its own:
// - Without shuffle, sequences come in file order and repeat after the last.
// - With shuffle, each epoch visits all sequences in a permutation keyed by (seed, source, epoch). Each epoch
//   also shifts the start of every shard's sequences by an offset in [0, T), so that windows differ between
//   epochs. The offset is keyed likewise and limited by the tokens left over at the shard's end.
#ifndef ZERO_DATA_LOADER_H
#define ZERO_DATA_LOADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "data/sources.h"

struct loader;

struct loader_options {
    struct sources_options sources; // seq_len is taken from below
    int vocab_size;                 // tokens at or above it are refused, with file and token offset
    int seq_len;                    // T
    int batch_size;                 // sequences per step, over all micro-batches and ranks
    // Where steps differ in it: the rows of the steps before `step`. NULL: step * batch_size. Called by the
    // functions below only.
    uint64_t (*rows_before)(const void *context, int64_t step);
    const void *context;
    int micro_batch_size; // B: sequences (rows) per loader_batch
    // What this rank will request, for prefetching: rows first_row, first_row + row_stride, ... of a step,
    // then the same rows step_stride steps later. Strides of 0 mean B and 1: all rows of every step.
    int first_row, row_stride, step_stride;
    bool shuffle;
    uint64_t seed;
};

// STATUS_INVALID: as sources_open. With fewer sequences than a batch, a batch repeats some: it goes on with
// the next epoch.
enum status loader_new(const struct loader_options *options, struct loader **out) MUST_CHECK;
void loader_delete(struct loader *loader);

// Returns rows [first_row, first_row + B) of the global batch of `step` (from 0).
//   first_row         (k * N + r) * B for micro-batch k of rank r of N
//   tokens, targets   [out] (B, T), valid until the next call
// Requests in the order of loader_options are already prefetched; others are read in this call.
// STATUS_INVALID: a token is outside the vocabulary; the batch returned before then stays valid.
enum status loader_batch(struct loader *loader, int64_t step, int first_row, const int32_t **tokens,
                         const int32_t **targets) MUST_CHECK;

// Starts a new order of sequences: `first_step` gets the first sequences of epoch 0 under `seed`. For runs
// whose data changed; by default the order starts at step 0. Call it before the first loader_batch.
void loader_begin_order(struct loader *loader, int64_t first_step, uint64_t seed);
// Where a row of a step's batch is.
//   path, token   [out] its shard, and its first token there; valid as long as the loader
void loader_locate(struct loader *loader, int64_t step, int row, const char **path, size_t *token);
// For an unshuffled loader: rows are those of one source only. Rows 0 to n - 1 become n sequences evenly
// spaced over it (row i is sequence i N / n of N, rounded down), and repeat from there on. n == 0, or at
// least N: all sequences, in order.
void loader_spread(struct loader *loader, int source, size_t n);
const struct sources *loader_sources(const struct loader *loader);
// How many rows of a source the steps before n_steps have, from the start of the current order on.
uint64_t loader_n_drawn(const struct loader *loader, int source, int64_t n_steps);
const struct identity *loader_identity(const struct loader *loader);
// The tokenizer that the shards were made with; n_ids 0 if none of them records one.
const struct tokenizer_identity *loader_tokenizer(const struct loader *loader);

size_t loader_n_tokens(const struct loader *loader);    // in all shards
size_t loader_n_sequences(const struct loader *loader); // in one epoch of every source
int loader_n_shards(const struct loader *loader);

#endif
