// Double buffering: a thread fills one batch while the trainer uses the other. Which sequence goes into which
// row is computed; no order is stored.
#include "data/loader.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/rng.h"
#include "data/permutation.h"
#include "data/shard.h"

#define MOST_OPEN 256

struct batch {
    int64_t step;
    int first_row;
    bool filled;
    // The first token outside the vocabulary, if any. Reported only when the batch is requested, because a
    // prefetched batch may never be.
    const struct shard *bad_shard;
    size_t bad_token;
    int32_t bad_value;
    int32_t *tokens, *targets; // (B, T)
};

struct loader {
    struct loader_options options;
    char *option;
    struct shard *shards;
    size_t *first_sequence; // (n_shards + 1) index of each shard's first sequence, then the total
    int n_shards;
    size_t n_tokens;
    struct identity identity;
    struct tokenizer_identity tokenizer; // of the shards that record one
    const struct shard *tokenizer_shard; // the first of these
    int64_t first_step;                  // of the order of sequences
    size_t n_spread;                     // loader_spread; 0: all sequences
    uint16_t *row;                       // (T + 1) tokens of a sequence, as read
    // Ring of the shards whose files are open. It is bounded, so any number of shards can be read.
    int *open_shards, n_open, most_open, next_open;

    struct batch batches[2];
    int current; // index of the batch that the caller uses
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool running, wanted, stopping; // wanted: the thread must fill batches[1 - current]
};

// ---- from rows to tokens

// The shard that holds a sequence, by binary search in first_sequence.
static int find_shard(const struct loader *loader, size_t sequence) {
    int low = 0, high = loader->n_shards;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (loader->first_sequence[middle] <= sequence)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// How many tokens an epoch shifts a shard's sequences: at most the tokens left over at its end, so that no
// sequence is lost.
static size_t epoch_shift(const struct loader *loader, const struct shard *shard, size_t n_sequences,
                          int shard_index, uint64_t epoch) {
    size_t T = (size_t)loader->options.seq_len;
    size_t slack = shard->n_tokens - 1 - n_sequences * T;
    return rng_below(loader->options.seed, RNG_STREAM_SHUFFLE,
                     (epoch << 24 | (uint64_t)shard_index) + (1ull << 63),
                     (slack < T - 1 ? slack : T - 1) + 1);
}

// Adds a shard to the ring of open ones. When the ring is full, closes the one opened first.
static void keep_open(struct loader *loader, int index) {
    int *slot = &loader->open_shards[loader->next_open];
    if (loader->n_open == loader->most_open)
        shard_release(&loader->shards[*slot]);
    else
        loader->n_open++;
    *slot = index;
    loader->next_open = (loader->next_open + 1) % loader->most_open;
}

static struct shard *shard_to_read(struct loader *loader, int index) {
    if (loader->shards[index].descriptor < 0)
        keep_open(loader, index);
    return &loader->shards[index];
}

// Finds the sequence for a row, counted from the start of the run: its shard, and its first token there.
static struct shard *locate_row(struct loader *loader, uint64_t row, size_t *start) {
    size_t T = (size_t)loader->options.seq_len, n_sequences = loader_n_sequences(loader);
    size_t n_rows = loader->n_spread ? loader->n_spread : n_sequences;
    uint64_t epoch = row / n_rows;
    size_t sequence = row % n_rows;
    if (n_rows < n_sequences) // sequence n_sequences / n_rows, in two parts so that the product stays small
        sequence = n_sequences / n_rows * sequence + n_sequences % n_rows * sequence / n_rows;
    if (loader->options.shuffle)
        sequence = permutation_at(loader->options.seed, epoch, n_sequences, sequence);
    int index = find_shard(loader, sequence);
    struct shard *shard = shard_to_read(loader, index);
    *start = (sequence - loader->first_sequence[index]) * T;
    if (loader->options.shuffle)
        *start += epoch_shift(
            loader, shard, loader->first_sequence[index + 1] - loader->first_sequence[index], index, epoch);
    return shard;
}

static void take_row(struct loader *loader, const struct shard *shard, size_t start, struct batch *batch,
                     int b) {
    size_t T = (size_t)loader->options.seq_len;
    const uint16_t *row = loader->row;
    int32_t *tokens = batch->tokens + (size_t)b * T, *targets = batch->targets + (size_t)b * T,
            worst = row[0];
    for (size_t i = 0; i < T; i++) {
        tokens[i] = row[i];
        targets[i] = row[i + 1];
        worst = targets[i] > worst ? targets[i] : worst;
    }
    if (worst < loader->options.vocab_size)
        return;
    size_t bad = 0;
    while (row[bad] < loader->options.vocab_size)
        bad++;
    batch->bad_shard = shard;
    batch->bad_token = shard->first_token + start + bad;
    batch->bad_value = row[bad];
}

// ahead: prefetching. A failure is then not recorded, because the batch may never be requested. The batch
// stays unfilled, and a request for it reads again.
static enum status fill_batch(struct loader *loader, struct batch *batch, bool ahead) {
    size_t n = (size_t)loader->options.seq_len + 1;
    int64_t step = batch->step > loader->first_step ? batch->step - loader->first_step : 0;
    batch->bad_shard = NULL;
    for (int b = 0; b < loader->options.micro_batch_size && !batch->bad_shard; b++) {
        size_t start;
        uint64_t row =
            (uint64_t)step * (uint64_t)loader->options.batch_size + (uint64_t)(batch->first_row + b);
        struct shard *shard = locate_row(loader, row, &start);
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
                "%s: token %zu of the shard is %d, outside the vocabulary of %d (ids 0 to %d); the shard was "
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

// The batch to prefetch after this one: the next rows of the step, or the first rows of the next step.
static void expect_next(const struct loader *loader, const struct batch *now, struct batch *next) {
    const struct loader_options *options = &loader->options;
    int row = now->first_row + options->row_stride;
    bool same_step = row + options->micro_batch_size <= options->batch_size;
    next->step = same_step ? now->step : now->step + options->step_stride;
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
    if (!batch->filled || batch->step != step || batch->first_row != first_row) {
        // Not prefetched (the first batch, or out of order): read it here.
        batch->step = step;
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

// What makes or fetches the shards that a config of this repository names, or any others.
static const char *how_to_get(const char *option, const char *pattern) {
    if (strstr(pattern, "fineweb"))
        return "scripts/get_data.sh fetches FineWeb's shards (fineweb-10B, ...); or name shards of your own, "
               "as in "
               "data.train='my/train-*.bin' (./train tokenize my.txt --tokenizer FILE --out my makes them)";
    if (strstr(pattern, "corpus/kjv"))
        return "scripts/corpus_kjv.sh makes the shards of the King James text; or name shards of your own, "
               "as in "
               "data.train='my/train-*.bin' (./train tokenize my.txt --tokenizer FILE --out my makes them)";
    if (strcmp(option, "data.val") == 0)
        return "leave data.val out for the validation shards beside data.train, or set data.val_split to "
               "hold "
               "out a part of data.train";
    return "make token shards of a text with ./train tokenize my.txt --tokenizer FILE --out my, then set "
           "data.train='my/train-*.bin'";
}

static enum status find_shards(const struct loader *loader, struct file_list *paths) {
    const struct file_list *patterns = loader->options.patterns;
    for (int i = 0; i < patterns->n_paths; i++) {
        if (file_glob(paths, patterns->paths[i]) == STATUS_OK)
            continue;
        status_clear();
        return FAIL(STATUS_INVALID, "%s: no file matches %s; %s", loader->option, patterns->paths[i],
                    how_to_get(loader->option, patterns->paths[i]));
    }
    return STATUS_OK;
}

// An eighth of the process's limit on open files, because a second loader and checkpoints need some too.
static int most_open_shards(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return 1;
    return limit.rlim_cur / 8 < 1           ? 1
           : limit.rlim_cur / 8 < MOST_OPEN ? (int)(limit.rlim_cur / 8)
                                            : MOST_OPEN;
}

static enum status check_tokenizer(struct loader *loader, const struct shard *shard) {
    char first[TOKENIZER_DESCRIPTION_BYTES], other[TOKENIZER_DESCRIPTION_BYTES];
    if (!loader->tokenizer_shard && shard->tokenizer.n_ids > 0) {
        loader->tokenizer = shard->tokenizer;
        loader->tokenizer_shard = shard;
    }
    if (!tokenizer_identity_differs(&loader->tokenizer, &shard->tokenizer))
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: %s was tokenized with %s, but %s with %s; tokenize all shards with the same tokenizer",
                loader->option, loader->tokenizer_shard->path,
                tokenizer_identity_describe(&loader->tokenizer, first), shard->path,
                tokenizer_identity_describe(&shard->tokenizer, other));
}

// Of a small corpus at least one sequence is held out, if as much is left.
static size_t n_held_out(const struct loader *loader, size_t total) {
    const size_t sequence = (size_t)loader->options.seq_len + 1,
                 asked = (size_t)ceil((double)total * loader->options.held_out);
    return asked > 0 && asked < sequence && total >= 2 * sequence ? sequence : asked;
}

// Of all tokens, in the order of the shards, the last `held_out` are held out. Restricts each shard to its
// tokens on this loader's side of the split.
static void select_part(struct loader *loader) {
    const struct loader_options *options = &loader->options;
    size_t total = 0, before = 0;
    for (int i = 0; i < loader->n_shards; i++)
        total += loader->shards[i].n_tokens;
    const size_t split = total - n_held_out(loader, total);
    for (int i = 0; i < loader->n_shards; i++) {
        struct shard *shard = &loader->shards[i];
        const size_t n = shard->n_tokens, here = split <= before      ? 0
                                                 : split - before < n ? split - before
                                                                      : n;
        shard->first_token = options->of_held_out ? here : 0;
        shard->n_tokens = options->of_held_out ? n - here : here;
        before += n;
    }
}

static enum status open_shards(struct loader *loader, const struct file_list *paths) {
    loader->shards = calloc((size_t)paths->n_paths + 1, sizeof *loader->shards);
    loader->first_sequence = calloc((size_t)paths->n_paths + 1, sizeof *loader->first_sequence);
    loader->most_open = most_open_shards();
    loader->open_shards = calloc((size_t)loader->most_open, sizeof *loader->open_shards);
    loader->row = calloc((size_t)loader->options.seq_len + 1, sizeof *loader->row);
    if (!loader->shards || !loader->first_sequence || !loader->open_shards || !loader->row)
        return FAIL(STATUS_FAILED, "out of memory for %d token shards", paths->n_paths);
    TRY(identity_init(&loader->identity, paths->n_paths));
    for (int i = 0; i < paths->n_paths; i++) {
        struct shard *shard = &loader->shards[i];
        TRY(shard_open(shard, paths->paths[i]));
        keep_open(loader, i);
        loader->n_shards++;
        TRY(check_tokenizer(loader, shard));
    }
    select_part(loader);
    for (int i = 0; i < loader->n_shards; i++) {
        struct shard *shard = shard_to_read(loader, i);
        size_t n = shard->n_tokens > 0 ? (shard->n_tokens - 1) / (size_t)loader->options.seq_len : 0;
        loader->first_sequence[i + 1] = loader->first_sequence[i] + n;
        loader->n_tokens += shard->n_tokens;
        TRY(identity_add(&loader->identity, shard));
    }
    return STATUS_OK;
}

static enum status find_and_open_shards(struct loader *loader) {
    struct file_list paths = {0};
    enum status status = find_shards(loader, &paths);
    if (status == STATUS_OK)
        status = open_shards(loader, &paths);
    file_list_free(&paths);
    return status;
}

static enum status check_size(const struct loader *loader) {
    if (loader_n_sequences(loader) > 0)
        return STATUS_OK;
    return FAIL(
        STATUS_INVALID,
        "%s: %d shard%s of %zu tokens hold%s no sequence of train.seq_len %d + 1 tokens; add data, or lower "
        "train.seq_len",
        loader->option, loader->n_shards, loader->n_shards == 1 ? "" : "s", loader->n_tokens,
        loader->n_shards == 1 ? "s" : "", loader->options.seq_len);
}

static enum status start_thread(struct loader *loader) {
    size_t bytes =
        (size_t)loader->options.micro_batch_size * (size_t)loader->options.seq_len * sizeof(int32_t);
    for (int i = 0; i < 2; i++) {
        loader->batches[i].tokens = malloc(bytes);
        loader->batches[i].targets = malloc(bytes);
        if (!loader->batches[i].tokens || !loader->batches[i].targets)
            return FAIL(STATUS_FAILED, "out of memory for batches of %zu bytes", bytes);
    }
    if (pthread_create(&loader->thread, NULL, read_ahead, loader) != 0)
        return FAIL(STATUS_FAILED, "cannot start the thread that prefetches %s", loader->option);
    loader->running = true;
    return STATUS_OK;
}

enum status loader_new(const struct loader_options *options, struct loader **out) {
    *out = NULL;
    struct loader *loader = calloc(1, sizeof *loader);
    if (!loader)
        return FAIL(STATUS_FAILED, "out of memory for a loader");
    loader->options = *options;
    loader->options.row_stride = options->row_stride ? options->row_stride : options->micro_batch_size;
    loader->options.step_stride = options->step_stride ? options->step_stride : 1;
    loader->option = strdup(options->option);
    pthread_mutex_init(&loader->lock, NULL);
    pthread_cond_init(&loader->changed, NULL);
    enum status status = loader->option ? STATUS_OK : FAIL(STATUS_FAILED, "out of memory for a loader");
    if (status == STATUS_OK)
        status = find_and_open_shards(loader);
    if (status == STATUS_OK)
        status = check_size(loader);
    if (status == STATUS_OK)
        status = start_thread(loader);
    loader->options.patterns = NULL; // owned by the caller; not used again
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
    for (int i = 0; i < loader->n_shards; i++)
        shard_close(&loader->shards[i]);
    free(loader->shards);
    free(loader->first_sequence);
    identity_free(&loader->identity);
    free(loader->open_shards);
    free(loader->row);
    free(loader->option);
    free(loader);
}

void loader_begin_order(struct loader *loader, int64_t first_step, uint64_t seed) {
    loader->first_step = first_step;
    loader->options.seed = seed;
}

void loader_spread(struct loader *loader, size_t n) {
    pthread_mutex_lock(&loader->lock);
    while (loader->wanted)
        pthread_cond_wait(&loader->changed, &loader->lock);
    loader->n_spread = n < loader_n_sequences(loader) ? n : 0;
    loader->batches[1 - loader->current].filled = false; // prefetched under the old rule
    pthread_mutex_unlock(&loader->lock);
}

const struct identity *loader_identity(const struct loader *loader) {
    return &loader->identity;
}

const struct tokenizer_identity *loader_tokenizer(const struct loader *loader) {
    return &loader->tokenizer;
}

size_t loader_n_tokens(const struct loader *loader) {
    return loader->n_tokens;
}

size_t loader_n_sequences(const struct loader *loader) {
    return loader->first_sequence[loader->n_shards];
}

int loader_n_shards(const struct loader *loader) {
    return loader->n_shards;
}
