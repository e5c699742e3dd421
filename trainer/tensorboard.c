// Messages are a few dozen bytes. Each is built on the stack and written as length, CRC of length, data, CRC
// of data.
#include "trainer/tensorboard.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"

#define LARGEST_EVENT 256
#define LONGEST_TAG   96

// Protobuf's wire types: (field number << 3) | type.
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

// Event: 1 wall_time (double), 2 step (int64).
static void begin_event(struct message *event, int64_t step) {
    double now = clock_wall_s();
    add_key(event, 1, WIRE_FIXED64);
    add_bytes(event, &now, sizeof now);
    add_key(event, 2, WIRE_VARINT);
    add_varint(event, (uint64_t)step);
}

static enum status write_event(struct tensorboard *board, const struct message *event) {
    const uint64_t length = event->n;
    uint32_t length_crc = tensorboard_masked_crc32c(&length, sizeof length);
    uint32_t data_crc = tensorboard_masked_crc32c(event->bytes, event->n);
    bool written = fwrite(&length, sizeof length, 1, board->stream) == 1 &&
                   fwrite(&length_crc, sizeof length_crc, 1, board->stream) == 1 &&
                   fwrite(event->bytes, 1, event->n, board->stream) == event->n &&
                   fwrite(&data_crc, sizeof data_crc, 1, board->stream) == 1;
    return written ? STATUS_OK : FAIL(STATUS_FAILED, "cannot write %s: %s", board->path, strerror(errno));
}

enum status tensorboard_open(struct tensorboard *board, const char *folder) {
    char host[64] = "localhost";
    struct message event = {0};
    (void)gethostname(host, sizeof host - 1);
    *board = (struct tensorboard){
        .path = file_path("%s/events.out.tfevents.%lld.%s", folder, (long long)clock_wall_s(), host)};
    if (!board->path)
        return STATUS_FAILED;
    TRY(file_append_open(board->path, &board->stream));
    begin_event(&event, 0);
    add_field(&event, 3, "brain.Event:2", strlen("brain.Event:2"));
    return write_event(board, &event);
}

// Event: 5 summary { 1 value { 1 tag, 2 simple_value (float) } }.
enum status tensorboard_add(struct tensorboard *board, int64_t step, const char *tag, double value) {
    struct message event = {0}, summary = {0}, figure = {0};
    const float simple_value = (float)value;
    add_field(&figure, 1, tag, strnlen(tag, LONGEST_TAG));
    add_key(&figure, 2, WIRE_FIXED32);
    add_bytes(&figure, &simple_value, sizeof simple_value);
    add_field(&summary, 1, figure.bytes, figure.n);
    begin_event(&event, step);
    add_field(&event, 5, summary.bytes, summary.n);
    return write_event(board, &event);
}

enum status tensorboard_flush(struct tensorboard *board) {
    return fflush(board->stream) == 0
               ? STATUS_OK
               : FAIL(STATUS_FAILED, "cannot write %s: %s", board->path, strerror(errno));
}

void tensorboard_close(struct tensorboard *board) {
    if (board->stream)
        fclose(board->stream);
    free(board->path);
    *board = (struct tensorboard){0};
}
