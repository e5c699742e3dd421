// See cli/tokenize/texts.h. Two batches take turns: while one is encoded, the next is read.
#include "cli/tokenize/texts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/parallel.h"
#include "cli/tokenize/encode.h"
#include "cli/tokenize/show.h"
#include "data/corpus.h"
#include "trainer/signals.h"

#define BATCH_PER_THREAD ((size_t)2 << 20)
#define SMALLEST_BATCH   ((size_t)8 << 20)
#define LARGEST_BATCH    ((size_t)256 << 20)
#define SAVE_S           2  // between two saves of the state, and at least
#define SAVE_SHARE       20 // times as long as a save takes

struct run {
    const struct tokenize_options *options;
    const struct tokenizer *tokenizer;
    const struct text_sources *sources;
    struct state state;
    struct output output;
    struct text_reader *reader;
    struct encoders *encoders;
    struct text_batch batches[2];
    struct show show;
    int warned_source;
    bool has_begun;    // the unfinished shards are of this run, or of one that it continues
    bool can_continue; // a state is saved
    double saved_s, save_cost_s;
};

// ---- the split by bytes

static enum status read_file(void *context, uint64_t offset, size_t n, char *out) {
    const int error = file_read_at(*(const int *)context, offset, n, out);
    return error ? FAIL(STATUS_FAILED, "cannot read a text: %s",
                        error == FILE_READ_SHORT ? "it was truncated while in use" : strerror(error))
                 : STATUS_OK;
}

static enum status split_point(const struct text_source *source, uint64_t wanted, bool documents,
                               uint64_t *point) {
    int descriptor;
    TRY(file_open_regular(source->path, O_RDONLY, &descriptor));
    enum status status = corpus_split_point(&(struct corpus_bytes){read_file, &descriptor, source->bytes},
                                            wanted, documents, point);
    close(descriptor);
    return status;
}

static bool all_sized(const struct text_sources *sources) {
    for (int i = 0; i < sources->n; i++)
        if (!sources->list[i].is_sized)
            return false;
    return true;
}

// Where the last fraction of all bytes begins, if all sizes are known.
static enum status find_split(struct run *run) {
    const struct text_sources *sources = run->sources;
    const double held_out = run->options->held_out;
    uint64_t bytes = 0, point = 0;
    run->state.split.source = -1;
    if (held_out == 0 || !all_sized(sources))
        return STATUS_OK;
    for (int i = 0; i < sources->n; i++)
        bytes += sources->list[i].bytes;
    uint64_t wanted = (uint64_t)((double)bytes * (1 - held_out));
    for (int i = 0; i < sources->n; i++) {
        const struct text_source *source = &sources->list[i];
        TRY(split_point(source, wanted, run->options->end_of_text, &point));
        if (point < source->bytes) {
            run->state.split = (struct text_split){i, point};
            return STATUS_OK;
        }
        wanted -= wanted < point ? wanted : point;
    }
    return STATUS_OK;
}

// ---- batches

static enum status save(struct run *run) {
    const double began_s = clock_monotonic_s();
    TRY(output_sync(&run->output));
    TRY(state_save(&run->state, &run->output));
    run->can_continue = true;
    run->saved_s = clock_monotonic_s();
    run->save_cost_s = run->saved_s - began_s;
    return STATUS_OK;
}

static bool save_is_due(const struct run *run) {
    const double since_s = clock_monotonic_s() - run->saved_s;
    return since_s > SAVE_S && since_s > SAVE_SHARE * run->save_cost_s;
}

static void warn_of_encoding(struct run *run, const struct text_batch *batch, const struct text_chunk *chunk,
                             size_t bad_at) {
    const struct text_source *source = &run->sources->list[chunk->source];
    if (run->warned_source == chunk->source)
        return;
    run->warned_source = chunk->source;
    corpus_warn_of_encoding(
        source->path, source->is_sized ? file_kind_of_path(source->path) : FILE_KIND_UNKNOWN,
        chunk->offset + bad_at, (unsigned char)batch->bytes[chunk->at + bad_at], "encoded");
}

// With a token that begins documents, end-of-text ends the one before: nothing is before the first of a
// split.
static size_t n_left_out(const struct run *run, const struct split_writer *split,
                         const struct token_list *ids) {
    return tokenizer_has_bos(run->tokenizer) && split->n_tokens == 0 && ids->n > 0 &&
                   ids->ids[0] == tokenizer_end_of_text(run->tokenizer)
               ? 1
               : 0;
}

// The end of the last document of a split.
static enum status end_split(const struct run *run, struct split_writer *split) {
    const int32_t end = tokenizer_end_of_text(run->tokenizer);
    return tokenizer_has_bos(run->tokenizer) && split->n_tokens > 0 ? split_add(split, &end, 1) : STATUS_OK;
}

static enum status add_chunk(struct run *run, const struct text_batch *batch, int i,
                             const struct encoded *encoded) {
    const struct text_chunk *chunk = &batch->chunks[i];
    struct split_writer *split = chunk->held_out ? &run->output.val : &run->output.train;
    struct source_counts *counts = &run->state.counts[chunk->source];
    const size_t first = n_left_out(run, split, &encoded->ids), n_ids = encoded->ids.n - first;
    TRY(split_add(split, encoded->ids.ids + first, n_ids));
    split->n_bytes += encoded->n_bytes;
    split->n_documents += encoded->n_documents;
    counts->tokens += n_ids;
    counts->text_bytes += encoded->n_bytes;
    counts->documents += encoded->n_documents;
    run->state.n_markers += encoded->n_markers;
    if (encoded->bad_at < chunk->n)
        warn_of_encoding(run, batch, chunk, encoded->bad_at);
    return STATUS_OK;
}

static enum status add_batch(struct run *run, const struct text_batch *batch, const struct encoded *encoded) {
    for (int i = 0; i < batch->n_chunks; i++)
        TRY(add_chunk(run, batch, i, &encoded[i]));
    for (int i = 0; i < batch->n_ends; i++) {
        struct source_counts *counts = &run->state.counts[batch->ends[i].source];
        counts->bytes = batch->ends[i].bytes;
        counts->checksum = batch->ends[i].checksum;
        counts->done = true;
    }
    run->state.position = batch->end;
    show_progress(&run->show, batch->file_bytes, run->output.train.n_tokens + run->output.val.n_tokens);
    return STATUS_OK;
}

static enum status tokenize_batches(struct run *run) {
    int now = 0;
    const enum status first = text_reader_next(run->reader, &run->batches[now]);
    if (first == STATUS_STOPPED)
        TRY(save(run));
    TRY(first);
    // The last batch may have ends of sources only.
    while (run->batches[now].n_chunks + run->batches[now].n_ends > 0) {
        const struct encoded *encoded;
        enum status next_status;
        TRY(encoders_run(run->encoders, run->sources, &run->batches[now], run->reader, &run->batches[1 - now],
                         &encoded, &next_status));
        TRY(add_batch(run, &run->batches[now], encoded));
        if (signals_stop_requested()) {
            TRY(save(run));
            return STATUS_STOPPED;
        }
        TRY(next_status);
        if (save_is_due(run))
            TRY(save(run));
        now = 1 - now;
    }
    return STATUS_OK;
}

static uint64_t total_bytes(const struct text_sources *sources) {
    uint64_t bytes = 0;
    for (int i = 0; i < sources->n; i++) {
        if (sources->list[i].modified_ns == 0) // a pipe
            return 0;
        bytes += sources->list[i].bytes;
    }
    return bytes;
}

static uint64_t bytes_before(const struct run *run) {
    uint64_t bytes = 0;
    for (int i = 0; i < run->state.position.source && i < run->sources->n; i++)
        bytes += run->sources->list[i].bytes;
    return bytes;
}

// ---- a run

static enum status tokenize(struct run *run) {
    size_t target = BATCH_PER_THREAD * (size_t)parallel_threads();
    target = target < SMALLEST_BATCH ? SMALLEST_BATCH : target > LARGEST_BATCH ? LARGEST_BATCH : target;
    TRY(encoders_new(run->tokenizer, run->options->field ? run->options->field : "text",
                     run->options->end_of_text, &run->encoders));
    TRY(text_reader_new(run->sources, tokenizer_rules(run->tokenizer), run->state.split,
                        run->options->end_of_text, target, signals_stop_requested, &run->reader));
    show_begin(&run->show, bytes_before(run), total_bytes(run->sources));
    if (run->can_continue) {
        TRY(text_reader_seek(run->reader, &run->state.position));
        TRY(output_continue(&run->output));
    }
    run->saved_s = clock_monotonic_s();
    enum status status = tokenize_batches(run);
    show_end();
    TRY(status);
    TRY(end_split(run, &run->output.train));
    TRY(end_split(run, &run->output.val));
    TRY(output_finish(&run->output));
    if (run->output.train.n_bytes + run->output.val.n_bytes == 0)
        return FAIL(STATUS_INVALID, "train tokenize: %s contains no text", run->sources->list[0].path);
    if (run->options->held_out > 0 && !all_sized(run->sources))
        TRY(output_hold_out(&run->output, run->options->held_out, run->tokenizer));
    run->state.is_complete = true;
    return save(run);
}

static enum status publish(struct run *run) {
    const char **paths = calloc((size_t)run->sources->n + 1, sizeof *paths);
    if (!paths)
        return FAIL(STATUS_FAILED, "out of memory for %d paths", run->sources->n);
    for (int i = 0; i < run->sources->n; i++)
        paths[i] = run->sources->list[i].path;
    struct meta meta = {run->tokenizer, run->options->tokenizer_path, &run->output, paths, run->state.counts,
                        run->sources->n};
    enum status status = output_publish(&run->output, meta_add, &meta);
    if (status == STATUS_OK)
        status = state_remove(run->options->out);
    free(paths);
    return status;
}

void texts_report(const struct split_writer *split, bool has_text) {
    const int n_shards = split_n_shards(split);
    const char *plural = n_shards == 1 ? "" : "s";
    if (split->n_tokens > 0 && has_text)
        log_info("%s: %llu bytes, %llu tokens in %d shard%s, %.2f bytes per token", split->name,
                 (unsigned long long)split->n_bytes, (unsigned long long)split->n_tokens, n_shards, plural,
                 (double)split->n_bytes / (double)split->n_tokens);
    else if (split->n_tokens > 0)
        log_info("%s: %llu tokens in %d shard%s", split->name, (unsigned long long)split->n_tokens, n_shards,
                 plural);
}

// Goes on with an unfinished run, or removes what one without a state has left.
static enum status begin(struct run *run) {
    bool found;
    if (run->options->restart)
        TRY(state_remove(run->options->out));
    TRY(state_load(&run->state, &run->output, &found));
    run->has_begun = true;
    run->can_continue = found;
    if (!found)
        return output_discard(&run->output);
    log_info("%s: going on with an unfinished run, after %llu tokens", run->options->out,
             (unsigned long long)(run->output.train.n_tokens + run->output.val.n_tokens));
    return STATUS_OK;
}

static enum status tokenize_and_publish(struct run *run) {
    TRY(find_split(run));
    TRY(begin(run));
    if (!run->state.is_complete)
        TRY(tokenize(run));
    TRY(publish(run));
    corpus_warn_of_markers(run->state.n_markers, "encoded");
    texts_report(&run->output.train, true);
    texts_report(&run->output.val, true);
    return STATUS_OK;
}

// What becomes of a run that did not finish. The first failure is the one that is reported.
static void leave(struct run *run, enum status status) {
    output_keep(&run->output);
    if (run->can_continue) {
        log_info("%s: repeat the same command to go on after %s", run->options->out,
                 status == STATUS_STOPPED ? "this stop" : "the cause is removed");
    } else if (run->has_begun) {
        const enum status discarded = output_discard(&run->output);
        (void)discarded;
    }
}

// Two processes must not write the same shards. The lock is on the folder, so that no file stays behind;
// where the file system has no locks there is none.
static enum status lock_folder(const char *folder, int *descriptor) {
    *descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*descriptor >= 0 && flock(*descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return FAIL(STATUS_INVALID, "another ./train tokenize is writing to %s; wait for it to end", folder);
    return STATUS_OK;
}

enum status texts_tokenize(const struct tokenize_options *options, const struct tokenizer *tokenizer,
                           const struct text_sources *sources) {
    const struct tokenizer_identity identity = tokenizer_identify(tokenizer, options->tokenizer_path);
    struct run run = {.options = options, .tokenizer = tokenizer, .sources = sources, .warned_source = -1};
    int lock = -1;
    signals_catch();
    run.state = (struct state){.options = options, .tokenizer = &identity, .sources = sources};
    run.state.counts = calloc((size_t)sources->n + 1, sizeof *run.state.counts);
    output_init(&run.output, options, &identity);
    enum status status = run.state.counts ? file_make_folders(options->out)
                                          : FAIL(STATUS_FAILED, "out of memory for %d files", sources->n);
    if (status == STATUS_OK)
        status = lock_folder(options->out, &lock);
    if (status == STATUS_OK) {
        status = tokenize_and_publish(&run);
        if (status != STATUS_OK)
            leave(&run, status);
    }
    if (lock >= 0)
        close(lock);
    text_reader_delete(run.reader);
    encoders_delete(run.encoders);
    text_batch_free(&run.batches[0]);
    text_batch_free(&run.batches[1]);
    free(run.state.counts);
    return status;
}
