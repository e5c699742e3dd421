// safetensors: written files read back, files written from PyTorch are read correctly, and inconsistent files
// are refused with a message that names the file and the tensor.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the headers above.
#include <cmocka.h>

#include "base/json.h"
#include "model/formats/safetensors.h"
#include "tests/support/safetensors_find.h"
#include "tests/support/temporary.h"
#include "tests/support/tensors.h"

static struct temporary temporary;
static char path[300];

// Writes a file with this header and n_data bytes 0, 1, 2, ... length: what the length field states; < 0: the
// true length of the header.
static void write_file(const char *header, int64_t length, size_t n_data) {
    size_t n = strlen(header);
    uint64_t stated = length < 0 ? n : (uint64_t)length;
    uint8_t *bytes = malloc(8 + n + n_data);
    assert_non_null(bytes);
    memcpy(bytes, &stated, 8);
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < n_data; i++)
        bytes[8 + n + i] = (uint8_t)i;
    assert_int_equal(file_write_all(path, bytes, 8 + n + n_data), STATUS_OK);
    free(bytes);
}

static void assert_refused(const char *expected) {
    struct safetensors file;
    assert_int_equal(safetensors_open(&file, path), STATUS_INVALID);
    assert_null(file.path);
    if (!strstr(status_message(), path))
        fail_msg("\"%s\" does not name the file", status_message());
    if (!strstr(status_message(), expected))
        fail_msg("\"%s\" lacks \"%s\"", status_message(), expected);
    status_clear();
}

// ---- good files

static void test_reads_a_plain_file(void **state) {
    (void)state;
    struct safetensors file;
    write_file("{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]},"
               "\"a\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
               "\"__metadata__\":{\"format\":\"pt\"}}  ",
               -1, 11);
    if (safetensors_open(&file, path) != STATUS_OK)
        fail_msg("%s", status_message());
    assert_int_equal(file.n_tensors, 2);
    assert_string_equal(file.tensors[0].name, "a"); // in order of their data
    assert_string_equal(file.tensors[1].name, "b");
    const struct safetensor *a = safetensors_find(&file, "a");
    assert_ptr_equal(a, &file.tensors[0]);
    assert_string_equal(a->dtype, "F32");
    assert_int_equal(a->n_dims, 2);
    assert_int_equal(a->shape[0], 1);
    assert_int_equal(a->shape[1], 2);
    assert_int_equal(a->elements, 2);
    assert_int_equal(a->bytes, 8);
    uint8_t third;
    assert_int_equal(safetensors_read(&file, safetensors_find(&file, "b"), 2, 1, &third), STATUS_OK);
    assert_int_equal(third, 10);
    assert_null(safetensors_find(&file, "c"));
    assert_null(safetensors_find(&file, "__metadata__"));
    safetensors_close(&file);
}

static void test_reads_empty_and_scalar_tensors(void **state) {
    (void)state;
    struct safetensors file;
    write_file("{\"z\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[4,4]},"
               "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
               "\"y\":{\"dtype\":\"F64\",\"shape\":[0],\"data_offsets\":[0,0]},"
               "\"t\":{\"dtype\":\"I16\",\"shape\":[1,1,1,1,1,1,1,1],\"data_offsets\":[4,6]}}",
               -1, 6);
    if (safetensors_open(&file, path) != STATUS_OK)
        fail_msg("%s", status_message());
    assert_int_equal(file.n_tensors, 4);
    assert_int_equal(safetensors_find(&file, "z")->elements, 0);
    assert_int_equal(safetensors_find(&file, "y")->bytes, 0);
    assert_int_equal(safetensors_find(&file, "s")->elements, 1);
    assert_int_equal(safetensors_find(&file, "t")->n_dims, 8);
    safetensors_close(&file);
    write_file("{}", -1, 0);
    assert_int_equal(safetensors_open(&file, path), STATUS_OK);
    assert_int_equal(file.n_tensors, 0);
    safetensors_close(&file);
}

// Values with known bits, by IEEE 754 and, for bfloat16, its truncation.
static void test_values_of_each_type(void **state) {
    (void)state;
    static const struct {
        const char *dtype;
        uint64_t bits;
        size_t size;
        double value;
    } cases[] = {
        {"F16", 0x0000, 2, 0},
        {"F16", 0x8000, 2, -0.0},
        {"F16", 0x0001, 2, 0x1p-24},
        {"F16", 0x83ff, 2, -1023 * 0x1p-24},
        {"F16", 0x0400, 2, 0x1p-14},
        {"F16", 0x3555, 2, 1365.0 / 4096},
        {"F16", 0x3c00, 2, 1},
        {"F16", 0xc000, 2, -2},
        {"F16", 0x7bff, 2, 65504},
        {"F16", 0x7c00, 2, (double)INFINITY},
        {"F16", 0xfc00, 2, -(double)INFINITY},
        {"BF16", 0x3f80, 2, 1},
        {"BF16", 0xc049, 2, -3.140625},
        {"BF16", 0x0001, 2, 0x1p-133},
        {"F32", 0x40490fdb, 4, 0x1.921fb6p+1},
        {"F32", 0x80000001, 4, -0x1p-149},
        {"F64", 0x3fd5555555555555, 8, 0x1.555556p-2}, // 1/3, rounded to fp32
        {"F64", 0xc000000000000000, 8, -2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t data[9];
        struct safetensor tensor = {.elements = 1, .bytes = cases[i].size};
        snprintf(tensor.dtype, sizeof tensor.dtype, "%s", cases[i].dtype);
        memcpy(data + 1, &cases[i].bits, cases[i].size); // not aligned
        double value = (double)safetensor_value(&tensor, data + 1, 0);
        if (value != cases[i].value || signbit(value) != signbit(cases[i].value))
            fail_msg("%s %llx is %.17g, expected %.17g", cases[i].dtype, (unsigned long long)cases[i].bits,
                     value, cases[i].value);
    }
    const uint16_t nan = 0x7e00;
    struct safetensor tensor = {.dtype = "F16", .elements = 1, .bytes = 2};
    assert_true(isnan(safetensor_value(&tensor, (const uint8_t *)&nan, 0)));
}

static void test_reads_a_file_of_pytorch(void **state) {
    (void)state;
    struct safetensors file;
    if (safetensors_open(&file, "tests/golden/gpt2-tiny/expected.safetensors") != STATUS_OK)
        fail_msg("%s", status_message());
    const struct safetensor *logits = safetensors_find(&file, "logits");
    assert_non_null(logits);
    assert_int_equal(logits->elements, 4 * 32 * 257);
    assert_non_null(safetensors_find(&file, "grad.transformer.h.1.mlp.c_fc.weight"));
    size_t bytes = 0;
    for (int i = 0; i < file.n_tensors; i++)
        bytes += file.tensors[i].bytes;
    assert_int_equal(file.tensors[0].offset + bytes, file.bytes);
    safetensors_close(&file);
}

// ---- writing

static float written_value(int tensor, size_t i) {
    return (float)tensor * 1000000.0f + (float)i + 0.25f;
}

static const struct safetensors_source sources[] = {
    {"large", DTYPE_F32, 2, {300, 701}}, {"with \"quotes\" and \\", DTYPE_F32, 1, {3}},
    {"empty", DTYPE_BF16, 2, {0, 4}},    {"half", DTYPE_F16, 1, {3}},
    {"brain", DTYPE_BF16, 2, {5, 1}},    {"scalar", DTYPE_F32, 0, {0}}};

// What is read back of a value in this type.
static float rounded(enum dtype type, float value) {
    return type == DTYPE_F32    ? value
           : type == DTYPE_BF16 ? bf16_to_float(bf16_from_float(value))
                                : f16_to_float(f16_from_float(value));
}

static enum status write_values(void *context, int tensor, struct file_writer *writer) {
    const struct safetensors_source *source = &((const struct safetensors_source *)context)[tensor];
    size_t elements = 1;
    for (int d = 0; d < source->n_dims; d++)
        elements *= (size_t)source->shape[d];
    for (size_t i = 0; i < elements; i++) {
        const float value = written_value(tensor, i);
        const uint16_t half = source->type == DTYPE_BF16 ? bf16_from_float(value) : f16_from_float(value);
        if (source->type == DTYPE_F32)
            file_write(writer, &value, sizeof value);
        else
            file_write(writer, &half, sizeof half);
    }
    return STATUS_OK;
}

static enum status fail_to_write(void *context, int tensor, struct file_writer *writer) {
    (void)context, (void)tensor, (void)writer;
    return FAIL(STATUS_INVALID, "no values");
}

static void test_written_files_read_back(void **state) {
    (void)state;
    const int n = sizeof sources / sizeof *sources;
    struct safetensors file;
    assert_int_equal(safetensors_write(path, sources, n, write_values, (void *)sources), STATUS_OK);
    if (safetensors_open(&file, path) != STATUS_OK)
        fail_msg("%s", status_message());
    assert_int_equal(file.n_tensors, n);
    for (int i = 0; i < n; i++) {
        const struct safetensor *tensor = safetensors_find(&file, sources[i].name);
        assert_non_null(tensor);
        assert_string_equal(tensor->dtype, sources[i].type == DTYPE_F32    ? "F32"
                                           : sources[i].type == DTYPE_BF16 ? "BF16"
                                                                           : "F16");
        assert_int_equal(tensor->n_dims, sources[i].n_dims);
        assert_memory_equal(tensor->shape, sources[i].shape, (size_t)tensor->n_dims * sizeof(int64_t));
        uint8_t *data = tensor_load(&file, tensor);
        assert_non_null(data);
        for (size_t e = 0; e < tensor->elements; e++)
            assert_true(safetensor_value(tensor, data, e) == rounded(sources[i].type, written_value(i, e)));
        free(data);
    }
    // The format requires that spaces pad the header, so that the data is aligned to 8 bytes.
    uint64_t length;
    char *bytes;
    size_t n_bytes;
    assert_int_equal(file_read(path, SIZE_MAX / 2, &bytes, &n_bytes), STATUS_OK);
    memcpy(&length, bytes, 8);
    assert_int_equal(length % 8, 0);
    cJSON *header;
    assert_int_equal(json_parse(bytes + 8, length, "header", &header), STATUS_OK);
    assert_string_equal(
        cJSON_GetObjectItem(cJSON_GetObjectItem(header, "__metadata__"), "format")->valuestring, "pt");
    cJSON_Delete(header);
    free(bytes);
    safetensors_close(&file);
}

static void test_failed_writes_leave_nothing(void **state) {
    (void)state;
    char other[300];
    struct file_list list = {0};
    static const struct safetensors_source negative = {"n", DTYPE_F32, 1, {-1}},
                                           absurd = {"w", DTYPE_BF16, 2, {INT64_MAX, INT64_MAX}},
                                           good = {"g", DTYPE_F32, 1, {2}};
    const char *folder = temporary_path(&temporary, "written", other, sizeof other);
    assert_int_equal(file_make_folders(folder), STATUS_OK);
    char target[400];
    snprintf(target, sizeof target, "%s/x.safetensors", folder);
    assert_int_equal(safetensors_write(target, &negative, 1, write_values, (void *)&negative),
                     STATUS_INVALID);
    status_clear();
    assert_int_equal(safetensors_write(target, &absurd, 1, write_values, (void *)&absurd), STATUS_INVALID);
    assert_non_null(strstr(status_message(), "\"w\""));
    status_clear();
    assert_int_equal(safetensors_write(target, &good, 1, fail_to_write, NULL), STATUS_INVALID);
    assert_string_equal(status_message(), "no values");
    status_clear();
    assert_int_equal(file_list_folder(&list, folder), STATUS_OK);
    assert_int_equal(list.n_paths, 0);
    // A missing folder.
    snprintf(target, sizeof target, "%s/absent/x.safetensors", folder);
    assert_int_equal(safetensors_write(target, &good, 1, write_values, (void *)&good), STATUS_FAILED);
    assert_non_null(strstr(status_message(), target));
    status_clear();
    file_list_free(&list);
}

// ---- bad files

static void test_bad_headers(void **state) {
    (void)state;
    assert_int_equal(file_write_all(path, "", 0), STATUS_OK);
    assert_refused("too short");
    assert_int_equal(file_write_all(path, "\2\0\0\0\0\0\0", 7), STATUS_OK);
    assert_refused("too short");
    write_file("{}", 3, 0);
    assert_refused("cut short");
    write_file("{}", 100000001, 0);
    assert_refused("at most 100000000");
    write_file("{}", INT64_MAX, 0);
    assert_refused("at most 100000000");
    assert_int_equal(file_write_all(path, "\377\377\377\377\377\377\377\377{}", 10), STATUS_OK);
    assert_refused("at most 100000000");
    write_file("", -1, 0);
    assert_refused("not a JSON object");
    write_file("[]", -1, 0);
    assert_refused("not a JSON object");
    write_file(" {}", -1, 0);
    assert_refused("not a JSON object");
    write_file("{\"a\":", -1, 0);
    assert_refused("invalid JSON");
    write_file("{} x", -1, 0);
    assert_refused("missing before");
    struct safetensors file;
    assert_int_equal(safetensors_open(&file, temporary.folder), STATUS_INVALID);
    status_clear();
    assert_int_equal(remove(path), 0);
    assert_refused("No such file");
}

static void test_deep_nesting(void **state) {
    (void)state;
    const size_t depth = 200000;
    char *header = malloc(depth + 16);
    assert_non_null(header);
    memset(header, '[', depth);
    memcpy(header, "{\"a\":", 5);
    header[depth] = '\0';
    write_file(header, -1, 0);
    assert_refused("JSON");
    free(header);
}

// An entry for tensor "t" with 16 bytes of data behind the header.
static void test_bad_entries(void **state) {
    (void)state;
#define ENTRY(dtype, shape, offsets)                                                                         \
    "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
    static const struct {
        const char *header, *expected;
    } cases[] = {
        {"{\"t\":3}", "expected an object"},
        {"{\"t\":null}", "expected an object"},
        {"{\"t\":[]}", "expected an object"},
        {"{\"t\":{\"shape\":[4],\"data_offsets\":[0,16]}}", "no \"dtype\""},
        {ENTRY("4", "[4]", "[0,16]"), "no \"dtype\""},
        {ENTRY("\"F31\"", "[4]", "[0,16]"), "unknown dtype \"F31\""},
        {ENTRY("\"\"", "[4]", "[0,16]"), "unknown dtype"},
        {ENTRY("\"F32F32F32F32F32F32F32F32F32F32\"", "[4]", "[0,16]"), "unknown dtype"},
        {"{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", "no \"shape\""},
        {ENTRY("\"F32\"", "4", "[0,16]"), "no \"shape\""},
        {ENTRY("\"F32\"", "[-4]", "[0,16]"), "dimension 0"},
        {ENTRY("\"F32\"", "[4.5]", "[0,16]"), "dimension 0"},
        {ENTRY("\"F32\"", "[2,1e30]", "[0,16]"), "dimension 1"},
        {ENTRY("\"F32\"", "[1e999]", "[0,16]"), "dimension 0"},
        {ENTRY("\"F32\"", "[18446744073709551616]", "[0,16]"), "dimension 0"},
        {ENTRY("\"F32\"", "[\"4\"]", "[0,16]"), "dimension 0"},
        {ENTRY("\"F32\"", "[null]", "[0,16]"), "dimension 0"},
        {ENTRY("\"F32\"", "[[4]]", "[0,16]"), "dimension 0"},
        {ENTRY("\"F32\"", "[4294967296,4294967296]", "[0,16]"), "overflows"},
        {ENTRY("\"F32\"", "[2147483648,2147483649,4]", "[0,16]"), "overflows"},
        // 2^62 + 2^32 elements, whose bytes overflow.
        {ENTRY("\"F32\"", "[2147483648,2147483650]", "[0,16]"), "overflows"},
        {ENTRY("\"F32\"", "[1,1,1,1,1,1,1,1,4]", "[0,16]"), "more than 8 dimensions"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[4]}}", "data_offsets"},
        {ENTRY("\"F32\"", "[4]", "[0]"), "data_offsets"},
        {ENTRY("\"F32\"", "[4]", "[0,16,16]"), "data_offsets"},
        {ENTRY("\"F32\"", "[4]", "[]"), "data_offsets"},
        {ENTRY("\"F32\"", "[4]", "{\"a\":0,\"b\":\"16\"}"), "data_offsets"},
        {ENTRY("\"F32\"", "[4]", "[-16,0]"), "data_offsets"},
        {ENTRY("\"F32\"", "[4]", "[0.5,16.5]"), "data_offsets"},
        {ENTRY("\"F32\"", "[4]", "[0,1e30]"), "data_offsets"},
        {ENTRY("\"F32\"", "[4]", "[\"0\",16]"), "data_offsets"},
        {ENTRY("\"F32\"", "[4]", "[16,0]"), "after its end"},
        {ENTRY("\"F32\"", "[4]", "[4,20]"), "beyond the file's 16 bytes"},
        {ENTRY("\"F32\"", "[4]", "[9007199254740976,9007199254740992]"), "beyond the file's 16 bytes"},
        {ENTRY("\"F32\"", "[5]", "[0,16]"), "16 bytes of data, expected 20"},
        {ENTRY("\"F64\"", "[4]", "[0,16]"), "16 bytes of data, expected 32"},
        {ENTRY("\"F32\"", "[0]", "[0,16]"), "16 bytes of data, expected 0"},
        {ENTRY("\"F32\"", "[3]", "[0,12]"), "4 bytes after the last tensor \"t\""},
        {ENTRY("\"F32\"", "[3]", "[4,16]"), "4 bytes before tensor \"t\""},
        {"{}", "16 bytes after the last tensor"},
        {"{\"__metadata__\":[]}", "__metadata__"},
        {"{\"__metadata__\":{\"a\":\"b\"}}", "belong to no tensor"},
        {"{\"t\\u0007\":{}}", "control characters"},
    };
#undef ENTRY
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(cases[i].header, -1, 16);
        struct safetensors file;
        if (safetensors_open(&file, path) != STATUS_INVALID)
            fail_msg("not refused: %s", cases[i].header);
        bool named = strstr(status_message(), path) != NULL;
        if (strncmp(cases[i].header, "{\"t\":", 5) == 0)
            named = named && strstr(status_message(), "\"t\"");
        if (!named || !strstr(status_message(), cases[i].expected))
            fail_msg("%s: \"%s\" lacks \"%s\" or the names", cases[i].header, status_message(),
                     cases[i].expected);
        status_clear();
    }
}

static void test_overlaps_gaps_and_duplicates(void **state) {
    (void)state;
#define TENSOR(name, shape, offsets)                                                                         \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
    static const struct {
        const char *header, *expected;
    } cases[] = {
        {"{" TENSOR("one", "[9]", "[0,9]") "," TENSOR("two", "[8]", "[8,16]") "}",
         "tensor \"two\" begins at 8 and overlaps \"one\""},
        {"{" TENSOR("two", "[16]", "[0,16]") "," TENSOR("one", "[16]", "[0,16]") "}", "overlaps"},
        {"{" TENSOR("one", "[16]", "[0,16]") "," TENSOR("two", "[4]", "[4,8]") "}", "overlaps \"one\""},
        {"{" TENSOR("one", "[16]", "[0,16]") "," TENSOR("two", "[0]", "[4,4]") "}", "overlaps \"one\""},
        {"{" TENSOR("one", "[7]", "[0,7]") "," TENSOR("two", "[8]", "[8,16]") "}",
         "1 bytes before tensor \"two\""},
        {"{" TENSOR("one", "[8]", "[0,8]") "," TENSOR("one", "[8]", "[8,16]") "}", "\"one\" is given twice"},
        {"{" TENSOR("one", "[8]", "[0,8]") "," TENSOR("one", "[8]", "[0,8]") "}", "\"one\" is given twice"},
        {"{\"one\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[16],\"data_offsets\":[0,16]}}",
         "\"dtype\" is given twice"},
    };
#undef TENSOR
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(cases[i].header, -1, 16);
        assert_refused(cases[i].expected);
    }
}

static void test_long_names(void **state) {
    (void)state;
    char header[1200];
    int n = sprintf(header, "{\"");
    memset(header + n, 'n', 700);
    strcpy(header + n + 700, "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}");
    write_file(header, -1, 1);
    assert_refused("700 bytes");
}

static int set_up(void **state) {
    (void)state;
    if (!temporary_init(&temporary))
        return -1;
    temporary_path(&temporary, "t.safetensors", path, sizeof path);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    return temporary_free(&temporary) ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_a_plain_file),
        cmocka_unit_test(test_reads_empty_and_scalar_tensors),
        cmocka_unit_test(test_values_of_each_type),
        cmocka_unit_test(test_reads_a_file_of_pytorch),
        cmocka_unit_test(test_written_files_read_back),
        cmocka_unit_test(test_failed_writes_leave_nothing),
        cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_deep_nesting),
        cmocka_unit_test(test_bad_entries),
        cmocka_unit_test(test_overlaps_gaps_and_duplicates),
        cmocka_unit_test(test_long_names),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
