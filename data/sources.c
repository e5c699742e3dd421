#include "data/sources.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define MOST_OPEN 256

// ---- shards

// Adds a shard to the ring of open ones. When the ring is full, closes the one opened first.
static void keep_open(struct sources *sources, int index) {
    int *slot = &sources->open_shards[sources->next_open];
    if (sources->n_open == sources->most_open)
        shard_release(&sources->shards[*slot]);
    else
        sources->n_open++;
    *slot = index;
    sources->next_open = (sources->next_open + 1) % sources->most_open;
}

struct shard *sources_shard(struct sources *sources, int index) {
    if (sources->shards[index].descriptor < 0)
        keep_open(sources, index);
    return &sources->shards[index];
}

int sources_find_shard(const struct sources *sources, size_t sequence) {
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

// ---- finding

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
    if (strncmp(option, "data.val", strlen("data.val")) == 0)
        return "leave data.val out for the validation shards beside data.train, or set data.val_split to "
               "hold "
               "out a part of data.train";
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

static enum status name_source(struct source *source, const struct sources_options *options, int index) {
    const struct file_list *patterns = options->list[index].patterns;
    source->option = options->n == 1 ? strdup(options->option) : file_path("%s[%d]", options->option, index);
    source->name = strdup(patterns->n_paths > 0 ? patterns->paths[0] : "");
    return source->option && source->name ? STATUS_OK : FAIL(STATUS_FAILED, "out of memory for a source");
}

// The paths of all sources, one after another.
static enum status find_all(struct sources *sources, const struct sources_options *options,
                            struct file_list *paths) {
    for (int i = 0; i < options->n; i++) {
        struct source *source = &sources->list[sources->n++];
        TRY(name_source(source, options, i));
        source->first_shard = paths->n_paths;
        TRY(find_shards(source, options->list[i].patterns, paths));
        source->n_shards = paths->n_paths - source->first_shard;
    }
    return STATUS_OK;
}

// ---- opening

// An eighth of the process's limit on open files, because a second loader and checkpoints need some too.
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
    sources->shards = calloc((size_t)paths->n_paths + 1, sizeof *sources->shards);
    sources->first_sequence = calloc((size_t)paths->n_paths + 1, sizeof *sources->first_sequence);
    sources->most_open = most_open_shards();
    sources->open_shards = calloc((size_t)sources->most_open, sizeof *sources->open_shards);
    if (!sources->shards || !sources->first_sequence || !sources->open_shards)
        return FAIL(STATUS_FAILED, "out of memory for %d token shards", paths->n_paths);
    for (int i = 0; i < paths->n_paths; i++) {
        struct shard *shard = &sources->shards[i];
        TRY(shard_open(shard, paths->paths[i]));
        keep_open(sources, i);
        sources->n_shards++;
        TRY(check_tokenizer(sources, shard));
    }
    return STATUS_OK;
}

// ---- counting

// Of a small corpus at least one sequence is held out, if as much is left.
static size_t n_held_out(const struct sources_options *options, size_t total) {
    const size_t sequence = (size_t)options->seq_len + 1,
                 asked = (size_t)ceil((double)total * options->held_out);
    return asked > 0 && asked < sequence && total >= 2 * sequence ? sequence : asked;
}

// Of a source's tokens, in the order of its shards, the last `held_out` are held out. Restricts each shard to
// its tokens on the wanted side of the split.
static void select_part(struct sources *sources, const struct source *source,
                        const struct sources_options *options) {
    size_t total = 0, before = 0;
    for (int i = 0; i < source->n_shards; i++)
        total += sources->shards[source->first_shard + i].n_tokens;
    const size_t split = total - n_held_out(options, total);
    for (int i = 0; i < source->n_shards; i++) {
        struct shard *shard = &sources->shards[source->first_shard + i];
        const size_t n = shard->n_tokens, here = split <= before      ? 0
                                                 : split - before < n ? split - before
                                                                      : n;
        shard->first_token = options->of_held_out ? here : 0;
        shard->n_tokens = options->of_held_out ? n - here : here;
        before += n;
    }
}

static enum status check_size(const struct sources *sources, const struct source *source) {
    if (source->n_sequences > 0)
        return STATUS_OK;
    return FAIL(
        STATUS_INVALID,
        "%s: %d shard%s of %zu tokens hold%s no sequence of train.seq_len %d + 1 tokens; add data, or lower "
        "train.seq_len",
        source->option, source->n_shards, source->n_shards == 1 ? "" : "s", source->n_tokens,
        source->n_shards == 1 ? "s" : "", sources->seq_len);
}

static enum status count_source(struct sources *sources, struct source *source,
                                const struct sources_options *options) {
    select_part(sources, source, options);
    for (int i = source->first_shard; i < source->first_shard + source->n_shards; i++) {
        struct shard *shard = sources_shard(sources, i);
        const size_t n = shard->n_tokens > 0 ? (shard->n_tokens - 1) / (size_t)options->seq_len : 0;
        sources->first_sequence[i + 1] = sources->first_sequence[i] + n;
        source->n_tokens += shard->n_tokens;
        source->n_sequences += n;
        TRY(identity_add(&sources->identity, shard));
    }
    sources->n_tokens += source->n_tokens;
    return check_size(sources, source);
}

// The sources of a mixture belong to its identity; a single one does not, whatever its weight.
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
    sources->option = strdup(options->option);
    sources->list = calloc((size_t)options->n, sizeof *sources->list);
    if (!sources->option || !sources->list)
        return FAIL(STATUS_FAILED, "out of memory for %d sources", options->n);
    TRY(find_all(sources, options, paths));
    TRY(open_shards(sources, paths));
    TRY(identity_init(&sources->identity, paths->n_paths));
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
