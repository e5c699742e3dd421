// Fuzzes shards and tokenizer files, with the same damage on every run. Each file must either open and be
// usable to its last token, or give STATUS_INVALID and its path. Most useful under the sanitizers.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the headers above.
#include <cmocka.h>

#include <stdbool.h>

#include "data/loader.h"
#include "data/shard.h"
#include "data/tokenizer/export.h"
#include "data/tokenizer/tables.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/support/damage.h"
#include "tests/support/temporary.h"

#define N_FILES 400 // of each kind
#define SEED    20240522

static struct temporary temporary;
static char path[300];
static struct damage_random random_numbers = {.seed = SEED};

static size_t random_below(size_t bound) {
    return damage_below(&random_numbers, bound);
}

// Prefers characters that have a meaning in these files.
static uint8_t random_byte(void) {
    static const char meaningful[] = "=+/ \n\r\t#0123456789AZaz-\0\xc4\xa0\xff";
    return damage_byte(&random_numbers, meaningful, sizeof meaningful - 1);
}

static void damage(struct bytes *bytes, size_t last) {
    if (last > bytes->n)
        last = bytes->n;
    size_t at = random_below(last), length = 1 + random_below(random_below(8) ? 4 : 64);
    if (at + length > bytes->n)
        length = bytes->n - at;
    size_t kind = random_below(8);
    if (damage_length(bytes, kind, at, length))
        return;
    switch (kind) {
    case 3: // flip a bit
        bytes->data[at] ^= (uint8_t)(1 << random_below(8));
        break;
    default:
        bytes->data[at] = random_byte();
    }
}

static void check_refusal(enum status status) {
    if (status != STATUS_INVALID || !strstr(status_message(), path))
        fail_msg("status %d, \"%s\"", status, status_message());
    status_clear();
}

// Returns whether the shard opened. If so, also reads it through a loader, whose errors must name it too.
static bool try_shard(const struct bytes *bytes) {
    struct shard shard;
    damage_write(path, bytes);
    enum status status = shard_open(&shard, path);
    if (status != STATUS_OK) {
        check_refusal(status);
        return false;
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < shard.n_tokens; i++) {
        int32_t token;
        assert_int_equal(shard_read(&shard, i, 1, &token), STATUS_OK);
        sum += (uint32_t)token;
    }
    assert_true(sum <= (shard.token_bytes == 2 ? UINT16_MAX : UINT32_MAX) * (uint64_t)shard.n_tokens);
    shard_close(&shard);

    char *paths[1] = {path};
    const struct file_list patterns = {.paths = paths, .n_paths = 1};
    const struct source_option source = {.patterns = &patterns};
    const struct loader_options options = {.sources = {.list = &source, .n = 1, .option = path},
                                           .vocab_size = 300,
                                           .seq_len = 8,
                                           .batch_size = 2,
                                           .micro_batch_size = 1,
                                           .shuffle = true,
                                           .seed = random_below(100)};
    struct loader *loader;
    status = loader_new(&options, &loader);
    if (status != STATUS_OK) {
        check_refusal(status); // fewer tokens than a batch
        return true;
    }
    for (int step = 0; step < 4; step++) {
        struct token_batch batch;
        status = loader_batch(loader, (int64_t)random_below(50), (int)random_below(2), &batch);
        if (status != STATUS_OK)
            check_refusal(status);
        for (int t = 0; t < 8 && status == STATUS_OK; t++)
            assert_true(batch.tokens[t] >= 0 && batch.tokens[t] < 300 && batch.targets[t] >= 0 &&
                        batch.targets[t] < 300);
    }
    loader_delete(loader);
    status_clear();
    return true;
}

static const char sample[] =
    "The theatre's 12 themes \xc3\xa9\xc3\xa9 \xff\xfe\n\n   \x01 then 'll \xf0\x9f\x98\x80";

// The merges of a tokenizer that can be exported make each token of two others.
static void try_merges(const struct tokenizer *tokenizer) {
    struct token_merge *merges;
    int n;
    enum status status = tokenizer_derive_merges(tokenizer, &merges, &n);
    if (status != STATUS_OK) {
        assert_int_equal(status, STATUS_INVALID);
        status_clear();
        return;
    }
    for (int i = 0; i < n; i++) {
        size_t n_left, n_right, n_both;
        const char *left = tokenizer_bytes(tokenizer, merges[i].left, &n_left);
        const char *right = tokenizer_bytes(tokenizer, merges[i].right, &n_right);
        const char *both = tokenizer_bytes(tokenizer, merges[i].id, &n_both);
        assert_int_equal(n_both, n_left + n_right);
        assert_memory_equal(both, left, n_left);
        assert_memory_equal(both + n_left, right, n_right);
    }
    free(merges);
}

static bool try_tokenizer(const struct bytes *bytes) {
    struct tokenizer *tokenizer;
    damage_write(path, bytes);
    enum status status = tokenizer_load(path, &tokenizer);
    if (status != STATUS_OK) {
        check_refusal(status);
        return false;
    }
    struct token_list list = {0};
    assert_int_equal(tokenizer_encode(tokenizer, sample, sizeof sample - 1, &list), STATUS_OK);
    size_t at = 0;
    for (size_t i = 0; i < list.n; i++) {
        size_t n;
        const char *token = tokenizer_bytes(tokenizer, list.ids[i], &n);
        assert_non_null(token);
        assert_true(n >= 1 && n <= sizeof sample - 1 - at);
        assert_memory_equal(token, sample + at, n);
        at += n;
    }
    assert_int_equal(at, sizeof sample - 1);
    token_list_free(&list);
    try_merges(tokenizer);
    tokenizer_delete(tokenizer);
    return true;
}

static struct bytes original;
static size_t
    last_damaged; // half of the files are damaged before this byte, where the interesting content is

static void make_damaged(int i, struct bytes *bytes) {
    (void)i;
    *bytes = original;
    for (size_t n = 1 + random_below(3); n > 0 && bytes->n > 0; n--)
        damage(bytes, random_below(2) ? last_damaged : bytes->n);
}

static void try_all(const char *what, size_t last, bool (*try)(const struct bytes *bytes)) {
    last_damaged = last;
    assert_true(try(&original));
    damage_try_all(&(struct damage_trials){.what = what, .n = N_FILES, .make = make_damaged, .try = try});
}

static void damage_shards(int32_t magic, int32_t version, size_t token_bytes) {
    original = (struct bytes){.n = SHARD_HEADER_BYTES + token_bytes * 100};
    const int32_t header[3] = {magic, version, 100};
    memcpy(original.data, header, sizeof header);
    for (size_t i = 0; i < 100; i++)
        original.data[SHARD_HEADER_BYTES + token_bytes * i] = (uint8_t)(i * 37);
    try_all("shards", sizeof header, try_shard);
}

static void test_damaged_shards(void **state) {
    (void)state;
    damage_shards(SHARD_MAGIC, SHARD_VERSION, 2);
}

static void test_damaged_shards_of_32_bits(void **state) {
    (void)state;
    damage_shards(SHARD_MAGIC_32, SHARD_VERSION_32, 4);
}

static void read_back(struct bytes *bytes) {
    char *data;
    assert_int_equal(file_read(path, sizeof bytes->data / 2, &data, &bytes->n), STATUS_OK);
    memcpy(bytes->data, data, bytes->n);
    free(data);
}

static void test_damaged_tiktoken_files(void **state) {
    (void)state;
    struct tokenizer *tokenizer;
    assert_int_equal(tokenizer_train(sample, sizeof sample - 1, NULL, 0, 265, &tokenizer), STATUS_OK);
    assert_int_equal(tokenizer_save(tokenizer, path), STATUS_OK);
    tokenizer_delete(tokenizer);
    read_back(&original);
    try_all("tiktoken files", original.n, try_tokenizer);
}

static void test_damaged_merges(void **state) {
    (void)state;
    static const char merges[] = "#version: 0.2\nt h\n\xc4\xa0 th\nth e\n\xc4\xa0th e\n\xc3\x83 \xc2\xa9\n"
                                 "\xc4\x8a \xc4\x8a\ni n\nm e\n1 2\n\xc3\xb0 \xc5\x81\n' ll\n";
    original = (struct bytes){.n = sizeof merges - 1};
    memcpy(original.data, merges, original.n);
    try_all("merge files", original.n, try_tokenizer);
}

// Hugging Face's tokenizer.json: the bytes in GPT-2's alphabet, a few merges and end-of-text.
static void test_damaged_json(void **state) {
    (void)state;
    static const char *const merges[][2] = {{"t", "h"}, {"\xc4\xa0", "th"}, {"th", "e"}, {"1", "2"}};
    const int n_merges = sizeof merges / sizeof *merges;
    struct token_alphabet alphabet;
    struct text json = {0};
    token_alphabet_init(&alphabet);
    text_add(&json,
             "{\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
             "\"model\":{\"type\":\"BPE\",\"merges\":[");
    for (int i = 0; i < n_merges; i++)
        text_add(&json, i % 2 ? "%s[\"%s\",\"%s\"]" : "%s\"%s %s\"", i ? "," : "", merges[i][0],
                 merges[i][1]);
    text_add(&json, "],\"vocab\":{");
    for (int i = 0; i < n_merges; i++)
        text_add(&json, "\"%s%s\":%d,", merges[i][0], merges[i][1], 256 + i);
    text_add(&json, "\"<|endoftext|>\":%d", 256 + n_merges);
    for (int i = 0; i < 256; i++)
        text_add(&json, ",\"\\u%04x\":%d", (unsigned)alphabet.code_points[alphabet.order[i]], i);
    text_add(&json, "}},\"added_tokens\":[{\"id\":%d,\"content\":\"<|endoftext|>\"}]}", 256 + n_merges);
    original = (struct bytes){.n = json.length};
    assert_true(json.length <= sizeof original.data / 2);
    memcpy(original.data, json.data, json.length);
    text_free(&json);
    try_all("tokenizer.json files", 330, try_tokenizer);
}

static int set_up(void **state) {
    (void)state;
    if (!temporary_init(&temporary))
        return -1;
    temporary_path(&temporary, "damaged", path, sizeof path);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    return temporary_free(&temporary) ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_damaged_shards),         cmocka_unit_test(test_damaged_shards_of_32_bits),
        cmocka_unit_test(test_damaged_tiktoken_files), cmocka_unit_test(test_damaged_merges),
        cmocka_unit_test(test_damaged_json),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
