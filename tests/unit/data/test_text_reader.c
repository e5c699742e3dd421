// Reading corpora: chunks of text encode as the whole, packed files unpack to the last byte or are named, and
// lines of JSON give their text or a message with file and line.
#include "tests/support/expect.h"

#include <stdlib.h>
#include <zlib.h>
#include <zstd.h>

#include "base/log.h"
#include "base/rng.h"
#include "data/corpus.h"
#include "data/text/documents.h"
#include "data/text/input.h"
#include "data/text/json_line.h"
#include "data/text/reader.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/support/damage.h"
#include "tests/support/temporary.h"

#define LARGE_BYTES ((size_t)560000) // three chunks

static struct temporary temporary;
static char path[300], other_path[300];

static int set_up(void **state) {
    (void)state;
    if (!temporary_init(&temporary))
        return -1;
    temporary_path(&temporary, "a.txt", path, sizeof path);
    temporary_path(&temporary, "b.txt", other_path, sizeof other_path);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    return temporary_free(&temporary) ? 0 : -1;
}

// ---- chunks

static const char *const prose[] = {" the", " king's", "\n",       "  ", " 1611",
                                    ",",    " day",    "\xc3\xa9", ".",  "\n\n\n"};
static const char *const minified[] = {"{", "}", "ab", "=1", ";", "'s", "\xe6\x97\xa5", "\xff", "0", "()"};
static const char *const marked[] = {
    "<|endoftext|>", "<|endof", "text|>", "<|", " a", "\n", "b", "  ", "c", "\t"};

static char *random_text(const char *const words[10], uint64_t seed, size_t *n) {
    char *text = malloc(LARGE_BYTES + 16);
    assert_non_null(text);
    *n = 0;
    for (uint64_t i = 0; *n < LARGE_BYTES; i++) {
        const char *word = words[rng_below(seed, 1, i, 10)];
        memcpy(text + *n, word, strlen(word));
        *n += strlen(word);
    }
    return text;
}

// Encodes the chunks from the reader on, as documents, and expects the ids of `list` from *at on.
static void expect_chunks(struct text_reader *reader, const struct tokenizer *tokenizer, bool documents,
                          const struct token_list *list, size_t *at) {
    struct text_batch batch = {0};
    struct token_encoder *encoder;
    struct token_list ids = {0};
    encoder = token_encoder_new(tokenizer);
    for (;;) {
        EXPECT_OK(text_reader_next(reader, &batch));
        if (batch.n_chunks == 0)
            break;
        for (int i = 0; i < batch.n_chunks; i++) {
            const struct text_chunk *chunk = &batch.chunks[i];
            const char *text = batch.bytes + chunk->at, *document;
            bool starts = chunk->starts_document;
            for (size_t n;
                 corpus_next_document(&text, batch.bytes + chunk->at + chunk->n, documents, &document, &n);
                 starts = true) {
                if (starts && n > 0)
                    token_list_add(&ids, tokenizer_end_of_text(tokenizer));
                EXPECT_OK(token_encoder_add(encoder, document, n, starts, &ids));
            }
        }
        assert_true(*at + ids.n <= list->n);
        assert_memory_equal(ids.ids, list->ids + *at, ids.n * sizeof *ids.ids);
        *at += ids.n;
        ids.n = 0;
    }
    token_list_free(&ids);
    token_encoder_delete(encoder);
    text_batch_free(&batch);
}

static void encode_documents(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                             bool documents, struct token_list *list) {
    const char *at = text, *document;
    for (size_t n; corpus_next_document(&at, text + bytes, documents, &document, &n);)
        if (n > 0) {
            token_list_add(list, tokenizer_end_of_text(tokenizer));
            EXPECT_OK(tokenizer_encode(tokenizer, document, n, list));
        }
}

// split: offset in the first source, 0 for none.
static void expect_as_whole(const char *text, size_t n, bool documents, size_t target, uint64_t split) {
    char *paths[] = {path, other_path, path};
    const char *const names[] = {paths[0], paths[1], paths[2]};
    struct text_sources sources;
    struct tokenizer *tokenizer;
    struct token_list list = {0};
    struct text_reader *reader;
    size_t at = 0;
    EXPECT_OK(file_write_all(path, text, n));
    EXPECT_OK(file_write_all(other_path, "", 0));
    EXPECT_OK(tokenizer_train(text, 20000, NULL, 0, 300, &tokenizer));
    encode_documents(tokenizer, text, split, documents, &list);
    encode_documents(tokenizer, text + split, n - split, documents, &list);
    encode_documents(tokenizer, text, n, documents, &list);
    EXPECT_OK(text_sources_find(names, 3, false, &sources));
    const struct text_split at_split = {split ? 0 : -1, split};
    reader = text_reader_new(&sources, (struct token_rules){0}, at_split, documents, target);
    expect_chunks(reader, tokenizer, documents, &list, &at);
    assert_int_equal(at, list.n);
    text_reader_delete(reader);
    text_sources_free(&sources);
    token_list_free(&list);
    tokenizer_delete(tokenizer);
}

static void test_chunks_encode_as_the_whole(void **state) {
    (void)state;
    const struct {
        const char *const *words;
        bool documents;
        size_t target;
        uint64_t split;
    } cases[] = {{prose, false, 1, 0},
                 {prose, false, 500000, 400001},
                 {minified, false, 400000, 100},
                 {marked, true, 350000, 500003},
                 {marked, false, LARGE_BYTES, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n;
        char *text = random_text(cases[i].words, i, &n);
        expect_as_whole(text, n, cases[i].documents, cases[i].target, cases[i].split);
        free(text);
    }
}

static void test_words_without_an_end(void **state) {
    (void)state;
    const size_t n = (size_t)5 << 20;
    char *text = malloc(n);
    const char *const names[] = {path};
    assert_non_null(text);
    memset(text, 'x', n);
    for (int with_space = 0; with_space < 2; with_space++) {
        struct text_sources sources;
        struct text_reader *reader;
        struct text_batch batch = {0};
        text[n - 1] = with_space ? ' ' : 'x';
        EXPECT_OK(file_write_all(path, text, n));
        EXPECT_OK(text_sources_find(names, 1, false, &sources));
        reader = text_reader_new(&sources, (struct token_rules){0}, (struct text_split){-1, 0}, false, n);
        EXPECT_FAILURE(STATUS_INVALID, text_reader_next(reader, &batch), path,
                       ":1:", "a word of more than 4 MiB");
        text_reader_delete(reader);
        text_batch_free(&batch);
        text_sources_free(&sources);
    }
    free(text);
}

// A batch of small files has a limited number of chunks, as each chunk takes memory of its own.
static void test_small_files(void **state) {
    (void)state;
    const char *names[500];
    struct text_sources sources;
    struct text_reader *reader;
    struct text_batch batch = {0};
    int n_chunks = 0, n_ends = 0;
    EXPECT_OK(file_write_all(path, "small\n", 6));
    for (int i = 0; i < 500; i++)
        names[i] = path;
    EXPECT_OK(text_sources_find(names, 500, false, &sources));
    reader = text_reader_new(&sources, (struct token_rules){0}, (struct text_split){-1, 0}, false, 1 << 20);
    do {
        EXPECT_OK(text_reader_next(reader, &batch));
        assert_true(batch.n_chunks <= 20);
        for (int i = 0; i < batch.n_chunks; i++)
            assert_int_equal(batch.chunks[i].source, n_chunks + i);
        n_chunks += batch.n_chunks;
        n_ends += batch.n_ends;
    } while (batch.n_chunks > 0);
    assert_int_equal(n_chunks, 500);
    assert_int_equal(n_ends, 500);
    text_reader_delete(reader);
    text_batch_free(&batch);
    text_sources_free(&sources);
}

// ---- sources

static void test_sources(void **state) {
    (void)state;
    char folder[300], inner[340], name[400];
    struct text_sources sources;
    temporary_path(&temporary, "texts", folder, sizeof folder);
    snprintf(inner, sizeof inner, "%s/b/c", folder);
    const char *const folders[] = {folder};
    EXPECT_OK(file_make_folders(folder));
    EXPECT_FAILURE(STATUS_INVALID, text_sources_find(folders, 1, false, &sources), folder, "holds no files");
    EXPECT_OK(file_make_folders(inner));
    const char *const files[] = {"a.txt", "b/c/x.JSONL.gz", "b/d.json", "c.ndjson.zst", "z.jsonl.txt"};
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "%s/%s", folder, files[i]);
        EXPECT_OK(file_write_all(name, "text\n", 5));
    }
    snprintf(name, sizeof name, "%s/.hidden", folder);
    EXPECT_OK(file_write_all(name, "PAR1", 4));
    EXPECT_OK(text_sources_find(folders, 1, false, &sources));
    assert_int_equal(sources.n, 5);
    for (int i = 0; i < 5; i++) {
        assert_string_equal(sources.list[i].path + strlen(folder) + 1, files[i]);
        assert_int_equal(sources.list[i].format, i % 4 ? TEXT_JSON_LINES : TEXT_PLAIN);
        assert_int_equal(sources.list[i].is_sized, i % 4 == 0);
    }
    text_sources_free(&sources);
    EXPECT_FAILURE(STATUS_INVALID, text_sources_find((const char *const[]){name}, 1, false, &sources), name,
                   "Parquet", "to_json");
    EXPECT_FAILURE(STATUS_INVALID, text_sources_find((const char *const[]){"-", "-"}, 2, false, &sources),
                   "twice");
    EXPECT_FAILURE(STATUS_INVALID, text_sources_find((const char *const[]){"absent"}, 1, false, &sources),
                   "absent");
}

// ---- documents

static enum status join(void *context, const struct document_part *part) {
    struct text *out = context;
    text_add(out, "%s", part->starts ? "|" : "");
    text_add_bytes(out, part->text, part->n);
    return STATUS_OK;
}

static void expect_documents(const char *name, const char *data, bool end_of_text, const char *wanted) {
    char file[300];
    const char *const names[] = {temporary_path(&temporary, name, file, sizeof file)};
    const struct document_options options = {NULL, end_of_text};
    struct text_sources sources;
    struct text out = {0};
    EXPECT_OK(file_write_all(names[0], data, strlen(data)));
    EXPECT_OK(text_sources_find(names, 1, false, &sources));
    EXPECT_OK(documents_read(&sources, &options, (struct token_rules){0}, (struct text_split){-1, 0}, "read",
                             join, &out));
    assert_string_equal(out.data ? out.data : "", wanted);
    text_free(&out);
    text_sources_free(&sources);
}

static void test_documents(void **state) {
    (void)state;
    log_set_level(LOG_QUIET);
    expect_documents("d.txt", "", true, "");
    expect_documents("d.txt", "\xef\xbb\xbf", true, "");
    expect_documents("d.txt", "\xef\xbb\xbfone\r\n\xef\xbb\xbf", true, "|one\r\n\xef\xbb\xbf");
    expect_documents("d.txt", "<|endoftext|>a<|endoftext|><|endoftext|>b<|endoftext|>", true, "|a|b");
    expect_documents("d.txt", "<|endoftext|>a", false, "|<|endoftext|>a");
    expect_documents("d.jsonl",
                     "\xef\xbb\xbf{\"text\": \"\"}\r\n\r\n{\"text\": \"a\"}\n{\"text\": \"b<|endoftext|>c\"}",
                     true, "|a|b|c");
    expect_documents("d.jsonl", "{\"text\": \"\"}\n", false, "");
}

// ---- packed files

static const char packed_text[] = "The first line\nand the second one, which is longer\n";

static void add_gzip(struct bytes *bytes, const char *text) {
    z_stream gzip = {0};
    assert_int_equal(deflateInit2(&gzip, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    gzip.next_in = (unsigned char *)(uintptr_t)text;
    gzip.avail_in = (unsigned)strlen(text);
    gzip.next_out = bytes->data + bytes->n;
    gzip.avail_out = (unsigned)(sizeof bytes->data - bytes->n);
    assert_int_equal(deflate(&gzip, Z_FINISH), Z_STREAM_END);
    bytes->n += gzip.total_out;
    deflateEnd(&gzip);
}

static void add_zstd(struct bytes *bytes, const char *text) {
    bytes->n += ZSTD_compress(bytes->data + bytes->n, sizeof bytes->data - bytes->n, text, strlen(text), 3);
}

// Reads a file in parts of `room` bytes. Returns the status; n: bytes of text.
static enum status unpack(const char *name, size_t room, char *text, size_t capacity, size_t *n) {
    struct text_input *input;
    *n = 0;
    TRY(text_input_open(name, &input));
    enum status status = STATUS_OK;
    for (size_t got = 1; got > 0 && status == STATUS_OK; *n += got) {
        got = 0;
        if (*n + room > capacity)
            break;
        status = text_input_read(input, text + *n, room, &got);
    }
    text_input_close(input);
    return status;
}

static void expect_unpacked(const struct bytes *bytes, const char *wanted) {
    char text[1000];
    size_t n;
    damage_write(path, bytes);
    for (size_t room = 1; room <= 200; room += 199) {
        EXPECT_OK(unpack(path, room, text, sizeof text, &n));
        assert_int_equal(n, strlen(wanted));
        assert_memory_equal(text, wanted, n);
    }
}

static void expect_truncated(struct bytes bytes, size_t first, size_t end, const char *packing) {
    char text[1000];
    size_t n;
    for (bytes.n = first; bytes.n < end; bytes.n++) {
        damage_write(path, &bytes);
        EXPECT_FAILURE(STATUS_INVALID, unpack(path, 100, text, sizeof text, &n), path, "truncated", packing);
    }
}

static void test_gzip(void **state) {
    (void)state;
    struct bytes bytes = {.n = 0};
    add_gzip(&bytes, packed_text);
    const size_t first = bytes.n;
    expect_unpacked(&bytes, packed_text);
    expect_truncated(bytes, 4, first, "gzip");
    add_gzip(&bytes, ""); // members without text
    add_gzip(&bytes, "more");
    expect_unpacked(&bytes, "The first line\nand the second one, which is longer\nmore");
    expect_truncated(bytes, bytes.n - 10, bytes.n, "gzip");
    memset(bytes.data + bytes.n, 0, 100); // padding
    bytes.n += 100;
    expect_unpacked(&bytes, "The first line\nand the second one, which is longer\nmore");
    memset(bytes.data + bytes.n, 'x', 3);
    bytes.n += 3;
    char text[1000];
    size_t n;
    damage_write(path, &bytes);
    EXPECT_FAILURE(STATUS_INVALID, unpack(path, 100, text, sizeof text, &n), path, "gzip",
                   "damaged at or before");
    bytes.n = first;
    bytes.data[first - 5] ^= 1; // in the checksum
    damage_write(path, &bytes);
    EXPECT_FAILURE(STATUS_INVALID, unpack(path, 100, text, sizeof text, &n), path, "gzip", "damaged");
}

static void test_zstd(void **state) {
    (void)state;
    struct bytes bytes = {.n = 0};
    add_zstd(&bytes, packed_text);
    expect_unpacked(&bytes, packed_text);
    expect_truncated(bytes, 4, bytes.n, "zstd");
    static const uint8_t skippable[] = {0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3};
    memcpy(bytes.data + bytes.n, skippable, sizeof skippable);
    bytes.n += sizeof skippable;
    add_zstd(&bytes, "more");
    expect_unpacked(&bytes, "The first line\nand the second one, which is longer\nmore");
    memmove(bytes.data + sizeof skippable, bytes.data, bytes.n); // as pzstd begins
    memcpy(bytes.data, skippable, sizeof skippable);
    bytes.n += sizeof skippable;
    expect_unpacked(&bytes, "The first line\nand the second one, which is longer\nmore");
    char text[1000];
    size_t n;
    bytes.data[bytes.n++] = 'x';
    bytes.n += 8;
    damage_write(path, &bytes);
    EXPECT_FAILURE(STATUS_INVALID, unpack(path, 100, text, sizeof text, &n), path, "zstd",
                   "damaged at or before");
}

// ---- lines of JSON

static void expect_text(const char *line, const char *text, size_t n) {
    struct text out = {0};
    EXPECT_OK(json_line_read(line, strlen(line), "text", "x.jsonl", 7, &out));
    assert_int_equal(out.length, n);
    assert_memory_equal(out.data, text, n);
    text_free(&out);
}

static void expect_refused(const char *line, const char *says) {
    struct text out = {0};
    EXPECT_FAILURE(STATUS_INVALID, json_line_read(line, strlen(line), "text", "x.jsonl", 7, &out),
                   "x.jsonl:7", says);
    text_free(&out);
}

static void test_lines_of_json(void **state) {
    (void)state;
    expect_text("{\"text\": \"a\\n\\u00e9\\ud83d\\ude00\\\"\"}", "a\n\xc3\xa9\xf0\x9f\x98\x80\"", 9);
    expect_text(" {\"id\": [1, {\"text\": \"no\"}], \"text\": \"yes\"}\r", "yes", 3);
    expect_text("{\"text\": \"first\", \"text\": \"last\"}", "last", 4);
    expect_text("{\"text\": \"\"}", "", 0);
    expect_text("{\"text\": \"a\\u0000b\\u0000\", \"x\": \"\\u0000\"}", "a\0b\0", 4);
    expect_text("{\"text\": \"a\\\\u0000\", \"x\": \"\\u0000\"}", "a\\u0000", 7); // an escaped backslash
    expect_refused("{\"text\": \"a\"", ":");
    expect_refused("{\"text\": \"a\"} x", ":15: a comma, colon or quote is missing before \"x\"");
    expect_refused("[{\"text\": \"a\"}]", "jq -c '.[]'");
    expect_refused("\"text\"", "expected a JSON object");
    expect_refused("{\"content\": \"a\", \"id\": 1}",
                   "has no member \"text\" (its members: \"content\", \"id\"); name");
    expect_refused("", "is empty");
    expect_refused(" \t", "is empty");
    expect_refused("{}", "its members: none");
    expect_refused("{\"text\": null}", "\"text\" is null, expected a string");
    expect_refused("{\"text\": [\"a\"]}", "not a string");
    expect_refused("{\"text\": \"\xff\"}", ":11: byte 0xff is not UTF-8");
    expect_refused("{\"text\": \"\\ud83d\"}", ":");
}

// ---- damage

static struct damage_random random_numbers = {.seed = 20261123};
static struct bytes originals[3]; // gzip, zstd, JSON

static void make_damaged(int i, struct bytes *bytes) {
    *bytes = originals[i % 3];
    for (size_t n = damage_below(&random_numbers, 4); n > 0 && bytes->n > 0; n--) {
        const size_t at = damage_below(&random_numbers, bytes->n),
                     length = 1 + damage_below(&random_numbers, 3), kind = damage_below(&random_numbers, 8);
        if (!damage_length(bytes, kind, at, at + length > bytes->n ? bytes->n - at : length))
            bytes->data[at] = damage_byte(&random_numbers, "\"\\{}[]:,u0n \n\0", 14);
    }
}

static bool try_damaged(const struct bytes *bytes) {
    static char text[1 << 16];
    struct text out = {0};
    size_t n;
    damage_write(path, bytes);
    enum status status = unpack(path, 1 + damage_below(&random_numbers, 100), text, sizeof text, &n);
    if (status == STATUS_OK)
        status = json_line_read(text, n, "text", path, 1, &out);
    const bool is_read = status == STATUS_OK;
    if (!is_read)
        EXPECT_FAILURE(STATUS_INVALID,
                       status == STATUS_INVALID && strstr(status_message(), path) ? STATUS_INVALID
                                                                                  : STATUS_FAILED,
                       path);
    text_free(&out);
    return is_read;
}

static void test_damaged_files(void **state) {
    (void)state;
    static const char line[] =
        "{\"id\": [12, {\"a\": null}], \"text\": \"a \\u00e9\\u0000 line\\n\", \"t\": true}";
    add_gzip(&originals[0], line);
    add_zstd(&originals[1], line);
    memcpy(originals[2].data, line, sizeof line - 1);
    originals[2].n = sizeof line - 1;
    damage_try_all(&(struct damage_trials){
        .what = "packed files and lines of JSON", .n = 1500, .make = make_damaged, .try = try_damaged});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documents),
        cmocka_unit_test(test_chunks_encode_as_the_whole),
        cmocka_unit_test(test_words_without_an_end),
        cmocka_unit_test(test_small_files),
        cmocka_unit_test(test_sources),
        cmocka_unit_test(test_gzip),
        cmocka_unit_test(test_zstd),
        cmocka_unit_test(test_lines_of_json),
        cmocka_unit_test(test_damaged_files),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
