// Batches of tokens as a pure function of (seed, step): resuming needs only the step number, and any number
// of ranks sees the same global batch. A thread reads ahead. Relies on data/shard.
//
// The shards hold sequences of T + 1 tokens, the last being only a target; sequences overlap by that one
// token and never cross from one shard to the next: a shard of n tokens holds (n - 1) / T of them. Without
// shuffle, sequence i of the run is sequence i (modulo their number) in file order, starting at token i * T.
// With shuffle, each epoch is a permutation of all sequences keyed by (seed, epoch), and each epoch shifts
// every shard's grid by an offset in [0, T) keyed likewise (as far as the shard's tail allows), so that
// windows differ.
#ifndef ZERO_DATA_LOADER_H
#define ZERO_DATA_LOADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/status.h"
#include "data/identity.h"

struct loader;

struct loader_options {
    const struct file_list *patterns; // paths or globs of shards, in order
    const char *option;               // the config key that named them ("data.train"), for messages
    int vocab_size;                   // tokens at or above it are refused, with file and token offset
    int seq_len;                      // T
    int batch_size;                   // sequences of one step, over all micro-batches and ranks
    int micro_batch_size;             // B: rows of one loader_batch
    // What this rank will ask for, to be read ahead: rows first_row, first_row + row_stride, ... of a step,
    // then of the step step_stride later. 0: B and 1, all rows of every step.
    int first_row, row_stride, step_stride;
    bool shuffle;
    uint64_t seed;
};

// STATUS_INVALID when a shard is bad or all shards together hold less than one batch (counts named).
enum status loader_new(const struct loader_options *options, struct loader **out) MUST_CHECK;
void loader_delete(struct loader *loader);

// Rows [first_row, first_row + B) of the global batch of `step` (from 0): tokens and targets (B, T), valid
// until the next call. Micro-batch k of rank r of N asks for first_row = (k * N + r) * B. Asking in order
// finds the batch already read by the thread. STATUS_INVALID for a token beyond the vocabulary: the batch
// given before then stays valid.
enum status loader_batch(struct loader *loader, int64_t step, int first_row, const int32_t **tokens,
                         const int32_t **targets) MUST_CHECK;

// Begins a new order of sequences at `first_step`, whose first row is the first of the order's epoch 0. For
// data that changed on the way; without a call the order begins at step 0. Before the first loader_batch.
void loader_begin_order(struct loader *loader, int64_t first_step, uint64_t seed);
const struct identity *loader_identity(const struct loader *loader);

size_t loader_n_tokens(const struct loader *loader);    // in all shards
size_t loader_n_sequences(const struct loader *loader); // in one epoch
int loader_n_shards(const struct loader *loader);

#endif
