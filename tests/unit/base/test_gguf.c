// GGUF files: what is written reads back, values of each type of key, and damaged files, which are refused
// with a message or readable to their last byte.
#include "tests/support/expect.h"

#include "base/gguf.h"
#include "tests/support/damage.h"
#include "tests/support/temporary.h"

#define N_FILES 400
#define SEED    20260101

static struct temporary temporary;
static char path[300];
static struct damage_random random_numbers = {.seed = SEED};

static const struct gguf_tensor written[] = {
    {.name = "a", .type = GGUF_F32, .n_dims = 1, .shape = {5}},
    {.name = "b.weight", .type = GGUF_Q8_0, .n_dims = 2, .shape = {3, 64}},
    {.name = "c", .type = GGUF_BF16, .n_dims = 2, .shape = {2, 7}},
};
enum { N_WRITTEN = sizeof written / sizeof *written };

static uint8_t byte_of(int tensor, size_t i) {
    return (uint8_t)(37 * i + 101 * (size_t)tensor);
}

static uint64_t bytes_of(int tensor) {
    const struct gguf_tensor *t = &written[tensor];
    return gguf_type_bytes(t->type, (uint64_t)t->shape[0] * (t->n_dims > 1 ? (uint64_t)t->shape[1] : 1));
}

static enum status write_bytes(void *context, int tensor, struct file_writer *writer) {
    (void)context;
    for (size_t i = 0; i < bytes_of(tensor); i++) {
        const uint8_t byte = byte_of(tensor, i);
        file_write(writer, &byte, 1);
    }
    return STATUS_OK;
}

static void write_file(void) {
    struct gguf_keys keys = {0};
    gguf_add_u32(&keys, "count", 7);
    gguf_add_f32(&keys, "epsilon", 1e-5f);
    gguf_add_bool(&keys, "flag", true);
    gguf_add_string(&keys, "text", "two words");
    gguf_begin_strings(&keys, "words", 3);
    gguf_put_string(&keys, "first", 5);
    gguf_put_string(&keys, "", 0);
    gguf_put_string(&keys, "third", 5);
    gguf_begin_i32s(&keys, "numbers", 2);
    gguf_put_i32(&keys, -4);
    gguf_put_i32(&keys, 9);
    gguf_begin_f32s(&keys, "scores", 1);
    gguf_put_f32(&keys, -0.5f);
    EXPECT_OK(gguf_write(path, &keys, written, N_WRITTEN, write_bytes, NULL));
    gguf_keys_free(&keys);
}

static void test_keys(void **state) {
    (void)state;
    struct gguf_file file;
    int64_t integer = 0;
    double number = 0;
    bool flag = false, found = true;
    struct gguf_string string;
    const struct gguf_key *list;
    write_file();
    EXPECT_OK(gguf_open(&file, path));
    assert_int_equal(file.n_keys, 7);
    EXPECT_OK(gguf_get_integer(&file, "count", 1, 7, &integer, &found));
    assert_true(found && integer == 7);
    EXPECT_OK(gguf_get_number(&file, "epsilon", &number, NULL));
    assert_true((float)number == 1e-5f);
    EXPECT_OK(gguf_get_number(&file, "count", &number, NULL));
    assert_true(number == 7);
    EXPECT_OK(gguf_get_bool(&file, "flag", &flag, &found));
    assert_true(found && flag);
    EXPECT_OK(gguf_get_string(&file, "text", &string, &found));
    assert_true(found && gguf_string_is(string, "two words"));
    EXPECT_OK(gguf_get_integer(&file, "absent", 0, 1, &integer, &found));
    assert_false(found);
    EXPECT_OK(gguf_get_array(&file, "words", GGUF_KEY_STRING, &list));
    const char *at = list->data;
    assert_true(list->n == 3 && gguf_string_is(gguf_next_string(&at), "first") &&
                gguf_string_is(gguf_next_string(&at), "") && gguf_string_is(gguf_next_string(&at), "third"));
    assert_ptr_equal(at, list->end);
    EXPECT_OK(gguf_get_array(&file, "numbers", GGUF_KEY_I32, &list));
    assert_true(list->n == 2 && gguf_i32_at(list, 0) == -4 && gguf_i32_at(list, 1) == 9);
    EXPECT_OK(gguf_get_array(&file, "scores", GGUF_KEY_F32, &list));
    assert_true(gguf_f32_at(list, 0) == -0.5f);
    EXPECT_FAILURE(STATUS_INVALID, gguf_get_integer(&file, "count", 8, 9, &integer, NULL),
                   "\"count\" is 7, expected 8 to 9");
    EXPECT_FAILURE(STATUS_INVALID, gguf_get_integer(&file, "epsilon", 0, 9, &integer, NULL), "\"epsilon\"");
    EXPECT_FAILURE(STATUS_INVALID, gguf_get_number(&file, "text", &number, NULL), "\"text\"");
    EXPECT_FAILURE(STATUS_INVALID, gguf_get_bool(&file, "count", &flag, NULL), "true or false");
    EXPECT_FAILURE(STATUS_INVALID, gguf_get_string(&file, "words", &string, NULL), "\"words\"");
    EXPECT_FAILURE(STATUS_INVALID, gguf_get_array(&file, "words", GGUF_KEY_I32, &list), "\"words\"");
    gguf_close(&file);
}

static void expect_data(const struct gguf_file *file, int i) {
    const struct gguf_tensor *tensor = gguf_find_tensor(file, written[i].name);
    uint8_t data[256];
    assert_non_null(tensor);
    assert_true(tensor->bytes == bytes_of(i) && tensor->bytes <= sizeof data && tensor->offset % 32 == 0);
    assert_int_equal(tensor->n_dims, written[i].n_dims);
    for (int d = 0; d < tensor->n_dims; d++)
        assert_true(tensor->shape[d] == written[i].shape[d]);
    EXPECT_OK(gguf_read(file, tensor, 1, (size_t)tensor->bytes - 1, data));
    for (size_t k = 1; k < tensor->bytes; k++)
        assert_int_equal(data[k - 1], byte_of(i, k));
}

static void test_tensors(void **state) {
    (void)state;
    struct gguf_file file;
    char name[16];
    write_file();
    EXPECT_OK(gguf_open(&file, path));
    assert_int_equal(file.n_tensors, N_WRITTEN);
    for (int i = 0; i < N_WRITTEN; i++)
        expect_data(&file, i);
    assert_null(gguf_find_tensor(&file, "d"));
    gguf_close(&file);
    assert_string_equal(gguf_type_name(12, name), "Q4_K");
    assert_string_equal(gguf_type_name(77, name), "type 77");
    assert_true(gguf_type_bytes(12, 512) == 288 && gguf_type_bytes(12, 100) == 0 &&
                gguf_type_bytes(77, 1) == 0);
}

// ---- damage

static struct bytes original;

static void damage(int i, struct bytes *bytes) {
    (void)i;
    *bytes = original;
    const size_t at = damage_below(&random_numbers, bytes->n), length = 1 + damage_below(&random_numbers, 9);
    const size_t kind = damage_below(&random_numbers, 10);
    if (damage_length(bytes, kind, at, at + length > bytes->n ? bytes->n - at : length))
        return;
    bytes->data[at] = kind < 6 ? (uint8_t)(1u << damage_below(&random_numbers, 8))
                               : (uint8_t)damage_below(&random_numbers, 256);
}

static bool try_file(const struct bytes *bytes) {
    struct gguf_file file;
    static uint8_t data[sizeof bytes->data];
    damage_write(path, bytes);
    const enum status status = gguf_open(&file, path);
    if (status != STATUS_OK) {
        if (status != STATUS_INVALID || !strstr(status_message(), path))
            fail_msg("status %d, \"%s\"", status, status_message());
        status_clear();
        return false;
    }
    for (int i = 0; i < file.n_tensors; i++)
        EXPECT_OK(gguf_read(&file, &file.tensors[i], 0, (size_t)file.tensors[i].bytes, data));
    for (int i = 0; i < file.n_keys; i++) {
        const struct gguf_key *key = &file.keys[i];
        const char *at = key->data;
        for (uint64_t k = 0; k < key->n && key->element_type == GGUF_KEY_STRING; k++)
            at = (gguf_next_string(&at), at);
        assert_true(at <= key->end);
    }
    gguf_close(&file);
    return true;
}

static void test_damaged_files(void **state) {
    (void)state;
    write_file();
    FILE *stream = fopen(path, "rb");
    assert_non_null(stream);
    original.n = fread(original.data, 1, sizeof original.data, stream);
    assert_int_equal(fclose(stream), 0);
    damage_try_all(&(struct damage_trials){"GGUF files", N_FILES, damage, try_file});
}

static int set_up(void **state) {
    (void)state;
    if (!temporary_init(&temporary))
        return -1;
    temporary_path(&temporary, "model.gguf", path, sizeof path);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    return temporary_free(&temporary) ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_damaged_files),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
