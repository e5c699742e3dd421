// Iterates over the documents of plain text and of JSON Lines.
#include "data/text/documents.h"

#include <stdlib.h>
#include <string.h>

#include "base/file_kind.h"
#include "base/log.h"
#include "base/utf8.h"
#include "data/corpus.h"
#include "data/text/json_line.h"

#define BATCH_BYTES ((size_t)8 << 20)

// ---- the parts of a chunk

void documents_begin(struct documents *documents, const struct document_options *options,
                     const struct text_source *source, const struct text_batch *batch,
                     const struct text_chunk *chunk) {
    const char *text = batch->bytes + chunk->at, *end = text + chunk->n;
    const struct text line = documents->line;
    *documents = (struct documents){.options = options, .line = line, .end = end};
    if (source->format == TEXT_JSON_LINES) {
        documents->source = strcmp(source->path, "-") ? source->path : "standard input";
        documents->lines = text;
        documents->number = chunk->line;
    } else {
        documents->lines = documents->text_end = end;
        documents->at = text;
        documents->starts = chunk->starts_document;
    }
}

static uint64_t count_markers(const char *text, size_t n) {
    const size_t length = sizeof CORPUS_END_OF_TEXT - 1;
    uint64_t markers = 0;
    for (const char *at = text, *end = text + n;
         (at = memmem(at, (size_t)(end - at), CORPUS_END_OF_TEXT, length)); at += length)
        markers++;
    return markers;
}

static enum status next_line(struct documents *documents) {
    const char *line = documents->lines, *newline = memchr(line, '\n', (size_t)(documents->end - line));
    const size_t n = (size_t)((newline ? newline : documents->end) - line);
    const char *field = documents->options->field;
    documents->lines = newline ? newline + 1 : documents->end;
    documents->at = documents->text_end = NULL;
    documents->starts = true;
    if (!text_is_blank(line, n)) {
        TRY(json_line_read(line, n, field ? field : "text", documents->source, documents->number,
                           &documents->line));
        documents->at = documents->line.data ? documents->line.data : "";
        documents->text_end = documents->at + documents->line.length;
    }
    documents->number++;
    return STATUS_OK;
}

enum status documents_next(struct documents *documents, struct document_part *part) {
    const bool end_of_text = documents->options->end_of_text;
    *part = (struct document_part){0};
    for (;;) {
        while (
            corpus_next_document(&documents->at, documents->text_end, end_of_text, &part->text, &part->n)) {
            part->starts = documents->starts;
            documents->starts = true;
            documents->n_markers += end_of_text ? 0 : count_markers(part->text, part->n);
            if (part->n > 0)
                return STATUS_OK;
        }
        if (documents->lines == documents->end)
            return STATUS_OK;
        TRY(next_line(documents));
    }
}

void documents_free(struct documents *documents) {
    text_free(&documents->line);
}

// ---- warnings

size_t documents_valid_bytes(const char *text, size_t n) {
    const char *zero = memchr(text, '\0', n);
    return utf8_valid_bytes(text, zero ? (size_t)(zero - text) : n);
}

void documents_warn_of_encoding(const struct text_source *source, const struct text_batch *batch,
                                const struct text_chunk *chunk, size_t bad_at, const char *use) {
    const char *path = source->path;
    const unsigned char byte = (unsigned char)batch->bytes[chunk->at + bad_at];
    const unsigned long long offset = chunk->offset + bad_at;
    const bool is_utf_16 = source->is_sized && file_kind_of_path(path) == FILE_KIND_TEXT_UTF_16;
    const enum file_kind kind = is_utf_16 ? FILE_KIND_TEXT_UTF_16 : FILE_KIND_TEXT_8_BIT;
    char *advice = file_kind_advice(kind, path);
    if (byte == 0 && !is_utf_16)
        log_warning("%s is not text: there is a zero byte at offset %llu. Its bytes are %s as they are", path,
                    offset, use);
    else
        log_warning("%s is not UTF-8%s%s: byte 0x%02x at offset %llu. Its bytes are %s as they are; %s", path,
                    is_utf_16 ? " but " : "", is_utf_16 ? file_kind_name(kind) : "", byte, offset, use,
                    advice);
    free(advice);
}

void documents_warn_of_markers(uint64_t n, const char *use) {
    if (n > 0)
        log_warning(CORPUS_END_OF_TEXT " occurs %llu time%s and is %s as text; with --end-of-text it ends a "
                                       "document",
                    (unsigned long long)n, n == 1 ? "" : "s", use);
}

// ---- reading the documents of all sources

struct pass {
    const struct text_sources *sources;
    const struct document_options *options;
    const char *use;
    document_take *take;
    void *context;
    struct documents documents;
    uint64_t n_markers;
    int warned_source;
};

static enum status take_chunk(struct pass *pass, const struct text_batch *batch,
                              const struct text_chunk *chunk) {
    const struct text_source *source = &pass->sources->list[chunk->source];
    const char *text = batch->bytes + chunk->at;
    struct document_part part;
    if (source->format == TEXT_PLAIN && pass->warned_source != chunk->source) {
        const size_t bad_at = documents_valid_bytes(text, chunk->n);
        if (bad_at < chunk->n) {
            documents_warn_of_encoding(source, batch, chunk, bad_at, pass->use);
            pass->warned_source = chunk->source;
        }
    }
    documents_begin(&pass->documents, pass->options, source, batch, chunk);
    for (;;) {
        TRY(documents_next(&pass->documents, &part));
        if (part.n == 0)
            break;
        TRY(pass->take(pass->context, &part));
    }
    pass->n_markers += pass->documents.n_markers;
    return STATUS_OK;
}

enum status documents_read(const struct text_sources *sources, const struct document_options *options,
                           struct token_rules rules, struct text_split split, const char *use,
                           document_take *take, void *context) {
    struct pass pass = {sources, options, use, take, context, .warned_source = -1};
    struct text_reader *reader = text_reader_new(sources, rules, split, options->end_of_text, BATCH_BYTES);
    struct text_batch batch = {0};
    enum status status = STATUS_OK;
    do {
        status = text_reader_next(reader, &batch);
        for (int i = 0; status == STATUS_OK && i < batch.n_chunks && !batch.chunks[i].held_out; i++)
            status = take_chunk(&pass, &batch, &batch.chunks[i]);
    } while (status == STATUS_OK && batch.n_chunks > 0);
    if (status == STATUS_OK)
        documents_warn_of_markers(pass.n_markers, use);
    documents_free(&pass.documents);
    text_batch_free(&batch);
    text_reader_delete(reader);
    return status;
}

// ---- encoding

struct encoding {
    const struct tokenizer *tokenizer;
    struct token_encoder *encoder;
    struct token_list *list;
    bool as_shards;
};

static enum status encode_part(void *context, const struct document_part *part) {
    const struct encoding *encoding = context;
    const bool is_first = encoding->list->n == 0;
    if (part->starts && (encoding->as_shards || !is_first))
        tokenizer_add_separator(encoding->tokenizer, is_first, encoding->list);
    return token_encoder_add(encoding->encoder, part->text, part->n, part->starts, encoding->list);
}

enum status documents_encode(const char *const *paths, int n_paths, const struct document_options *options,
                             const struct tokenizer *tokenizer, bool as_shards, struct token_list *list) {
    struct text_sources sources;
    TRY(text_sources_find(paths, n_paths, options->field != NULL, &sources));
    struct encoding encoding = {tokenizer, token_encoder_new(tokenizer), list, as_shards};
    enum status status = documents_read(&sources, options, tokenizer_rules(tokenizer),
                                        (struct text_split){-1, 0}, "encoded", encode_part, &encoding);
    if (as_shards && tokenizer_has_bos(tokenizer) && list->n > 0 && status == STATUS_OK)
        token_list_add(list, tokenizer_end_of_text(tokenizer));
    token_encoder_delete(encoding.encoder);
    text_sources_free(&sources);
    return status;
}
