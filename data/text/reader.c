// Cuts text into chunks. The text after the last chunk of a batch is carried over to the next batch.
#include "data/text/reader.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data/corpus.h"
#include "data/text/input.h"
#include "data/tokenizer/encode.h"

#define CHUNK_BYTES  ((size_t)1 << 18)
#define SMALL_CHUNKS 4 // a batch of small files has at most 4 times the chunks of a batch of one large file
#define LONGEST_LINE ((size_t)256 << 20) // maximum bytes of a line of JSON Lines
#define LONGEST_WORD ((size_t)4 << 20)   // maximum bytes of a pre-token where no boundary is found
// If at least this many bytes follow a pre-token, text appended to them cannot move the pre-token's end. This
// is more than any pattern looks ahead, and more than the length of CORPUS_END_OF_TEXT.
#define LOOKAHEAD 16

struct text_reader {
    const struct text_sources *sources;
    struct token_rules rules;
    struct text_split split;
    bool documents;
    size_t target;
    struct text_input *input; // the open file of source at.source; NULL: not open yet
    // The position of the first text that is not in a chunk yet.
    struct position {
        int source;             // index; sources->n at the end
        uint64_t offset, lines; // bytes and line feeds before it in the source's (decompressed) text
        bool starts_document;   // a document starts at `offset`
    } at;
    struct text carry;   // text read from `at` on that is not in a chunk yet
    uint64_t file_bytes; // stored bytes of all files before source at.source
};

struct text_reader *text_reader_new(const struct text_sources *sources, struct token_rules rules,
                                    struct text_split split, bool documents, size_t target) {
    struct text_reader *reader = allocate(1, sizeof *reader);
    *reader = (struct text_reader){.sources = sources,
                                   .rules = rules,
                                   .split = split,
                                   .documents = documents,
                                   .target = target,
                                   .at.starts_document = true};
    return reader;
}

void text_reader_delete(struct text_reader *reader) {
    if (!reader)
        return;
    text_input_close(reader->input);
    text_free(&reader->carry);
    free(reader);
}

void text_batch_free(struct text_batch *batch) {
    free(batch->bytes);
    free(batch->chunks);
    free(batch->ends);
    *batch = (struct text_batch){0};
}

// ---- cutting chunks

static bool is_held_out(const struct text_reader *reader) {
    const struct text_split *split = &reader->split;
    return split->source >= 0 && (reader->at.source > split->source ||
                                  (reader->at.source == split->source && reader->at.offset >= split->offset));
}

static uint64_t count_lines(const char *text, size_t n) {
    uint64_t lines = 0;
    for (const char *at = text, *end = text + n; (at = memchr(at, '\n', (size_t)(end - at))); at++)
        lines++;
    return lines;
}

static bool ends_with_marker(const char *text, size_t n) {
    const size_t length = sizeof CORPUS_END_OF_TEXT - 1;
    return n >= length && memcmp(text + n - length, CORPUS_END_OF_TEXT, length) == 0;
}

static void add_chunk(struct text_reader *reader, struct text_batch *batch, size_t at, size_t n) {
    struct position *position = &reader->at;
    RESERVE(batch->chunks, batch->n_chunks + 1, batch->chunks_capacity);
    batch->chunks[batch->n_chunks++] = (struct text_chunk){.at = at,
                                                           .n = n,
                                                           .source = position->source,
                                                           .offset = position->offset,
                                                           .line = position->lines + 1,
                                                           .starts_document = position->starts_document,
                                                           .held_out = is_held_out(reader)};
    position->offset += n;
    position->lines += count_lines(batch->bytes + at, n);
    position->starts_document = reader->documents && ends_with_marker(batch->bytes + at, n);
}

static enum status too_long(const struct text_reader *reader, const char *what, size_t longest,
                            const char *advice) {
    return FAIL(STATUS_INVALID, "%s:%llu: %s of more than %zu MiB (at offset %llu); %s",
                text_input_name(reader->input), (unsigned long long)reader->at.lines + 1, what, longest >> 20,
                (unsigned long long)reader->at.offset, advice);
}

// Cuts text in which tokenizer_next_boundary finds no boundary soon enough, such as minified code. Cuts at
// the first end of a pre-token that is at or after CHUNK_BYTES and not inside an added token. Text that NFC
// may change counts as one pre-token, because normalization may change where its pre-tokens end.
//   last   true: nothing follows these n bytes
//   cut    [out] length of the chunk; 0: more text is needed, because it could move that end
static enum status cut_between_words(const struct text_reader *reader, const char *text, size_t n, bool last,
                                     size_t *cut) {
    const bool is_whole = reader->rules.nfc && utf8_may_normalize(text, n);
    size_t at = 0;
    *cut = 0;
    while (at < n && (at < CHUNK_BYTES || tokenizer_is_in_added(reader->rules, text, n, at))) {
        const size_t word = is_whole ? n : tokenizer_next_pretoken(reader->rules, text + at, n - at);
        if (word > LONGEST_WORD)
            return too_long(reader, "a word", LONGEST_WORD, "it is not text; remove it from the file");
        at += word;
    }
    if (last || at + LOOKAHEAD <= n)
        *cut = at;
    return STATUS_OK;
}

// Finds the length of the chunk of plain text that begins at `text`.
//   last   true: nothing follows these n bytes
//   cut    [out] the length; 0: more text is needed
static enum status cut_plain(const struct text_reader *reader, const char *text, size_t n, bool last,
                             size_t *cut) {
    *cut = last ? n : 0;
    if (n <= CHUNK_BYTES)
        return STATUS_OK;
    *cut = tokenizer_next_boundary(reader->rules, text, n, CHUNK_BYTES);
    return *cut < n && *cut <= LONGEST_WORD ? STATUS_OK : cut_between_words(reader, text, n, last, cut);
}

static enum status cut_lines(const struct text_reader *reader, const char *text, size_t n, bool last,
                             size_t *cut) {
    const char *newline = n >= CHUNK_BYTES ? memchr(text + CHUNK_BYTES - 1, '\n', n - CHUNK_BYTES + 1) : NULL;
    if (!newline && !last)
        newline = memrchr(text, '\n', n);
    *cut = newline ? (size_t)(newline - text) + 1 : last ? n : 0;
    if (*cut == 0 && n > LONGEST_LINE)
        return too_long(reader, "a line", LONGEST_LINE,
                        "expected a JSON object on each line; split or remove it");
    return STATUS_OK;
}

static enum status cut_chunks(struct text_reader *reader, struct text_batch *batch, size_t at, bool last) {
    const bool lines = reader->sources->list[reader->at.source].format == TEXT_JSON_LINES;
    while (at < batch->n) {
        size_t cut;
        TRY((lines ? cut_lines : cut_plain)(reader, batch->bytes + at, batch->n - at, last, &cut));
        if (cut == 0)
            break;
        add_chunk(reader, batch, at, cut);
        at += cut;
    }
    reader->carry.length = 0;
    text_add_bytes(&reader->carry, batch->bytes + at, batch->n - at);
    batch->n = at;
    return STATUS_OK;
}

// ---- reading sources

static void end_source(struct text_reader *reader, struct text_batch *batch) {
    const uint64_t bytes = text_input_file_bytes(reader->input);
    RESERVE(batch->ends, batch->n_ends + 1, batch->ends_capacity);
    batch->ends[batch->n_ends++] =
        (struct text_source_end){reader->at.source, bytes, text_input_checksum(reader->input)};
    reader->file_bytes += bytes;
    text_input_close(reader->input);
    reader->input = NULL;
    reader->at = (struct position){.source = reader->at.source + 1, .starts_document = true};
}

// Appends more text of the current source to the batch, and cuts it into chunks. Stops at the split point.
static enum status read_source(struct text_reader *reader, struct text_batch *batch) {
    const size_t begin = batch->n, carried = reader->carry.length;
    // Read at least as many bytes as were carried over, so that the buffer of a long line grows by doubling.
    size_t room = reader->target > begin ? reader->target - begin : 0;
    room = room > CHUNK_BYTES ? room : CHUNK_BYTES;
    room = room > 2 * carried ? room : 2 * carried;
    bool at_split = false, at_end = false;
    if (reader->split.source == reader->at.source && reader->at.offset < reader->split.offset) {
        const uint64_t left = reader->split.offset - reader->at.offset;
        at_split = left <= room;
        room = at_split ? (size_t)left : room;
    }
    if (batch->capacity < begin + room)
        batch->bytes = reallocate(batch->bytes, batch->capacity = begin + room, 1);
    // The split point may be in the carried text. `rest` is the carried text after it.
    const size_t used = carried < room ? carried : room;
    memcpy(batch->bytes + begin, reader->carry.data ? reader->carry.data : "", used);
    struct text rest = {0};
    text_add_bytes(&rest, reader->carry.data ? reader->carry.data + used : "", carried - used);
    batch->n = begin + used;
    enum status status = STATUS_OK;
    for (size_t got; status == STATUS_OK && batch->n < begin + room && !at_end; batch->n += got) {
        status = text_input_read(reader->input, batch->bytes + batch->n, begin + room - batch->n, &got);
        at_end = status == STATUS_OK && got == 0;
    }
    if (status == STATUS_OK)
        status = cut_chunks(reader, batch, begin, at_end || at_split);
    if (status == STATUS_OK && at_split && !at_end) {
        reader->at.starts_document = true; // held-out text begins a document
        text_add_bytes(&reader->carry, rest.data ? rest.data : "", rest.length);
    }
    text_free(&rest);
    if (status == STATUS_OK && at_end)
        end_source(reader, batch);
    return status;
}

enum status text_reader_next(struct text_reader *reader, struct text_batch *batch) {
    batch->n = 0;
    batch->n_chunks = batch->n_ends = 0;
    const int most_chunks = SMALL_CHUNKS * (int)(reader->target / CHUNK_BYTES + 1);
    // Read sources until the batch is full. A source may be empty, so go on until the batch has a chunk or
    // all sources have ended.
    while (reader->at.source < reader->sources->n &&
           ((batch->n < reader->target && batch->n_chunks < most_chunks) || batch->n_chunks == 0)) {
        if (!reader->input)
            TRY(text_input_open(reader->sources->list[reader->at.source].path, &reader->input));
        const size_t before = batch->n;
        const int source = reader->at.source;
        TRY(read_source(reader, batch));
        // The next chunk of this source does not fit into the batch.
        if (batch->n == before && reader->at.source == source && batch->n_chunks > 0)
            break;
    }
    batch->file_bytes = reader->file_bytes + (reader->input ? text_input_file_bytes(reader->input) : 0);
    return STATUS_OK;
}
