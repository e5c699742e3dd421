// Reads texts in batches of chunks, encodes the chunks in parallel, and adds the tokens to the shards.
// Batches are double-buffered: while one is encoded, the next is read. A restart reads the chunks of finished
// shards again, but does not encode them.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/text.h"
#include "cli/tokenize/tokenize.h"
#include "cli/version.h"
#include "data/text/documents.h"

#define BATCH_PER_THREAD ((size_t)2 << 20)   // bytes of text per batch and thread
#define SMALLEST_BATCH   ((size_t)8 << 20)   // minimum bytes of text per batch
#define LARGEST_BATCH    ((size_t)256 << 20) // maximum bytes of text per batch
#define LIVE_S           0.5                 // seconds between two updates of the progress line
#define LINE_S           60                  // seconds between two messages if there is no progress line

// The result of encoding a chunk; it depends on the chunk only.
struct encoded {
    struct token_list ids; // its tokens, with a separator of tokens before each document that begins in it
    uint64_t n_documents;  // documents that begin in the chunk; empty ones do not count
    uint64_t n_bytes;      // bytes of text that `ids` stand for
    uint64_t n_markers;    // end-of-text markers that were encoded as plain text
    // Plain text: offset of the first byte that is zero or not UTF-8. The chunk's length if there is none,
    // or for JSON Lines.
    size_t bad_at;
    enum status status;
};
// What one thread of parallel_run uses.
struct part {
    struct token_encoder *encoder;
    struct documents documents;
};
// The state that a restart needs. The file OUT/tokenize.unfinished/record contains run.settings, this state
// and run.counts.
struct progress {
    uint64_t target;    // bytes per batch; the division of texts into chunks depends on it
    uint64_t n_chunks;  // chunks added to the shards so far
    uint64_t n_markers; // end-of-text markers that were encoded as plain text
    struct split_counts train, val;
};
struct run {
    const struct tokenize_options *options;
    const struct tokenizer *tokenizer;
    const struct text_sources *sources;
    struct document_options documents;
    struct part *parts; // (n_parts)
    int n_parts;
    struct encoded *encoded; // (capacity) the results for the chunks of the current batch
    int capacity;
    struct text_reader *reader;
    struct text_batch batches[2];
    struct text_split split;
    struct source_counts *counts; // (sources->n)
    struct output output;
    struct text settings; // this run's settings, the start of its record; empty: it cannot be restarted
    struct progress progress;
    // Number of chunks read so far. A restart reads all chunks again, but encodes only those that an
    // earlier start has not added to the shards.
    uint64_t n_seen;
    bool has_record;   // there is a record from which the run can be restarted
    int warned_source; // index of the last source with a warning about its encoding; -1: none
    struct tokenize_shown shown;
};

// ---- encoding one chunk

static enum status encode_chunk(const struct run *run, struct part *part, const struct text_batch *batch,
                                int i) {
    const struct text_chunk *chunk = &batch->chunks[i];
    const struct text_source *source = &run->sources->list[chunk->source];
    struct encoded *out = &run->encoded[i];
    const struct token_list ids = {out->ids.ids, 0, out->ids.capacity};
    *out = (struct encoded){.ids = ids, .bad_at = chunk->n};
    if (source->format == TEXT_PLAIN)
        out->bad_at = documents_valid_bytes(batch->bytes + chunk->at, chunk->n);
    documents_begin(&part->documents, &run->documents, source, batch, chunk);
    for (struct document_part document;;) {
        TRY(documents_next(&part->documents, &document));
        if (document.n == 0)
            break;
        if (document.starts) {
            tokenizer_add_separator(run->tokenizer, false, &out->ids);
            out->n_documents++;
        }
        const size_t first = out->ids.n;
        TRY(token_encoder_add(part->encoder, document.text, document.n, document.starts, &out->ids));
        const int32_t *ids_of_part = out->ids.ids + first;
        // If the part continues a document, any id >= 0 can be passed as the token before the part. It only
        // means that the part does not begin a text.
        if (out->ids.n > first)
            out->n_bytes += tokenizer_text_bytes(run->tokenizer, document.starts ? -1 : ids_of_part[0],
                                                 ids_of_part, out->ids.n - first);
    }
    out->n_markers = part->documents.n_markers;
    return STATUS_OK;
}

// ---- encoding a batch of chunks in parallel

struct batch_work {
    const struct run *run;
    const struct text_batch *batch;
    struct text_batch *next;
    enum status *next_status;
    atomic_int *taken;
};

static void run_part(const void *context, int part, int n_parts) {
    (void)n_parts;
    const struct batch_work *work = context;
    if (part == 0)
        *work->next_status = text_reader_next(work->run->reader, work->next);
    for (int i; (i = atomic_fetch_add(work->taken, 1)) < work->batch->n_chunks;)
        work->run->encoded[i].status = encode_chunk(work->run, &work->run->parts[part], work->batch, i);
}

// Encodes the chunks of a batch from index `first` on. Meanwhile one of the threads reads the next batch,
// before it joins the encoding. STATUS_INVALID: a chunk is malformed; the message is about the first such
// chunk of the text.
//   next_status   [out] the status of reading the next batch
static enum status encode_batch(struct run *run, const struct text_batch *batch, int first,
                                struct text_batch *next, enum status *next_status) {
    if (run->capacity < batch->n_chunks) {
        run->encoded = reallocate(run->encoded, (size_t)batch->n_chunks, sizeof *run->encoded);
        memset(run->encoded + run->capacity, 0,
               (size_t)(batch->n_chunks - run->capacity) * sizeof *run->encoded);
        run->capacity = batch->n_chunks;
    }
    atomic_int taken = first;
    parallel_run(run->n_parts, run_part, &(struct batch_work){run, batch, next, next_status, &taken});
    // The recorded message is that of the chunk that failed first in time. Encode the failed chunk that
    // comes first in the text again, to report its message instead.
    for (int i = first; i < batch->n_chunks; i++)
        if (run->encoded[i].status != STATUS_OK) {
            status_clear();
            return encode_chunk(run, &run->parts[0], batch, i);
        }
    return STATUS_OK;
}

// ---- showing progress

enum { N_FIELDS = 5 };

static void describe(const struct tokenize_shown *shown, double now_s, uint64_t done, uint64_t tokens,
                     struct log_field fields[N_FIELDS]) {
    char number[32], of[32];
    const double elapsed_s = now_s - shown->began_s,
                 rate = elapsed_s > 0 ? (double)(done - shown->began_bytes) / elapsed_s : 0;
    static const int ranks[N_FIELDS] = {0, 2, 3, 4, 1};
    for (int i = 0; i < N_FIELDS; i++)
        fields[i] = (struct log_field){.rank = ranks[i]};
    text_bytes(number, sizeof number, (double)done);
    if (shown->total_bytes > 0) {
        snprintf(fields[0].text, sizeof fields[0].text, "%3.0f %%",
                 100 * (double)done / (double)shown->total_bytes);
        snprintf(fields[1].text, sizeof fields[1].text, "%s of %s", number,
                 text_bytes(of, sizeof of, (double)shown->total_bytes));
    } else
        snprintf(fields[1].text, sizeof fields[1].text, "%s", number);
    snprintf(fields[2].text, sizeof fields[2].text, "%s tokens", text_count(of, sizeof of, (double)tokens));
    snprintf(fields[3].text, sizeof fields[3].text, "%s/s", text_bytes(of, sizeof of, rate));
    if (shown->total_bytes >= done && rate > 0 && shown->total_bytes > 0)
        snprintf(fields[4].text, sizeof fields[4].text, "%s left",
                 text_duration(of, sizeof of, (double)(shown->total_bytes - done) / rate));
}

void tokenize_show(struct tokenize_shown *shown, uint64_t done, uint64_t tokens) {
    const double now_s = clock_monotonic_s();
    const bool live = log_is_terminal();
    struct log_field fields[N_FIELDS];
    char line[256];
    if (now_s - shown->shown_s < (live ? LIVE_S : LINE_S))
        return;
    shown->shown_s = now_s;
    describe(shown, now_s, done, tokens, fields);
    if (live)
        log_live(fields, N_FIELDS);
    else
        log_info("%s", log_join_fields(fields, N_FIELDS, sizeof line - 1, line, sizeof line));
}

// ---- the record of an unfinished run

static void describe_settings(struct run *run, const struct tokenizer_identity *tokenizer) {
    const struct tokenize_options *options = run->options;
    struct text *settings = &run->settings;
    char number[32], name[TOKENIZER_DESCRIPTION_BYTES];
    text_add(settings, "%s\n%s, %d, %s, %d, %s, %" PRId64 "\n", version_text(),
             tokenizer_identity_describe(tokenizer, name), (int)run->output.train.token_bytes,
             text_double(number, options->held_out), options->end_of_text,
             options->field ? options->field : "text", options->shard_tokens);
    for (int i = 0; i < run->sources->n; i++) {
        const struct text_source *source = &run->sources->list[i];
        text_add(settings, "%s, %" PRIu64 ", %" PRId64 "\n", source->path, source->bytes,
                 source->modified_ns);
    }
    text_add_bytes(settings, "", 1);
    if (run->shown.total_bytes == 0) // a source is a pipe, which a restart could not read again
        settings->length = 0;
}

// Appends the record of the current state to `record`. As the number of kept tokens of `split`, it has
// n_kept: the shards that contain these tokens are finished by the time that the record is written.
static void add_record(const struct run *run, const struct split_writer *split, uint64_t n_kept,
                       struct text *record) {
    struct progress progress = run->progress;
    progress.train = run->output.train.counts;
    progress.val = run->output.val.counts;
    (split == &run->output.train ? &progress.train : &progress.val)->n_kept = n_kept;
    text_add_bytes(record, run->settings.data, run->settings.length);
    text_add_bytes(record, &progress, sizeof progress);
    text_add_bytes(record, run->counts, (size_t)run->sources->n * sizeof *run->counts);
}

static enum status write_record(struct run *run, const struct text *record) {
    char *path = output_unfinished_path(run->options->out, "/record");
    enum status status = file_write_all(path, record->data, record->length);
    run->has_record = run->has_record || status == STATUS_OK;
    free(path);
    return status;
}

// Restores the state from a record, if it has the same settings and its shards exist.
static bool restore(struct run *run, const char *record, size_t bytes) {
    const size_t settings = run->settings.length, counts = (size_t)run->sources->n * sizeof *run->counts;
    if (settings == 0 || bytes != settings + sizeof run->progress + counts ||
        memcmp(record, run->settings.data, settings) != 0)
        return false;
    struct progress progress;
    memcpy(&progress, record + settings, sizeof progress);
    struct output output = run->output;
    output.train.counts = progress.train;
    output.val.counts = progress.val;
    if (!split_is_kept(&output.train) || !split_is_kept(&output.val))
        return false;
    run->progress = progress;
    run->output = output;
    memcpy(run->counts, record + settings + sizeof progress, counts);
    return true;
}

// Keeps the finished shards of an unfinished run with the same settings; removes the files of any other.
static enum status begin(struct run *run) {
    char *path = output_unfinished_path(run->options->out, "/record"), *record = NULL;
    size_t bytes = 0;
    if (file_exists(path) && file_read(path, SIZE_MAX, &record, &bytes) != STATUS_OK)
        status_clear();
    run->has_record = record && restore(run, record, bytes);
    free(record);
    free(path);
    if (run->has_record)
        log_info("%s: keeping the finished shards of an unfinished run, %llu tokens", run->options->out,
                 (unsigned long long)(run->output.train.counts.n_kept + run->output.val.counts.n_kept));
    else
        output_abandon(&run->output, false);
    path = output_unfinished_path(run->options->out, "");
    enum status status = file_make_folders(path);
    free(path);
    return status;
}

// ---- adding the encoded batches to the shards

static void warn_of_encoding(struct run *run, const struct text_batch *batch, const struct text_chunk *chunk,
                             size_t bad_at) {
    const struct text_source *source = &run->sources->list[chunk->source];
    if (run->warned_source == chunk->source)
        return;
    run->warned_source = chunk->source;
    documents_warn_of_encoding(source, batch, chunk, bad_at, "encoded");
}

// Returns how many ids at the start of a split to leave out. If the tokenizer has a beginning-of-text token,
// a separator begins with the end-of-text of the preceding document. Before the first document, this is left
// out.
static size_t n_left_out(const struct run *run, const struct split_writer *split,
                         const struct token_list *ids) {
    return tokenizer_has_bos(run->tokenizer) && split->counts.n_tokens == 0 && ids->n > 0 &&
                   ids->ids[0] == tokenizer_end_of_text(run->tokenizer)
               ? 1
               : 0;
}

// Ends a split. If the tokenizer has a beginning-of-text token, first adds the end-of-text of the last
// document.
static enum status end_split(const struct run *run, struct split_writer *split) {
    const int32_t end = tokenizer_end_of_text(run->tokenizer);
    if (split->counts.is_ended)
        return STATUS_OK;
    if (tokenizer_has_bos(run->tokenizer) && split->counts.n_tokens > 0)
        TRY(split_add(split, &end, 1));
    return split_end(split);
}

static enum status add_chunk(struct run *run, const struct text_batch *batch, int i) {
    const struct text_chunk *chunk = &batch->chunks[i];
    const struct encoded *encoded = &run->encoded[i];
    struct split_writer *split = chunk->held_out ? &run->output.val : &run->output.train;
    struct source_counts *counts = &run->counts[chunk->source];
    const size_t first = n_left_out(run, split, &encoded->ids), n_ids = encoded->ids.n - first;
    struct text record = {0};
    if (chunk->held_out)
        TRY(end_split(run, &run->output.train));
    // The number of tokens in finished shards once this chunk is added.
    const uint64_t n_kept = (split->counts.n_tokens + n_ids) / split->shard_tokens * split->shard_tokens;
    const bool finishes = run->settings.length > 0 && n_kept > split->counts.n_kept;
    if (finishes)
        add_record(run, split, n_kept, &record);
    enum status status = split_add(split, encoded->ids.ids + first, n_ids);
    if (status == STATUS_OK && finishes)
        status = write_record(run, &record);
    text_free(&record);
    TRY(status);
    split->counts.n_bytes += encoded->n_bytes;
    split->counts.n_documents += encoded->n_documents;
    counts->tokens += n_ids;
    counts->text_bytes += encoded->n_bytes;
    counts->documents += encoded->n_documents;
    run->progress.n_markers += encoded->n_markers;
    run->progress.n_chunks++;
    if (encoded->bad_at < chunk->n)
        warn_of_encoding(run, batch, chunk, encoded->bad_at);
    return STATUS_OK;
}

static enum status add_batch(struct run *run, const struct text_batch *batch, int first) {
    for (int i = first; i < batch->n_chunks; i++)
        TRY(add_chunk(run, batch, i));
    for (int i = 0; i < batch->n_ends; i++) {
        run->counts[batch->ends[i].source].bytes = batch->ends[i].bytes;
        run->counts[batch->ends[i].source].checksum = batch->ends[i].checksum;
    }
    tokenize_show(&run->shown, batch->file_bytes,
                  run->output.train.counts.n_tokens + run->output.val.counts.n_tokens);
    return STATUS_OK;
}

static enum status tokenize_batches(struct run *run) {
    int now = 0;
    TRY(text_reader_next(run->reader, &run->batches[now]));
    // The last batch may contain no chunks, only ends of sources.
    for (; run->batches[now].n_chunks + run->batches[now].n_ends > 0; now = 1 - now) {
        struct text_batch *batch = &run->batches[now];
        // The number of chunks, from the start of this batch on, that an earlier start has added already.
        const uint64_t n_done = run->progress.n_chunks - run->n_seen;
        const int first = n_done < (uint64_t)batch->n_chunks ? (int)n_done : batch->n_chunks;
        enum status next_status;
        run->n_seen += (uint64_t)batch->n_chunks;
        if (first > 0) {
            run->shown.began_s = clock_monotonic_s();
            run->shown.began_bytes = batch->file_bytes;
        }
        TRY(encode_batch(run, batch, first, &run->batches[1 - now], &next_status));
        TRY(add_batch(run, batch, first));
        TRY(next_status);
    }
    return STATUS_OK;
}

// ---- the whole run

static uint64_t total_bytes(const struct text_sources *sources) {
    uint64_t bytes = 0;
    for (int i = 0; i < sources->n; i++) {
        if (sources->list[i].modified_ns == 0) // the source is a pipe
            return 0;
        bytes += sources->list[i].bytes;
    }
    return bytes;
}

static enum status tokenize(struct run *run) {
    TRY(text_sources_split(run->sources, run->options->held_out, run->options->end_of_text, &run->split));
    TRY(begin(run));
    for (int i = 0; i < run->n_parts; i++)
        run->parts[i].encoder = token_encoder_new(run->tokenizer);
    run->reader = text_reader_new(run->sources, tokenizer_rules(run->tokenizer), run->split,
                                  run->options->end_of_text, run->progress.target);
    run->shown.began_s = run->shown.shown_s = clock_monotonic_s();
    enum status status = tokenize_batches(run);
    log_live_end();
    TRY(status);
    struct output *output = &run->output;
    TRY(end_split(run, &output->train));
    TRY(end_split(run, &output->val));
    if (output->train.counts.n_bytes + output->val.counts.n_bytes == 0)
        return FAIL(STATUS_INVALID, "train tokenize: %s contains no text", run->sources->list[0].path);
    if (run->options->held_out == 0 || text_sources_are_sized(run->sources))
        return STATUS_OK;
    run->has_record = false; // the record is wrong once tokens of finished shards move to val
    return output_hold_out(output, run->options->held_out, run->tokenizer);
}

static enum status publish(struct run *run) {
    const char **paths = allocate((size_t)run->sources->n, sizeof *paths);
    for (int i = 0; i < run->sources->n; i++)
        paths[i] = run->sources->list[i].path;
    const struct meta meta = {run->tokenizer, run->options->tokenizer_path, paths, run->counts,
                              run->sources->n};
    enum status status = output_publish(&run->output, &meta);
    free(paths);
    return status;
}

static void free_run(struct run *run) {
    for (int i = 0; i < run->n_parts; i++) {
        token_encoder_delete(run->parts[i].encoder);
        documents_free(&run->parts[i].documents);
    }
    for (int i = 0; i < run->capacity; i++)
        token_list_free(&run->encoded[i].ids);
    text_reader_delete(run->reader);
    text_batch_free(&run->batches[0]);
    text_batch_free(&run->batches[1]);
    text_free(&run->settings);
    free(run->parts);
    free(run->encoded);
    free(run->counts);
}

enum status texts_tokenize(const struct tokenize_options *options, const struct tokenizer *tokenizer,
                           const struct text_sources *sources) {
    const struct tokenizer_identity identity = tokenizer_identify(tokenizer, options->tokenizer_path);
    const size_t target = BATCH_PER_THREAD * (size_t)parallel_threads();
    struct run run = {.options = options,
                      .tokenizer = tokenizer,
                      .sources = sources,
                      .documents = {options->field, options->end_of_text},
                      .n_parts = parallel_threads(),
                      .split = {.source = -1},
                      .progress.target = target < SMALLEST_BATCH  ? SMALLEST_BATCH
                                         : target > LARGEST_BATCH ? LARGEST_BATCH
                                                                  : target,
                      .shown.total_bytes = total_bytes(sources),
                      .warned_source = -1};
    run.parts = allocate((size_t)run.n_parts, sizeof *run.parts);
    run.counts = allocate((size_t)sources->n, sizeof *run.counts);
    output_init(&run.output, options, &identity);
    describe_settings(&run, &identity);
    enum status status = tokenize(&run);
    if (status == STATUS_OK)
        status = publish(&run);
    if (status != STATUS_OK) {
        output_abandon(&run.output, run.has_record);
        if (run.has_record)
            log_info("%s: remove the cause and run the same command again; it keeps the finished shards",
                     options->out);
    } else {
        documents_warn_of_markers(run.progress.n_markers, "encoded");
        split_report(&run.output.train);
        split_report(&run.output.val);
    }
    free_run(&run);
    return status;
}
