// Token shards: the writer's bytes are llm.c's format, and every malformed file is refused with what was
// found.
#include "tests/support/expect.h"

#include <unistd.h>

#include "data/shard.h"
#include "tests/support/temporary.h"

static struct temporary temporary;
static char path[300];

static int set_up(void **state) {
    (void)state;
    if (!temporary_init(&temporary))
        return -1;
    temporary_path(&temporary, "shard.bin", path, sizeof path);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    return temporary_free(&temporary) ? 0 : -1;
}

// A file with a header and n_bytes of zeros, written without shard_writer.
static void make_file(int32_t magic, int32_t version, int32_t count, size_t n_bytes) {
    uint8_t bytes[SHARD_HEADER_BYTES + 64] = {0};
    const int32_t header[3] = {magic, version, count};
    memcpy(bytes, header, sizeof header);
    EXPECT_OK(file_write_all(path, bytes, SHARD_HEADER_BYTES + n_bytes));
}

static enum status open_and_close(void) {
    struct shard shard;
    enum status status = shard_open(&shard, path);
    if (status != STATUS_OK)
        assert_true(!shard.path && shard.descriptor < 0);
    shard_close(&shard);
    return status;
}

// The words that llm.c reads are as without a tokenizer; what no writer of shards leaves there is not
// recorded.
static void test_tokenizer(void **state) {
    (void)state;
    const int32_t token = 7;
    struct shard_writer writer;
    struct shard shard;
    char *bytes;
    size_t n;
    EXPECT_OK(shard_writer_open(&writer, path, 2));
    writer.tokenizer = (struct tokenizer_identity){
        .n_ids = 300, .document_start = 299, .checksum = UINT64_C(0xfedcba9876543210), .name = "my.tiktoken"};
    shard_writer_add(&writer, &token, 1);
    EXPECT_OK(shard_writer_commit(&writer));
    EXPECT_OK(file_read(path, 10000, &bytes, &n));
    const int32_t words[7] = {20240520, 1, 1, 20261122, 300, 0x76543210, (int32_t)0xfedcba98};
    assert_memory_equal(bytes, words, sizeof words);
    assert_string_equal(bytes + 32, "my.tiktoken");
    EXPECT_OK(shard_open(&shard, path));
    assert_false(tokenizer_identity_differs(&shard.tokenizer, &writer.tokenizer));
    assert_int_equal(shard.tokenizer.n_ids, 300);
    assert_true(shard.tokenizer.checksum == UINT64_C(0xfedcba9876543210));
    assert_string_equal(shard.tokenizer.name, "my.tiktoken");
    shard_close(&shard);
    const size_t damaged[] = {12, 19, 33, 95}; // magic, number of ids, name, its last byte
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        const char before = bytes[damaged[i]];
        bytes[damaged[i]] = 1;
        EXPECT_OK(file_write_all(path, bytes, n));
        EXPECT_OK(shard_open(&shard, path));
        assert_int_equal(shard.tokenizer.n_ids, 0);
        assert_int_equal(shard.n_tokens, 1);
        shard_close(&shard);
        bytes[damaged[i]] = before;
    }
    free(bytes);
}

static void test_written_bytes(void **state) {
    (void)state;
    const int32_t first[3] = {1, 515, 65535}, second[2] = {0, 50256};
    struct shard_writer writer;
    EXPECT_OK(shard_writer_open(&writer, path, 2));
    shard_writer_add(&writer, first, 3);
    shard_writer_add(&writer, NULL, 0);
    shard_writer_add(&writer, second, 2);
    assert_false(file_exists(path)); // only the commit makes it visible
    EXPECT_OK(shard_writer_commit(&writer));

    char *bytes;
    size_t n;
    EXPECT_OK(file_read(path, 10000, &bytes, &n));
    assert_int_equal(n, 1024 + 10);
    // 20240520 is 0x0134d888; version 1; five tokens; then nothing but zeros in the header.
    const uint8_t start[12] = {0x88, 0xd8, 0x34, 0x01, 1, 0, 0, 0, 5, 0, 0, 0};
    const uint8_t tokens[10] = {1, 0, 3, 2, 255, 255, 0, 0, 80, 196};
    assert_memory_equal(bytes, start, sizeof start);
    for (size_t i = sizeof start; i < 1024; i++)
        assert_int_equal(bytes[i], 0);
    assert_memory_equal(bytes + 1024, tokens, sizeof tokens);
    free(bytes);

    struct shard shard;
    EXPECT_OK(shard_open(&shard, path));
    assert_string_equal(shard.path, path);
    assert_int_equal(shard.n_tokens, 5);
    int32_t read[3];
    EXPECT_OK(shard_read(&shard, 0, 3, read));
    assert_memory_equal(read, first, sizeof first);
    shard_release(&shard); // the next read reopens it
    EXPECT_OK(shard_read(&shard, 3, 2, read));
    assert_memory_equal(read, second, sizeof second);
    shard_close(&shard);
    shard_close(&shard); // twice is fine
}

// llm.c's format for Llama 3: magic 20240801 (0x0134d9a1), version 7, tokens of 4 bytes.
static void test_tokens_of_32_bits(void **state) {
    (void)state;
    const int32_t tokens[6] = {1, 65535, 65536, 128255, 8388607, 0};
    struct shard_writer writer;
    char *bytes;
    size_t n;
    EXPECT_OK(shard_writer_open(&writer, path, 4));
    shard_writer_add(&writer, tokens, 4);
    shard_writer_add(&writer, tokens + 4, 2);
    EXPECT_OK(shard_writer_commit(&writer));
    EXPECT_OK(file_read(path, 10000, &bytes, &n));
    assert_int_equal(n, 1024 + 24);
    const uint8_t start[12] = {0xa1, 0xd9, 0x34, 0x01, 7, 0, 0, 0, 6, 0, 0, 0};
    assert_memory_equal(bytes, start, sizeof start);
    assert_memory_equal(bytes + 1024, tokens, sizeof tokens);
    assert_true(shard_is_file(path));
    struct shard shard;
    int32_t read[6];
    EXPECT_OK(shard_open(&shard, path));
    assert_int_equal(shard.n_tokens, 6);
    assert_int_equal(shard.token_bytes, 4);
    EXPECT_OK(shard_read(&shard, 0, 6, read));
    assert_memory_equal(read, tokens, sizeof tokens);
    shard_release(&shard);
    EXPECT_OK(shard_read(&shard, 3, 2, read));
    assert_memory_equal(read, tokens + 3, 2 * sizeof *tokens);
    shard_close(&shard);
    free(bytes);
}

// The bytes of tokens are upcast in place, for any number of them.
static void test_upcast(void **state) {
    (void)state;
    int32_t tokens[5000], read[5001];
    struct shard_writer writer;
    struct shard shard;
    for (int i = 0; i < 5000; i++)
        tokens[i] = i * 7919 % 65536;
    EXPECT_OK(shard_writer_open(&writer, path, 2));
    shard_writer_add(&writer, tokens, 5000);
    EXPECT_OK(shard_writer_commit(&writer));
    EXPECT_OK(shard_open(&shard, path));
    for (size_t n = 0; n <= 5000; n += n < 10 ? 1 : 499) {
        read[n] = -1;
        EXPECT_OK(shard_read(&shard, 5000 - n, n, read));
        assert_memory_equal(read, tokens + 5000 - n, n * sizeof *tokens);
        assert_int_equal(read[n], -1);
    }
    shard_close(&shard);
}

static void test_discarded_writers_leave_nothing(void **state) {
    (void)state;
    struct shard_writer writer;
    make_file(SHARD_MAGIC, 1, 4, 8);
    EXPECT_OK(shard_writer_open(&writer, path, 2));
    shard_writer_add(&writer, (const int32_t[]){7}, 1);
    shard_writer_discard(&writer);
    struct shard shard;
    EXPECT_OK(shard_open(&shard, path));
    assert_int_equal(shard.n_tokens, 4); // the old content
    shard_close(&shard);
    struct file_list names = {0};
    EXPECT_OK(file_list_folder(&names, temporary.folder));
    assert_int_equal(names.n_paths, 1);
    file_list_free(&names);
}

static void test_more_tokens_than_the_header_can_count(void **state) {
    (void)state;
    struct shard_writer writer;
    EXPECT_OK(shard_writer_open(&writer, path, 2));
    writer.n_tokens = (size_t)INT32_MAX + 1;
    EXPECT_FAILURE(STATUS_INVALID, shard_writer_commit(&writer), path, "2147483648", "smaller shards");
    struct file_list names = {0};
    EXPECT_OK(file_list_folder(&names, temporary.folder));
    for (int i = 0; i < names.n_paths; i++)
        assert_null(strstr(names.paths[i], ".tmp-"));
    file_list_free(&names);
}

static void test_unwritable_folder(void **state) {
    (void)state;
    struct shard_writer writer;
    char inside[400];
    snprintf(inside, sizeof inside, "%s/absent/shard.bin", temporary.folder);
    EXPECT_FAILURE(STATUS_FAILED, shard_writer_open(&writer, inside, 2), inside, "No such file");
    shard_writer_discard(&writer);
}

static void test_files_that_are_not_shards(void **state) {
    (void)state;
    EXPECT_OK(file_remove_tree(path));
    EXPECT_FAILURE(STATUS_INVALID, open_and_close(), path, "No such file");
    EXPECT_OK(file_make_folders(path));
    EXPECT_FAILURE(STATUS_INVALID, open_and_close(), path, "folder");
    EXPECT_OK(file_remove_tree(path));
    EXPECT_OK(file_write_all(path, "", 0));
    EXPECT_FAILURE(STATUS_INVALID, open_and_close(), path, "0 bytes", "1024");
    static const char header[1023];
    EXPECT_OK(file_write_all(path, header, sizeof header));
    EXPECT_FAILURE(STATUS_INVALID, open_and_close(), path, "1023 bytes", "1024");
    make_file(0, 1, 4, 8);
    EXPECT_FAILURE(STATUS_INVALID, open_and_close(), path, "starts with the number 0", "20240520");
    make_file(SHARD_MAGIC, 2, 4, 8);
    EXPECT_FAILURE(STATUS_INVALID, open_and_close(), path, "ids of 2 bytes", "version 2",
                   "expected version 1");
    make_file(20240801, 1, 4, 16);
    EXPECT_FAILURE(STATUS_INVALID, open_and_close(), path, "ids of 4 bytes", "version 1",
                   "expected version 7");
}

static void test_sizes_that_contradict_the_header(void **state) {
    (void)state;
    const struct {
        int32_t count;
        size_t n_bytes;
        const char *says, *found;
    } cases[] = {{5, 8, "5 tokens", "8 bytes"},   {3, 8, "3 tokens", "8 bytes"},
                 {4, 7, "4 tokens", "7 bytes"},   {4, 9, "4 tokens", "9 bytes"},
                 {-4, 8, "-4 tokens", "8 bytes"}, {INT32_MAX, 8, "2147483647 tokens", "8 bytes"},
                 {1, 0, "1 tokens", "0 bytes"},   {INT32_MIN, 0, "-2147483648 tokens", "0 bytes"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make_file(SHARD_MAGIC, 1, cases[i].count, cases[i].n_bytes);
        EXPECT_FAILURE(STATUS_INVALID, open_and_close(), path, cases[i].says, cases[i].found);
    }
    make_file(SHARD_MAGIC, 1, 4, 10);
    EXPECT_FAILURE(STATUS_INVALID, open_and_close(), path, "too long");
    make_file(20240801, 7, 4, 8); // the size that tokens of 2 bytes have
    EXPECT_FAILURE(STATUS_INVALID, open_and_close(), path, "4 tokens of 4 bytes", "8 bytes", "truncated");
    make_file(20240801, 7, 4, 17);
    EXPECT_FAILURE(STATUS_INVALID, open_and_close(), path, "4 tokens of 4 bytes", "17 bytes", "too long");
    make_file(SHARD_MAGIC, 1, 0, 0);
    EXPECT_OK(open_and_close()); // an empty shard is valid
}

// Truncating a shard in use gives a read error, whether its file was open or released.
static void test_truncated_shard(void **state) {
    (void)state;
    int32_t read[4];
    struct shard shard;
    for (int released = 0; released < 2; released++) {
        make_file(SHARD_MAGIC, 1, 4, 8);
        EXPECT_OK(shard_open(&shard, path));
        EXPECT_OK(shard_read(&shard, 0, 4, read));
        if (released)
            shard_release(&shard);
        assert_int_equal(truncate(path, SHARD_HEADER_BYTES + 6), 0);
        assert_false(shard_try_read(&shard, 0, 4, read));
        assert_string_equal(status_message(), "");
        EXPECT_FAILURE(STATUS_FAILED, shard_read(&shard, 0, 4, read), path, "was truncated");
        shard_close(&shard);
    }
    make_file(SHARD_MAGIC, 1, 4, 8);
    EXPECT_OK(shard_open(&shard, path));
    shard_release(&shard);
    EXPECT_OK(file_remove_tree(path));
    EXPECT_FAILURE(STATUS_FAILED, shard_read(&shard, 0, 4, read), path, "No such file");
    shard_close(&shard);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_written_bytes),
        cmocka_unit_test(test_tokens_of_32_bits),
        cmocka_unit_test(test_upcast),
        cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_discarded_writers_leave_nothing),
        cmocka_unit_test(test_more_tokens_than_the_header_can_count),
        cmocka_unit_test(test_unwritable_folder),
        cmocka_unit_test(test_files_that_are_not_shards),
        cmocka_unit_test(test_sizes_that_contradict_the_header),
        cmocka_unit_test(test_truncated_shard),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
