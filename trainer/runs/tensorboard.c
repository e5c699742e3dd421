// Each message is built on the stack and written as a record: length, CRC of length, data, CRC of data.
#include "trainer/runs/tensorboard.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"

#define LONGEST_TAG   4096 // room for the whole path of a mixture's source: two sources must not share a curve
#define LARGEST_EVENT (LONGEST_TAG + 128)
#define LARGEST_FILE  ((size_t)4 << 30)
#define FILE_PREFIX   "events.out.tfevents."
#define WRITER        "zero.c"

// Protobuf's wire types. The key of a field is (field number << 3) | type.
enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

struct message {
    unsigned char bytes[LARGEST_EVENT];
    size_t n;
};

uint32_t tensorboard_crc32c(const void *bytes, size_t n) {
    uint32_t crc = ~0u;
    for (const unsigned char *p = bytes; n-- > 0; p++) {
        crc ^= *p;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

uint32_t tensorboard_masked_crc32c(const void *bytes, size_t n) {
    uint32_t crc = tensorboard_crc32c(bytes, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void add_bytes(struct message *message, const void *bytes, size_t n) {
    memcpy(message->bytes + message->n, bytes, n);
    message->n += n;
}

static void add_varint(struct message *message, uint64_t value) {
    for (; value >= 0x80; value >>= 7)
        message->bytes[message->n++] = (unsigned char)(value | 0x80);
    message->bytes[message->n++] = (unsigned char)value;
}

static void add_key(struct message *message, unsigned field, unsigned type) {
    add_varint(message, field << 3 | type);
}

static void add_field(struct message *message, unsigned field, const void *bytes, size_t n) {
    add_key(message, field, WIRE_BYTES);
    add_varint(message, n);
    add_bytes(message, bytes, n);
}

// Fields of an Event: 1 wall_time (double), 2 step (int64), 3 file_version, 5 summary, 10 source_metadata
// { 1 writer }.
static void begin_event(struct message *event, int64_t step) {
    double now = clock_wall_s();
    add_key(event, 1, WIRE_FIXED64);
    add_bytes(event, &now, sizeof now);
    add_key(event, 2, WIRE_VARINT);
    add_varint(event, (uint64_t)step);
}

static void add_event(struct tensorboard *board, const struct message *event) {
    const uint64_t length = event->n;
    uint32_t length_crc = tensorboard_masked_crc32c(&length, sizeof length);
    uint32_t data_crc = tensorboard_masked_crc32c(event->bytes, event->n);
    text_add_bytes(&board->events, &length, sizeof length);
    text_add_bytes(&board->events, &length_crc, sizeof length_crc);
    text_add_bytes(&board->events, event->bytes, event->n);
    text_add_bytes(&board->events, &data_crc, sizeof data_crc);
}

// ---- removing events

// The bytes of a message that are not yet read. Reading ends at the first malformed field.
struct reader {
    const unsigned char *at, *end;
};

struct field {
    unsigned number, type;
    uint64_t integer; // value of a WIRE_VARINT field
};

static bool read_varint(struct reader *reader, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 64 && reader->at < reader->end; shift += 7) {
        unsigned char byte = *reader->at++;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

static bool read_field(struct reader *reader, struct field *field) {
    uint64_t key, bytes = 0;
    if (!read_varint(reader, &key))
        return false;
    field->number = (unsigned)(key >> 3);
    field->type = (unsigned)(key & 7);
    if (field->type == WIRE_VARINT)
        return read_varint(reader, &field->integer);
    if (field->type == WIRE_FIXED64 || field->type == WIRE_FIXED32)
        bytes = field->type == WIRE_FIXED64 ? 8 : 4;
    else if (field->type != WIRE_BYTES || !read_varint(reader, &bytes))
        return false;
    if (bytes > (uint64_t)(reader->end - reader->at))
        return false;
    reader->at += bytes;
    return true;
}

// The facts about an event that trimming needs.
struct seen_event {
    int64_t step;
    bool has_summary;
};

static struct seen_event look_at_event(struct reader event) {
    struct seen_event seen = {0};
    struct field field = {0};
    while (read_field(&event, &field)) {
        if (field.number == 2 && field.type == WIRE_VARINT)
            seen.step = (int64_t)field.integer;
        seen.has_summary |= field.number == 5 && field.type == WIRE_BYTES;
    }
    return seen;
}

// Returns the number of bytes of the record at `at`: length, CRC of length, data, CRC of data. 0 if the
// record is incomplete or damaged.
//   data   [out] the record's data
static size_t record_bytes(const unsigned char *at, size_t left, struct reader *data) {
    uint64_t length;
    uint32_t crc;
    if (left < 16)
        return 0;
    memcpy(&length, at, sizeof length);
    if (length > left - 16)
        return 0;
    *data = (struct reader){at + 12, at + 12 + length};
    memcpy(&crc, data->end, sizeof crc);
    return crc == tensorboard_masked_crc32c(data->at, length) ? 16 + (size_t)length : 0;
}

static enum status trim_file(const char *path, int64_t steps_done) {
    char *bytes;
    size_t length, n = 0;
    struct text kept = {0};
    struct reader data;
    bool has_values = false;
    TRY(file_read(path, LARGEST_FILE, &bytes, &length));
    for (size_t at = 0; (n = record_bytes((unsigned char *)bytes + at, length - at, &data)) > 0; at += n) {
        const struct seen_event event = look_at_event(data);
        if (event.has_summary && event.step > steps_done)
            continue;
        has_values = has_values || event.has_summary;
        text_add_bytes(&kept, bytes + at, n);
    }
    enum status status = STATUS_OK;
    if (!has_values)
        status = file_remove_tree(path);
    else if (kept.length != length)
        status = file_write_all(path, kept.data, kept.length);
    text_free(&kept);
    free(bytes);
    return status;
}

enum status tensorboard_trim(const char *folder, int64_t steps_done) {
    struct file_list names = {0};
    enum status status = file_list_folder(&names, folder);
    for (int i = 0; i < names.n_paths && status == STATUS_OK; i++) {
        if (strncmp(names.paths[i], FILE_PREFIX, sizeof FILE_PREFIX - 1) != 0)
            continue;
        char *path = file_path("%s/%s", folder, names.paths[i]);
        status = trim_file(path, steps_done);
        free(path);
    }
    file_list_free(&names);
    return status;
}

// ---- writing

enum status tensorboard_open(struct tensorboard *board, const char *folder) {
    char host[64] = "localhost";
    struct message event = {0}, writer = {0};
    (void)gethostname(host, sizeof host - 1);
    *board = (struct tensorboard){
        .path = file_path("%s/" FILE_PREFIX "%lld.%s", folder, (long long)clock_wall_s(), host),
        .descriptor = -1};
    TRY(file_open_regular(board->path, O_WRONLY | O_CREAT | O_APPEND, &board->descriptor));
    begin_event(&event, 0);
    add_field(&event, 3, "brain.Event:2", strlen("brain.Event:2"));
    add_field(&writer, 1, WRITER, strlen(WRITER));
    add_field(&event, 10, writer.bytes, writer.n);
    add_event(board, &event);
    return STATUS_OK;
}

// Fields of the Event: 5 summary { 1 value { 1 tag, 2 simple_value (float) } }.
void tensorboard_add(struct tensorboard *board, int64_t step, const char *tag, double value) {
    struct message event = {0}, summary = {0}, figure = {0};
    const float simple_value = (float)value;
    add_field(&figure, 1, tag, strnlen(tag, LONGEST_TAG));
    add_key(&figure, 2, WIRE_FIXED32);
    add_bytes(&figure, &simple_value, sizeof simple_value);
    add_field(&summary, 1, figure.bytes, figure.n);
    begin_event(&event, step);
    add_field(&event, 5, summary.bytes, summary.n);
    add_event(board, &event);
}

enum status tensorboard_flush(struct tensorboard *board) {
    TRY(file_append(board->descriptor, board->path, board->events.data, board->events.length));
    text_free(&board->events);
    return STATUS_OK;
}

void tensorboard_close(struct tensorboard *board) {
    if (board->path && board->descriptor >= 0) {
        const enum status written = tensorboard_flush(board); // retries what failed before
        (void)written;
        close(board->descriptor);
    }
    text_free(&board->events);
    free(board->path);
    *board = (struct tensorboard){0};
}
