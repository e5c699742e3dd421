// Double buffering: a thread fills one batch while the trainer uses the other. The sequence of each row is
// computed when the row is read; the order of sequences is not stored.
#include "data/loader.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "data/order.h"

#define MOST_OPEN 256 // maximum number of shards whose files a loader keeps open

// ---- the ring of open shards

// Adds a shard to the ring of open shards. When the ring is full, closes the shard that was opened first.
static void keep_open(struct sources *sources, int index) {
    int *slot = &sources->open_shards[sources->next_open];
    if (sources->n_open == sources->most_open)
        shard_release(&sources->shards[*slot]);
    else
        sources->n_open++;
    *slot = index;
    sources->next_open = (sources->next_open + 1) % sources->most_open;
}

// Returns the shard with this index. If its file is closed, first adds it to the ring of open shards, which
// may close another file. The next read then reopens its file.
static struct shard *sources_shard(struct sources *sources, int index) {
    if (sources->shards[index].descriptor < 0)
        keep_open(sources, index);
    return &sources->shards[index];
}

// Returns the index of the shard that contains a sequence.
static int sources_find_shard(const struct sources *sources, size_t sequence) {
    int low = 0, high = sources->n_shards;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (sources->first_sequence[middle] <= sequence)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// ---- finding the shards

// Returns advice for a message: how to fetch or make the shards that a config of this repository names, or
// how to make shards of other text.
static const char *how_to_get(const char *option, const char *pattern) {
    if (strstr(pattern, "fineweb"))
        return "scripts/get_data.sh fetches FineWeb's shards (fineweb-10B, ...); or name shards of your own, "
               "as in data.train='my/train-*.bin' (./train tokenize my.txt --tokenizer FILE --out my makes "
               "them)";
    if (strstr(pattern, "corpus/kjv"))
        return "scripts/corpus_kjv.sh makes the shards of the King James text; or name shards of your own, "
               "as in data.train='my/train-*.bin' (./train tokenize my.txt --tokenizer FILE --out my makes "
               "them)";
    if (strncmp(option, "data.val", strlen("data.val")) == 0)
        return "leave out data.val to use the validation shards beside data.train, or set data.val_split to "
               "hold out a part of data.train";
    return "make token shards of a text with ./train tokenize my.txt --tokenizer FILE --out my, then set "
           "data.train='my/train-*.bin'";
}

static enum status find_shards(const struct source *source, const struct file_list *patterns,
                               struct file_list *paths) {
    for (int i = 0; i < patterns->n_paths; i++) {
        if (file_glob(paths, patterns->paths[i]) == STATUS_OK)
            continue;
        status_clear();
        return FAIL(STATUS_INVALID, "%s: no file matches %s; %s", source->option, patterns->paths[i],
                    how_to_get(source->option, patterns->paths[i]));
    }
    return STATUS_OK;
}

static void name_source(struct source *source, const struct sources_options *options, int index) {
    const struct file_list *patterns = options->list[index].patterns;
    source->option =
        options->n == 1 ? copy_string(options->option) : file_path("%s[%d]", options->option, index);
    source->name = copy_string(patterns->n_paths > 0 ? patterns->paths[0] : "");
}

// Finds the shards of all sources, one source after another.
//   paths   [out] the shards' paths, in this order
static enum status find_all(struct sources *sources, const struct sources_options *options,
                            struct file_list *paths) {
    for (int i = 0; i < options->n; i++) {
        struct source *source = &sources->list[sources->n++];
        name_source(source, options, i);
        source->first_shard = paths->n_paths;
        TRY(find_shards(source, options->list[i].patterns, paths));
        source->n_shards = paths->n_paths - source->first_shard;
    }
    return STATUS_OK;
}

// ---- opening the shards

// Returns how many shards a loader keeps open, at most MOST_OPEN. It is an eighth of the process's limit on
// open files, because a second loader and checkpoints need files too.
static int most_open_shards(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return 1;
    return limit.rlim_cur / 8 < 1           ? 1
           : limit.rlim_cur / 8 < MOST_OPEN ? (int)(limit.rlim_cur / 8)
                                            : MOST_OPEN;
}

static enum status check_tokenizer(struct sources *sources, const struct shard *shard) {
    char first[TOKENIZER_DESCRIPTION_BYTES], other[TOKENIZER_DESCRIPTION_BYTES];
    if (!sources->tokenizer_shard && shard->tokenizer.n_ids > 0) {
        sources->tokenizer = shard->tokenizer;
        sources->tokenizer_shard = shard;
    }
    if (!tokenizer_identity_differs(&sources->tokenizer, &shard->tokenizer))
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: %s was tokenized with %s, but %s with %s; tokenize all shards with the same tokenizer",
                sources->option, sources->tokenizer_shard->path,
                tokenizer_identity_describe(&sources->tokenizer, first), shard->path,
                tokenizer_identity_describe(&shard->tokenizer, other));
}

static enum status open_shards(struct sources *sources, const struct file_list *paths) {
    sources->shards = allocate((size_t)paths->n_paths, sizeof *sources->shards);
    sources->first_sequence = allocate((size_t)paths->n_paths + 1, sizeof *sources->first_sequence);
    sources->most_open = most_open_shards();
    sources->open_shards = allocate((size_t)sources->most_open, sizeof *sources->open_shards);
    for (int i = 0; i < paths->n_paths; i++) {
        struct shard *shard = &sources->shards[i];
        TRY(shard_open(shard, paths->paths[i]));
        keep_open(sources, i);
        sources->n_shards++;
        TRY(check_tokenizer(sources, shard));
    }
    return STATUS_OK;
}

// ---- counting tokens and sequences

static size_t n_sequences_of(size_t n_tokens, int seq_len) {
    return n_tokens > 0 ? (n_tokens - 1) / (size_t)seq_len : 0;
}

// Returns how many of a shard's n tokens are before the split.
//   split    index of the first held-out token in the source
//   before   number of tokens in the source's earlier shards
static size_t tokens_before(size_t split, size_t before, size_t n) {
    return split <= before ? 0 : split - before < n ? split - before : n;
}

static bool has_sequence(const struct shard *shards, int n_shards, size_t split, bool held_out, int seq_len) {
    size_t before = 0;
    for (int i = 0; i < n_shards; i++) {
        const size_t n = shards[i].n_tokens, here = tokens_before(split, before, n);
        if (n_sequences_of(held_out ? n - here : here, seq_len) > 0)
            return true;
        before += n;
    }
    return false;
}

// Returns the index of a source's first held-out token; the number of its tokens if none is held out. The
// held-out tokens must contain a whole sequence, and sequences do not span shards. If the last fraction
// `held_out` contains none, the split moves back to the last T + 1 tokens of the last shard that has at least
// T + 1. It does not move if no sequence would be left before it.
static size_t find_split(const struct shard *shards, int n_shards, const struct sources_options *options) {
    const size_t sequence = (size_t)options->seq_len + 1;
    size_t total = 0;
    for (int i = 0; i < n_shards; i++)
        total += shards[i].n_tokens;
    const size_t split = total - (size_t)ceil((double)total * options->held_out);
    if (split == total || has_sequence(shards, n_shards, split, true, options->seq_len))
        return split;
    for (int i = n_shards - 1; i >= 0; total -= shards[i--].n_tokens)
        if (shards[i].n_tokens >= sequence)
            return has_sequence(shards, n_shards, total - sequence, false, options->seq_len)
                       ? total - sequence
                       : split;
    return split;
}

// Restricts the shards of a source to its held-out tokens (of_held_out) or to the tokens before them.
static void select_part(struct shard *shards, int n_shards, const struct sources_options *options) {
    const size_t split = find_split(shards, n_shards, options);
    size_t before = 0;
    for (int i = 0; i < n_shards; i++) {
        const size_t n = shards[i].n_tokens, here = tokens_before(split, before, n);
        shards[i].first_token = options->of_held_out ? here : 0;
        shards[i].n_tokens = options->of_held_out ? n - here : here;
        before += n;
    }
}

static enum status check_size(const struct sources *sources, const struct source *source) {
    if (source->n_sequences > 0)
        return STATUS_OK;
    return FAIL(
        STATUS_INVALID,
        "%s: %d shard%s of %zu tokens hold%s no sequence of %d + 1 tokens (train.seq_len + 1); add data, or "
        "lower train.seq_len",
        source->option, source->n_shards, source->n_shards == 1 ? "" : "s", source->n_tokens,
        source->n_shards == 1 ? "s" : "", sources->seq_len);
}

static enum status count_source(struct sources *sources, struct source *source,
                                const struct sources_options *options) {
    select_part(&sources->shards[source->first_shard], source->n_shards, options);
    for (int i = source->first_shard; i < source->first_shard + source->n_shards; i++) {
        struct shard *shard = sources_shard(sources, i);
        const size_t n = n_sequences_of(shard->n_tokens, options->seq_len);
        sources->first_sequence[i + 1] = sources->first_sequence[i] + n;
        source->n_tokens += shard->n_tokens;
        source->n_sequences += n;
        TRY(identity_add(&sources->identity, shard));
    }
    sources->n_tokens += source->n_tokens;
    return check_size(sources, source);
}

// Sets the shares of the sources. In a mixture, also adds the sources to the identity.
static void set_shares(struct sources *sources, const struct sources_options *options) {
    double total = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < sources->n; i++) {
            struct source *source = &sources->list[i];
            const double weight =
                options->list[i].weight > 0 ? options->list[i].weight : (double)source->n_sequences;
            if (pass == 0)
                total += weight;
            else
                source->share = weight / total;
        }
    for (int i = 0; i < sources->n && sources->n > 1; i++)
        identity_add_source(&sources->identity, (uint32_t)sources->list[i].n_shards, sources->list[i].share);
}

static enum status open_all(struct sources *sources, const struct sources_options *options,
                            struct file_list *paths) {
    sources->option = copy_string(options->option);
    sources->list = allocate((size_t)options->n, sizeof *sources->list);
    TRY(find_all(sources, options, paths));
    TRY(open_shards(sources, paths));
    identity_init(&sources->identity, paths->n_paths);
    for (int i = 0; i < sources->n; i++)
        TRY(count_source(sources, &sources->list[i], options));
    set_shares(sources, options);
    return STATUS_OK;
}

enum status sources_open(struct sources *sources, const struct sources_options *options) {
    struct file_list paths = {0};
    *sources = (struct sources){.seq_len = options->seq_len};
    enum status status = open_all(sources, options, &paths);
    file_list_free(&paths);
    return status;
}

void sources_free(struct sources *sources) {
    for (int i = 0; i < sources->n_shards; i++)
        shard_close(&sources->shards[i]);
    for (int i = 0; i < sources->n; i++) {
        free(sources->list[i].option);
        free(sources->list[i].name);
    }
    free(sources->list);
    free(sources->shards);
    free(sources->first_sequence);
    identity_free(&sources->identity);
    free(sources->open_shards);
    free(sources->option);
    *sources = (struct sources){0};
}

// A micro-batch of this rank, and whether it has been read yet.
struct prefetch {
    int64_t step;
    uint64_t begin; // index of the step's first row in the order of sequences
    int first_row;
    bool filled;
    // The first token outside the vocabulary: its shard (NULL: there is none), its index in the shard's
    // file, and its id. It is reported only when the batch is requested, because a prefetched batch may
    // never be requested.
    const struct shard *bad_shard;
    size_t bad_token;
    uint32_t bad_value;
    int32_t *tokens, *targets, *starts; // (B, T)
    float *weights;                     // (B, T)
    bool is_weighted;                   // weights may differ from 1
};

struct loader {
    struct loader_options options;
    struct sources sources;
    struct mixture mixture;
    int64_t first_step;     // step at which the order of sequences begins
    int spread_source;      // the source that loader_spread chose for all rows; -1: it was not called
    size_t n_spread;        // number of sequences that loader_spread chose; 0: it was not called
    int32_t *row;           // (T + 1) tokens of a sequence, as read
    int32_t document_start; // token that begins a document; -1: every sequence is one document

    struct prefetch batches[2];
    int current; // index of the batch that the caller uses
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool running;  // the thread has been started
    bool wanted;   // the thread must fill batches[1 - current]
    bool stopping; // the thread must end
};

// ---- from rows to tokens

// Returns the seed of a source's shuffled order. Source 0 has the loader's seed, so its order is the same
// as without other sources.
static uint64_t seed_of(const struct loader *loader, int source) {
    return loader->options.seed + (uint64_t)source * 0xD1B54A32D192ED03u;
}

// Returns by how many tokens an epoch shifts a shard's sequences: at most T - 1, and at most the tokens
// left over at the shard's end, so that no sequence is lost.
//   n_sequences   number of sequences in the shard
//   index         index of the shard within its source
static size_t epoch_shift(const struct loader *loader, const struct shard *shard, size_t n_sequences,
                          int index, uint64_t epoch, uint64_t seed) {
    size_t T = (size_t)loader->options.seq_len;
    size_t slack = shard->n_tokens - 1 - n_sequences * T;
    return rng_below(seed, RNG_STREAM_SHUFFLE, (epoch << 24 | (uint64_t)index) + (1ull << 63),
                     (slack < T - 1 ? slack : T - 1) + 1);
}

// Finds the sequence of a row of source `which`. Returns the shard that contains the sequence.
//   row     index of the row among those of this source, from the start of the order
//   start   [out] index of the sequence's first token in the shard's range in use
static struct shard *locate_in_source(struct loader *loader, int which, uint64_t row, size_t *start) {
    struct sources *sources = &loader->sources;
    const struct source *source = &sources->list[which];
    const size_t T = (size_t)loader->options.seq_len, n_sequences = source->n_sequences,
                 n_rows = loader->n_spread ? loader->n_spread : n_sequences;
    const uint64_t epoch = row / n_rows, seed = seed_of(loader, which);
    size_t sequence = row % n_rows;
    if (n_rows < n_sequences) // sequence * n_sequences / n_rows, as two terms that do not overflow
        sequence = n_sequences / n_rows * sequence + n_sequences % n_rows * sequence / n_rows;
    if (loader->options.shuffle)
        sequence = permutation_at(seed, epoch, n_sequences, sequence);
    sequence += sources->first_sequence[source->first_shard];
    const int index = sources_find_shard(sources, sequence);
    struct shard *shard = sources_shard(sources, index);
    const size_t first = sources->first_sequence[index], end = sources->first_sequence[index + 1];
    *start = (sequence - first) * T;
    if (loader->options.shuffle)
        *start += epoch_shift(loader, shard, end - first, index - source->first_shard, epoch, seed);
    return shard;
}

// Finds the sequence of a row. Returns the shard that contains the sequence.
//   row     index of the row, over all sources, from the start of the order
//   start   [out] index of the sequence's first token in the shard's range in use
static struct shard *locate_row(struct loader *loader, uint64_t row, size_t *start) {
    if (loader->spread_source >= 0)
        return locate_in_source(loader, loader->spread_source, row, start);
    uint64_t index;
    const int source = mixture_at(&loader->mixture, row, &index);
    return locate_in_source(loader, source, index, start);
}

static void take_row(struct loader *loader, const struct shard *shard, size_t start, struct prefetch *batch,
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
    token_batch_find_starts(tokens, 1, (int)T, loader->document_start, batch->starts + (size_t)b * T);
    if (worst < vocab_size)
        return;
    size_t bad = 0;
    while ((uint32_t)row[bad] < vocab_size)
        bad++;
    batch->bad_shard = shard;
    batch->bad_token = shard->first_token + start + bad;
    batch->bad_value = (uint32_t)row[bad];
}

// True if a row, counted from the start of the order, is beyond the sequences that loader_spread chose.
static bool is_padding(const struct loader *loader, uint64_t row) {
    return loader->n_spread > 0 && row >= loader->n_spread;
}

// Computes the weights (T) of a row's targets. The row's tokens must be in loader->row.
static void weigh_row(const struct loader *loader, uint64_t row, float *weights) {
    const bool padding = is_padding(loader, row);
    const int T = loader->options.seq_len;
    if (loader->options.weigh && !padding)
        loader->options.weigh(loader->row, T, weights);
    else
        for (int t = 0; t < T; t++)
            weights[t] = padding ? 0 : 1;
}

// Returns the number of rows from the start of the order of sequences to the start of `step`.
static uint64_t rows_before(const struct loader *loader, int64_t step) {
    const struct loader_options *options = &loader->options;
    const int64_t first = loader->first_step, steps = step > first ? step - first : 0;
    return options->rows_before ? options->rows_before(options->context, first + steps) -
                                      options->rows_before(options->context, first)
                                : (uint64_t)steps * (uint64_t)options->batch_size;
}

// Reads the rows of a micro-batch from the shards. Its members `begin` and `first_row` say which rows.
//   ahead   true for prefetching: if reading fails, no failure is recorded, because the batch may never be
//           requested. The batch stays unfilled; if it is requested, loader_batch reads it again
static enum status fill_batch(struct loader *loader, struct prefetch *batch, bool ahead) {
    const size_t T = (size_t)loader->options.seq_len, n = T + 1;
    batch->bad_shard = NULL;
    batch->is_weighted = loader->options.weigh != NULL;
    for (int b = 0; b < loader->options.micro_batch_size && !batch->bad_shard; b++) {
        const uint64_t row = batch->begin + (uint64_t)(batch->first_row + b);
        size_t start;
        struct shard *shard = locate_row(loader, row, &start);
        if (ahead && !shard_try_read(shard, start, n, loader->row))
            return STATUS_OK;
        if (!ahead)
            TRY(shard_read(shard, start, n, loader->row));
        take_row(loader, shard, start, batch, b);
        weigh_row(loader, row, batch->weights + (size_t)b * T);
        batch->is_weighted = batch->is_weighted || is_padding(loader, row);
    }
    batch->filled = true;
    return STATUS_OK;
}

static enum status check_batch(const struct loader *loader, const struct prefetch *batch) {
    int vocab_size = loader->options.vocab_size;
    if (!batch->bad_shard)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: token %zu of the shard is %u, outside the vocabulary of %d (ids 0 to %d); the shard was "
                "written with another tokenizer, or model.vocab_size is too small",
                batch->bad_shard->path, batch->bad_token, batch->bad_value, vocab_size, vocab_size - 1);
}

// ---- prefetching

static void *read_ahead(void *argument) {
    struct loader *loader = argument;
    pthread_mutex_lock(&loader->lock);
    while (!loader->stopping) {
        if (!loader->wanted) {
            pthread_cond_wait(&loader->changed, &loader->lock);
            continue;
        }
        struct prefetch *batch = &loader->batches[1 - loader->current];
        // Filling needs no lock: the other functions do not touch this batch until `wanted` is false.
        pthread_mutex_unlock(&loader->lock);
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

// Sets what to prefetch into `next` after batch `now`: this rank's next micro-batch of the same step. After
// the step's last one, it is the first micro-batch of this rank's next step (step_stride steps later).
static void expect_next(const struct loader *loader, const struct prefetch *now, struct prefetch *next) {
    const struct loader_options *options = &loader->options;
    const int64_t last = batch_of(loader, now->step) - options->micro_batch_size;
    int row = now->first_row + options->row_stride;
    if (row > last) // the next pass
        row = now->first_row % options->row_stride + options->pass_stride;
    const bool same_step = row <= last && (row < options->row_stride || row > now->first_row);
    next->step = same_step ? now->step : now->step + options->step_stride;
    next->begin = rows_before(loader, next->step);
    next->first_row = same_step ? row : options->first_row;
    next->filled = false;
}

// Waits until the prefetching thread is idle, and takes the lock.
static void lock_idle(struct loader *loader) {
    pthread_mutex_lock(&loader->lock);
    while (loader->wanted)
        pthread_cond_wait(&loader->changed, &loader->lock);
}

enum status loader_batch(struct loader *loader, int64_t step, int first_row, struct token_batch *out) {
    lock_idle(loader);
    struct prefetch *batch = &loader->batches[1 - loader->current];
    enum status status = STATUS_OK;
    const uint64_t begin = rows_before(loader, step);
    if (!batch->filled || batch->step != step || batch->begin != begin || batch->first_row != first_row) {
        // Not prefetched (the first batch, or a request out of order): read it here.
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
        *out = (struct token_batch){.tokens = batch->tokens,
                                    .targets = batch->targets,
                                    .starts = batch->starts,
                                    .weights = batch->is_weighted ? batch->weights : NULL};
    }
    pthread_mutex_unlock(&loader->lock);
    return status;
}

bool loader_is_weighted(const struct loader *loader) {
    return loader->options.weigh != NULL;
}

// Adds the weights of the targets of rows [row, row + B) to *sum. Rows count from the start of the order.
//   weights   scratch (T)
static enum status add_weights(struct loader *loader, uint64_t row, float *weights, double *sum) {
    const size_t T = (size_t)loader->options.seq_len;
    const uint64_t end = row + (uint64_t)loader->options.micro_batch_size;
    for (; row < end; row++) {
        size_t start;
        struct shard *shard = locate_row(loader, row, &start);
        TRY(shard_read(shard, start, T + 1, loader->row));
        weigh_row(loader, row, weights);
        for (size_t t = 0; t < T; t++)
            *sum += (double)weights[t];
    }
    return STATUS_OK;
}

enum status loader_sum_weights(struct loader *loader, int64_t step, double *sum) {
    const struct loader_options *options = &loader->options;
    const int64_t last = batch_of(loader, step) - options->micro_batch_size;
    float *weights = allocate((size_t)options->seq_len, sizeof *weights);
    enum status status = STATUS_OK;
    *sum = 0;
    lock_idle(loader);
    for (int64_t row = options->first_row; row <= last && status == STATUS_OK; row += options->pass_stride)
        status = add_weights(loader, rows_before(loader, step) + (uint64_t)row, weights, sum);
    pthread_mutex_unlock(&loader->lock);
    free(weights);
    return status;
}

// ---- opening the loader

static enum status start_thread(struct loader *loader) {
    const size_t n = (size_t)loader->options.micro_batch_size * (size_t)loader->options.seq_len;
    for (int i = 0; i < 2; i++) {
        struct prefetch *batch = &loader->batches[i];
        batch->tokens = allocate(n, sizeof *batch->tokens);
        batch->targets = allocate(n, sizeof *batch->targets);
        batch->starts = allocate(n, sizeof *batch->starts);
        batch->weights = allocate(n, sizeof *batch->weights);
    }
    loader->row = allocate((size_t)loader->options.seq_len + 1, sizeof *loader->row);
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
    struct loader *loader = allocate(1, sizeof *loader);
    loader->options = *options;
    loader->options.row_stride = options->row_stride ? options->row_stride : options->micro_batch_size;
    loader->options.pass_stride = options->pass_stride ? options->pass_stride : loader->options.row_stride;
    loader->options.step_stride = options->step_stride ? options->step_stride : 1;
    loader->spread_source = -1;
    loader->document_start = -1;
    pthread_mutex_init(&loader->lock, NULL);
    pthread_cond_init(&loader->changed, NULL);
    struct sources_options of_sources = options->sources;
    of_sources.seq_len = options->seq_len;
    enum status status = sources_open(&loader->sources, &of_sources);
    if (status == STATUS_OK)
        init_mixture(loader);
    if (status == STATUS_OK)
        status = start_thread(loader);
    loader->options.sources = (struct sources_options){0}; // its pointers are valid only during this call
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
        free(loader->batches[i].starts);
        free(loader->batches[i].weights);
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

void loader_set_document_start(struct loader *loader, int32_t token) {
    loader->document_start = token;
}

void loader_locate(struct loader *loader, int64_t step, int row, const char **path, size_t *token) {
    size_t start;
    lock_idle(loader);
    const struct shard *shard = locate_row(loader, rows_before(loader, step) + (uint64_t)row, &start);
    *path = shard->path;
    *token = shard->first_token + start;
    pthread_mutex_unlock(&loader->lock);
}

void loader_spread(struct loader *loader, int source, size_t n) {
    const size_t all = loader->sources.list[source].n_sequences;
    lock_idle(loader);
    loader->spread_source = source;
    loader->n_spread = n > 0 && n < all ? n : all;
    loader->batches[1 - loader->current].filled = false; // it was filled with rows of the old order
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
