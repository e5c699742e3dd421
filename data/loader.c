// Double buffering: a thread fills one batch while the trainer uses the other. Which sequence goes into which
// row is computed; no order is stored.
#include "data/loader.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "data/mixture.h"
#include "data/permutation.h"

struct batch {
    int64_t step;
    uint64_t begin; // the step's first row in the order
    int first_row;
    bool filled;
    // The first token outside the vocabulary, if any. Reported only when the batch is requested, because a
    // prefetched batch may never be.
    const struct shard *bad_shard;
    size_t bad_token;
    uint32_t bad_value;
    int32_t *tokens, *targets; // (B, T)
};

struct loader {
    struct loader_options options;
    struct sources sources;
    struct mixture mixture;
    int64_t first_step; // of the order of sequences
    int spread_source;  // loader_spread; -1: rows have the sources of the mixture
    size_t n_spread;    // 0: all sequences
    int32_t *row;       // (T + 1) tokens of a sequence, as read

    struct batch batches[2];
    int current; // index of the batch that the caller uses
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool running, wanted, stopping; // wanted: the thread must fill batches[1 - current]
};

// ---- from rows to tokens

// Each source has its own orders. The first one's are those of data with a single source.
static uint64_t seed_of(const struct loader *loader, int source) {
    return loader->options.seed + (uint64_t)source * 0xD1B54A32D192ED03u;
}

// How many tokens an epoch shifts a shard's sequences: at most the tokens left over at its end, so that no
// sequence is lost.
//   index   of the shard within its source
static size_t epoch_shift(const struct loader *loader, const struct shard *shard, size_t n_sequences,
                          int index, uint64_t epoch, uint64_t seed) {
    size_t T = (size_t)loader->options.seq_len;
    size_t slack = shard->n_tokens - 1 - n_sequences * T;
    return rng_below(seed, RNG_STREAM_SHUFFLE, (epoch << 24 | (uint64_t)index) + (1ull << 63),
                     (slack < T - 1 ? slack : T - 1) + 1);
}

// Finds the sequence for a row of a source: its shard, and its first token there.
//   row   counted from the start of the run, of the rows that have this source
static struct shard *locate_in_source(struct loader *loader, int which, uint64_t row, size_t *start) {
    struct sources *sources = &loader->sources;
    const struct source *source = &sources->list[which];
    const size_t T = (size_t)loader->options.seq_len, n_sequences = source->n_sequences,
                 n_rows = loader->n_spread ? loader->n_spread : n_sequences;
    const uint64_t epoch = row / n_rows, seed = seed_of(loader, which);
    size_t sequence = row % n_rows;
    if (n_rows < n_sequences) // sequence n_sequences / n_rows, in two parts so that the product stays small
        sequence = n_sequences / n_rows * sequence + n_sequences % n_rows * sequence / n_rows;
    if (loader->options.shuffle)
        sequence = permutation_at(seed, epoch, n_sequences, sequence);
    sequence += source_first_sequence(sources, source);
    const int index = sources_find_shard(sources, sequence);
    struct shard *shard = sources_shard(sources, index);
    const size_t first = sources->first_sequence[index], end = sources->first_sequence[index + 1];
    *start = (sequence - first) * T;
    if (loader->options.shuffle)
        *start += epoch_shift(loader, shard, end - first, index - source->first_shard, epoch, seed);
    return shard;
}

// The same for a row of the batches, counted from the start of the run.
static struct shard *locate_row(struct loader *loader, uint64_t row, size_t *start) {
    if (loader->spread_source >= 0)
        return locate_in_source(loader, loader->spread_source, row, start);
    uint64_t index;
    const int source = mixture_at(&loader->mixture, row, &index);
    return locate_in_source(loader, source, index, start);
}

static void take_row(struct loader *loader, const struct shard *shard, size_t start, struct batch *batch,
                     int b) {
    size_t T = (size_t)loader->options.seq_len;
    const int32_t *row = loader->row;
    int32_t *tokens = batch->tokens + (size_t)b * T, *targets = batch->targets + (size_t)b * T;
    const uint32_t vocab_size = (uint32_t)loader->options.vocab_size;
    uint32_t worst = (uint32_t)row[0];
    for (size_t i = 0; i < T; i++) {
        tokens[i] = row[i];
        targets[i] = row[i + 1];
        worst = (uint32_t)targets[i] > worst ? (uint32_t)targets[i] : worst;
    }
    if (worst < vocab_size)
        return;
    size_t bad = 0;
    while ((uint32_t)row[bad] < vocab_size)
        bad++;
    batch->bad_shard = shard;
    batch->bad_token = shard->first_token + start + bad;
    batch->bad_value = (uint32_t)row[bad];
}

// Rows of the order before a step.
static uint64_t rows_before(const struct loader *loader, int64_t step) {
    const struct loader_options *options = &loader->options;
    const int64_t first = loader->first_step, steps = step > first ? step - first : 0;
    return options->rows_before ? options->rows_before(options->context, first + steps) -
                                      options->rows_before(options->context, first)
                                : (uint64_t)steps * (uint64_t)options->batch_size;
}

// ahead: prefetching. A failure is then not recorded, because the batch may never be requested. The batch
// stays unfilled, and a request for it reads again.
static enum status fill_batch(struct loader *loader, struct batch *batch, bool ahead) {
    size_t n = (size_t)loader->options.seq_len + 1;
    batch->bad_shard = NULL;
    for (int b = 0; b < loader->options.micro_batch_size && !batch->bad_shard; b++) {
        size_t start;
        struct shard *shard = locate_row(loader, batch->begin + (uint64_t)(batch->first_row + b), &start);
        if (ahead && !shard_try_read(shard, start, n, loader->row))
            return STATUS_OK;
        if (!ahead)
            TRY(shard_read(shard, start, n, loader->row));
        take_row(loader, shard, start, batch, b);
    }
    batch->filled = true;
    return STATUS_OK;
}

static enum status check_batch(const struct loader *loader, const struct batch *batch) {
    int vocab_size = loader->options.vocab_size;
    if (!batch->bad_shard)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: token %zu of the shard is %u, outside the vocabulary of %d (ids 0 to %d); the shard was "
                "written with another tokenizer, or model.vocab_size is too small",
                batch->bad_shard->path, batch->bad_token, batch->bad_value, vocab_size, vocab_size - 1);
}

// ---- the thread

static void *read_ahead(void *argument) {
    struct loader *loader = argument;
    pthread_mutex_lock(&loader->lock);
    while (!loader->stopping) {
        if (!loader->wanted) {
            pthread_cond_wait(&loader->changed, &loader->lock);
            continue;
        }
        struct batch *batch = &loader->batches[1 - loader->current];
        pthread_mutex_unlock(
            &loader->lock); // loader_batch waits until wanted is false before it uses this batch
        (void)fill_batch(loader, batch, true);
        pthread_mutex_lock(&loader->lock);
        loader->wanted = false;
        pthread_cond_broadcast(&loader->changed);
    }
    pthread_mutex_unlock(&loader->lock);
    return NULL;
}

static int64_t batch_of(const struct loader *loader, int64_t step) {
    const struct loader_options *options = &loader->options;
    return options->rows_before ? (int64_t)(options->rows_before(options->context, step + 1) -
                                            options->rows_before(options->context, step))
                                : options->batch_size;
}

// The batch to prefetch after this one: the next rows of the step, or the first rows of the next step.
static void expect_next(const struct loader *loader, const struct batch *now, struct batch *next) {
    const struct loader_options *options = &loader->options;
    int row = now->first_row + options->row_stride;
    const bool same_step = row + options->micro_batch_size <= batch_of(loader, now->step);
    next->step = same_step ? now->step : now->step + options->step_stride;
    next->begin = rows_before(loader, next->step);
    next->first_row = same_step ? row : options->first_row;
    next->filled = false;
}

enum status loader_batch(struct loader *loader, int64_t step, int first_row, const int32_t **tokens,
                         const int32_t **targets) {
    pthread_mutex_lock(&loader->lock);
    while (loader->wanted)
        pthread_cond_wait(&loader->changed, &loader->lock);
    struct batch *batch = &loader->batches[1 - loader->current];
    enum status status = STATUS_OK;
    const uint64_t begin = rows_before(loader, step);
    if (!batch->filled || batch->step != step || batch->begin != begin || batch->first_row != first_row) {
        // Not prefetched (the first batch, or out of order): read it here.
        batch->step = step;
        batch->begin = begin;
        batch->first_row = first_row;
        batch->filled = false;
        status = fill_batch(loader, batch, false);
    }
    if (status == STATUS_OK)
        status = check_batch(loader, batch);
    if (status == STATUS_OK) {
        loader->current = 1 - loader->current;
        expect_next(loader, batch, &loader->batches[1 - loader->current]);
        loader->wanted = true;
        pthread_cond_broadcast(&loader->changed);
        *tokens = batch->tokens;
        *targets = batch->targets;
    }
    pthread_mutex_unlock(&loader->lock);
    return status;
}

// ---- opening

static enum status start_thread(struct loader *loader) {
    size_t bytes =
        (size_t)loader->options.micro_batch_size * (size_t)loader->options.seq_len * sizeof(int32_t);
    for (int i = 0; i < 2; i++) {
        loader->batches[i].tokens = malloc(bytes);
        loader->batches[i].targets = malloc(bytes);
        if (!loader->batches[i].tokens || !loader->batches[i].targets)
            return FAIL(STATUS_FAILED, "out of memory for batches of %zu bytes", bytes);
    }
    loader->row = calloc((size_t)loader->options.seq_len + 1, sizeof *loader->row);
    if (!loader->row)
        return FAIL(STATUS_FAILED, "out of memory for a sequence of %d tokens", loader->options.seq_len);
    if (pthread_create(&loader->thread, NULL, read_ahead, loader) != 0)
        return FAIL(STATUS_FAILED, "cannot start the thread that prefetches %s", loader->sources.option);
    loader->running = true;
    return STATUS_OK;
}

static void init_mixture(struct loader *loader) {
    double shares[IDENTITY_MAX_SOURCES];
    for (int i = 0; i < loader->sources.n; i++)
        shares[i] = loader->sources.list[i].share;
    mixture_init(&loader->mixture, shares, loader->sources.n, loader->options.seed);
}

enum status loader_new(const struct loader_options *options, struct loader **out) {
    *out = NULL;
    struct loader *loader = calloc(1, sizeof *loader);
    if (!loader)
        return FAIL(STATUS_FAILED, "out of memory for a loader");
    loader->options = *options;
    loader->options.row_stride = options->row_stride ? options->row_stride : options->micro_batch_size;
    loader->options.step_stride = options->step_stride ? options->step_stride : 1;
    loader->spread_source = -1;
    pthread_mutex_init(&loader->lock, NULL);
    pthread_cond_init(&loader->changed, NULL);
    struct sources_options of_sources = options->sources;
    of_sources.seq_len = options->seq_len;
    enum status status = sources_open(&loader->sources, &of_sources);
    if (status == STATUS_OK)
        init_mixture(loader);
    if (status == STATUS_OK)
        status = start_thread(loader);
    loader->options.sources = (struct sources_options){0}; // owned by the caller; not used again
    if (status != STATUS_OK) {
        loader_delete(loader);
        return status;
    }
    *out = loader;
    return STATUS_OK;
}

void loader_delete(struct loader *loader) {
    if (!loader)
        return;
    if (loader->running) {
        pthread_mutex_lock(&loader->lock);
        loader->stopping = true;
        pthread_cond_broadcast(&loader->changed);
        pthread_mutex_unlock(&loader->lock);
        pthread_join(loader->thread, NULL);
    }
    pthread_mutex_destroy(&loader->lock);
    pthread_cond_destroy(&loader->changed);
    for (int i = 0; i < 2; i++) {
        free(loader->batches[i].tokens);
        free(loader->batches[i].targets);
    }
    sources_free(&loader->sources);
    free(loader->row);
    free(loader);
}

void loader_begin_order(struct loader *loader, int64_t first_step, uint64_t seed) {
    loader->first_step = first_step;
    loader->options.seed = seed;
    init_mixture(loader);
}

void loader_locate(struct loader *loader, int64_t step, int row, const char **path, size_t *token) {
    size_t start;
    pthread_mutex_lock(&loader->lock);
    while (loader->wanted)
        pthread_cond_wait(&loader->changed, &loader->lock);
    const struct shard *shard = locate_row(loader, rows_before(loader, step) + (uint64_t)row, &start);
    *path = shard->path;
    *token = shard->first_token + start;
    pthread_mutex_unlock(&loader->lock);
}

void loader_spread(struct loader *loader, int source, size_t n) {
    pthread_mutex_lock(&loader->lock);
    while (loader->wanted)
        pthread_cond_wait(&loader->changed, &loader->lock);
    loader->spread_source = source;
    loader->n_spread = n < loader->sources.list[source].n_sequences ? n : 0;
    loader->batches[1 - loader->current].filled = false; // prefetched under the old rule
    pthread_mutex_unlock(&loader->lock);
}

const struct sources *loader_sources(const struct loader *loader) {
    return &loader->sources;
}

uint64_t loader_n_drawn(const struct loader *loader, int source, int64_t n_steps) {
    return mixture_count(&loader->mixture, source, rows_before(loader, n_steps));
}

const struct identity *loader_identity(const struct loader *loader) {
    return &loader->sources.identity;
}

const struct tokenizer_identity *loader_tokenizer(const struct loader *loader) {
    return &loader->sources.tokenizer;
}

size_t loader_n_tokens(const struct loader *loader) {
    return loader->sources.n_tokens;
}

size_t loader_n_sequences(const struct loader *loader) {
    return loader->sources.first_sequence[loader->sources.n_shards];
}

int loader_n_shards(const struct loader *loader) {
    return loader->sources.n_shards;
}
