// TensorBoard event files against their published format: checksums are compared with the vectors of RFC
// 3720, and records are read by a reader written here.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/support/expect.h"
#include "tests/support/temporary.h"
#include "trainer/runs/tensorboard.h"

#define MAX_EVENTS 8

static struct temporary temporary;

static void test_checksums(void **unused) {
    (void)unused;
    uint8_t bytes[32];
    // RFC 3720, B.4
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(tensorboard_crc32c(bytes, sizeof bytes), 0x8a9136aa);
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(tensorboard_crc32c(bytes, sizeof bytes), 0x62a8ab43);
    for (int i = 0; i < 32; i++)
        bytes[i] = (uint8_t)i;
    assert_int_equal(tensorboard_crc32c(bytes, sizeof bytes), 0x46dd794e);
    assert_int_equal(tensorboard_crc32c("123456789", 9), 0xe3069283);
    assert_int_equal(tensorboard_crc32c("", 0), 0);
    // ((crc >> 15) | (crc << 17)) + 0xa282ead8 of 0xe3069283, by hand
    assert_int_equal(tensorboard_masked_crc32c("123456789", 9), 0xc78ab0e5);
    assert_int_equal(tensorboard_masked_crc32c("", 0), 0xa282ead8);
}

// ---- a reader that knows only our fields, and fails on any other

struct board_event {
    double wall_time;
    int64_t step;
    char version[32], writer[32], tag[400];
    float value;
};

static uint64_t little_endian(const uint8_t *bytes, int n) {
    uint64_t value = 0;
    for (int i = 0; i < n; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

static uint64_t read_varint(const uint8_t **at, const uint8_t *end) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(*at < end && shift < 64);
        uint8_t byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return value;
    }
}

// A decoded field: its number and wire type, and its content.
struct field {
    int number, wire;
    uint64_t integer;
    const uint8_t *data;
    size_t bytes;
};

static struct field read_field(const uint8_t **at, const uint8_t *end) {
    uint64_t key = read_varint(at, end);
    struct field field = {.number = (int)(key >> 3), .wire = (int)(key & 7)};
    if (field.wire == 0) {
        field.integer = read_varint(at, end);
        return field;
    }
    assert_true(field.wire == 1 || field.wire == 2 || field.wire == 5);
    field.bytes = field.wire == 1 ? 8 : field.wire == 5 ? 4 : (size_t)read_varint(at, end);
    field.data = *at;
    assert_true(field.bytes <= (size_t)(end - *at));
    *at += field.bytes;
    return field;
}

static void copy_string(const struct field *field, char *out, size_t size) {
    assert_int_equal(field->wire, 2);
    assert_true(field->bytes < size);
    memcpy(out, field->data, field->bytes);
    out[field->bytes] = '\0';
}

static void read_value(const struct field *message, struct board_event *event) {
    for (const uint8_t *at = message->data, *end = at + message->bytes; at < end;) {
        struct field field = read_field(&at, end);
        if (field.number == 1)
            copy_string(&field, event->tag, sizeof event->tag);
        else {
            assert_int_equal(field.number, 2);
            assert_int_equal(field.wire, 5);
            uint32_t bits = (uint32_t)little_endian(field.data, 4);
            memcpy(&event->value, &bits, sizeof bits);
        }
    }
}

static struct board_event read_event(const uint8_t *at, const uint8_t *end) {
    struct board_event event = {0};
    while (at < end) {
        struct field field = read_field(&at, end);
        if (field.number == 1) {
            assert_int_equal(field.wire, 1);
            uint64_t bits = little_endian(field.data, 8);
            memcpy(&event.wall_time, &bits, sizeof bits);
        } else if (field.number == 2) {
            assert_int_equal(field.wire, 0);
            event.step = (int64_t)field.integer;
        } else if (field.number == 3) {
            copy_string(&field, event.version, sizeof event.version);
        } else if (field.number == 10) {
            const uint8_t *inner = field.data;
            struct field writer = read_field(&inner, field.data + field.bytes);
            assert_int_equal(writer.number, 1);
            copy_string(&writer, event.writer, sizeof event.writer);
        } else {
            assert_int_equal(field.number, 5);
            const uint8_t *inner = field.data;
            struct field value = read_field(&inner, field.data + field.bytes);
            assert_int_equal(value.number, 1);
            assert_int_equal(value.wire, 2);
            assert_ptr_equal(inner, field.data + field.bytes);
            read_value(&value, &event);
        }
    }
    return event;
}

static int read_events(const char *path, struct board_event *events) {
    char *data;
    size_t bytes;
    int n = 0;
    EXPECT_OK(file_read(path, 1 << 20, &data, &bytes));
    for (const uint8_t *at = (const uint8_t *)data, *end = at + bytes; at < end; n++) {
        assert_true(end - at >= 16 && n < MAX_EVENTS);
        uint64_t length = little_endian(at, 8);
        assert_true(length <= (uint64_t)(end - at) - 16);
        assert_int_equal(little_endian(at + 8, 4), tensorboard_masked_crc32c(at, 8));
        assert_int_equal(little_endian(at + 12 + length, 4), tensorboard_masked_crc32c(at + 12, length));
        events[n] = read_event(at + 12, at + 12 + length);
        at += 16 + length;
    }
    free(data);
    return n;
}

static void test_events_read_back(void **unused) {
    (void)unused;
    struct tensorboard board;
    struct board_event events[MAX_EVENTS];
    EXPECT_OK(tensorboard_open(&board, temporary.folder));
    const char *name = strrchr(board.path, '/');
    assert_true(name && strncmp(name, "/events.out.tfevents.", 21) == 0);
    tensorboard_add(&board, 0, "train/loss", 10.825);
    tensorboard_add(&board, 300, "train/lr", 6e-4);
    tensorboard_add(&board, (int64_t)1 << 40, "val/loss", -0.0);
    EXPECT_OK(tensorboard_flush(&board));
    assert_int_equal(read_events(board.path, events), 4);
    assert_string_equal(events[0].version, "brain.Event:2");
    assert_string_equal(events[0].writer, "zero.c");
    assert_string_equal(events[1].tag, "train/loss");
    assert_true(events[1].step == 0 && events[1].value == 10.825f);
    assert_string_equal(events[2].tag, "train/lr");
    assert_true(events[2].step == 300 && events[2].value == 6e-4f);
    assert_string_equal(events[3].tag, "val/loss");
    assert_true(events[3].step == (int64_t)1 << 40 && events[3].value == 0 && signbit(events[3].value));
    for (int i = 0; i < 4; i++)
        assert_true(events[i].wall_time > 1.6e9 && events[i].wall_time < 1e11);
    EXPECT_OK(file_remove_tree(board.path));
    tensorboard_close(&board);
}

// Two sources of a mixture whose paths differ behind a long beginning have two curves.
static void test_long_tags_stay_whole(void **unused) {
    (void)unused;
    struct tensorboard board;
    struct board_event events[MAX_EVENTS];
    char tags[2][300];
    EXPECT_OK(tensorboard_open(&board, temporary.folder));
    for (int i = 0; i < 2; i++) {
        snprintf(tags[i], sizeof tags[i], "val/loss/%0250d/%s-*.bin", 0, i ? "books" : "web");
        tensorboard_add(&board, 1, tags[i], 2.5);
    }
    EXPECT_OK(tensorboard_flush(&board));
    assert_int_equal(read_events(board.path, events), 3);
    for (int i = 0; i < 2; i++)
        assert_string_equal(events[1 + i].tag, tags[i]);
    EXPECT_OK(file_remove_tree(board.path));
    tensorboard_close(&board);
}

// ---- trimming

static void write_events(struct tensorboard *board, int64_t first, int64_t last) {
    EXPECT_OK(tensorboard_open(board, temporary.folder));
    for (int64_t step = first; step <= last; step++)
        tensorboard_add(board, step, step % 3 == 0 ? "val/loss" : "train/loss", 1);
    EXPECT_OK(tensorboard_flush(board));
}

// The steps of a file's events after the first.
static void assert_event_steps(const char *path, const char *expected) {
    struct board_event events[MAX_EVENTS];
    char got[128] = "";
    int n = read_events(path, events);
    assert_string_equal(events[0].version, "brain.Event:2");
    for (int i = 1; i < n; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d", i > 1 ? "," : "", (int)events[i].step);
    assert_string_equal(got, expected);
}

static void append_bytes(const char *path, const char *bytes, size_t n) {
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

// A resumed run keeps the events of the steps done; what is torn at the end goes too, and an empty file.
static void test_trimming(void **unused) {
    (void)unused;
    struct tensorboard board;
    char *path;
    write_events(&board, 1, 5);
    path = strdup(board.path);
    tensorboard_close(&board);
    append_bytes(path, "\x20\0\0\0\0\0\0\0torn", 12);
    EXPECT_OK(tensorboard_trim(temporary.folder, 4));
    assert_event_steps(path, "1,2,3,4");
    EXPECT_OK(tensorboard_trim(temporary.folder, 3));
    assert_event_steps(path, "1,2,3");
    EXPECT_OK(tensorboard_trim(temporary.folder, 0));
    assert_false(file_exists(path));
    free(path);
}

static void test_a_missing_folder(void **unused) {
    (void)unused;
    struct tensorboard board;
    char absent[512];
    temporary_path(&temporary, "absent", absent, sizeof absent);
    EXPECT_FAILURE(STATUS_FAILED, tensorboard_open(&board, absent), absent);
    tensorboard_close(&board);
}

static int make_folder(void **unused) {
    (void)unused;
    return temporary_init(&temporary) ? 0 : -1;
}

static int remove_folder(void **unused) {
    (void)unused;
    return temporary_free(&temporary) ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checksums),
        cmocka_unit_test(test_events_read_back),
        cmocka_unit_test(test_long_tags_stay_whole),
        cmocka_unit_test(test_trimming),
        cmocka_unit_test(test_a_missing_folder),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
