// Texts as they are brought: plain, or packed with gzip or zstd; whole, or as lines of JSON.
#include <string.h>

#include "data/text/json_line.h"
#include "data/text/reader.h"
#include "tests/fuzz/fuzz.h"

// Reads the lines of a chunk until one is malformed.
static bool read_lines(const struct text_batch *batch, const struct text_chunk *chunk) {
    struct text out = {0};
    bool is_read = true;
    for (const char *line = batch->bytes + chunk->at, *end = line + chunk->n, *newline; is_read && line < end;
         line = newline + 1) {
        newline = memchr(line, '\n', (size_t)(end - line));
        newline = newline ? newline : end;
        is_read =
            fuzz_accepted(json_line_read(line, (size_t)(newline - line), "text", "lines", chunk->line, &out));
        // An escape has at least as many bytes as its character.
        FUZZ_REQUIRE(!is_read || out.length <= (size_t)(newline - line));
    }
    text_free(&out);
    return is_read;
}

// The chunks of a batch follow one another, and those of the next batch them.
static void check_chunks(const struct text_batch *batch, uint64_t *offset) {
    for (int i = 0; i < batch->n_chunks; i++) {
        const struct text_chunk *chunk = &batch->chunks[i];
        FUZZ_REQUIRE(chunk->n > 0 && chunk->at + chunk->n <= batch->n && chunk->offset == *offset);
        *offset += chunk->n;
    }
}

// The first byte chooses the file's name.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct text_sources sources;
    struct text_reader *reader = NULL;
    struct text_batch batch = {0};
    uint64_t offset = 0;
    if (size == 0)
        return 0;
    const bool lines = data[0] & 1;
    const char *path = fuzz_file(lines ? "a.jsonl" : "a.txt", data + 1, size - 1);
    if (fuzz_accepted(text_sources_find(&path, 1, false, &sources))) {
        const struct text_split split = {lines || !sources.list[0].is_sized ? -1 : 0, size / 2};
        reader = text_reader_new(&sources, (struct token_rules){0}, split, data[0] & 2, 1);
        bool goes_on = true;
        while (goes_on && fuzz_accepted(text_reader_next(reader, &batch)) && batch.n_chunks > 0) {
            check_chunks(&batch, &offset);
            for (int i = 0; lines && goes_on && i < batch.n_chunks; i++)
                goes_on = read_lines(&batch, &batch.chunks[i]);
        }
        FUZZ_REQUIRE(lines || !sources.list[0].is_sized || offset == sources.list[0].bytes);
        text_reader_delete(reader);
        text_batch_free(&batch);
        text_sources_free(&sources);
    }
    unlink(path);
    return 0;
}
