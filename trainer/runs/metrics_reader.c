// A buffer slides over the file. The scanner knows JSON's tokens but not its whole grammar: a line of metrics
// is a flat object, and nested values are skipped. With cJSON, a report would take twice as long.
#include "trainer/runs/metrics_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"

#define BUFFER_BYTES ((size_t)1 << 20) // the longest line, with its newline; longer ones are skipped

#define BLANKS " \t\r"

// ---- scanning a line

// Skips a string; p is at its opening quote. Returns the position after the closing quote; NULL without one.
static const char *skip_string(const char *p) {
    for (p++; *p && *p != '"'; p++)
        if (*p == '\\' && p[1])
            p++;
    return *p ? p + 1 : NULL;
}

// Skips a value. Returns the comma, brace or blank after it; NULL if the line ends inside the value.
static const char *skip_value(const char *p) {
    for (int depth = 0; *p; p++) {
        if (*p == '"') {
            p = skip_string(p);
            if (!p)
                return NULL;
            p--;
        } else if (*p == '{' || *p == '[') {
            depth++;
        } else if (depth == 0 && (*p == ',' || *p == '}' || *p == ']' || *p == ' ' || *p == '\t')) {
            return p;
        } else if (*p == '}' || *p == ']') {
            depth--;
        }
    }
    return NULL;
}

// Returns the JSON number in [value, end); NaN if it is anything else.
static double number_of(const char *value, const char *end) {
    char *after;
    const double number = *value == '-' || (*value >= '0' && *value <= '9') ? strtod(value, &after) : NAN;
    return !isnan(number) && after == end ? number : NAN;
}

static void read_member(const char *key, size_t length, const char *value, const char *end,
                        struct metrics_line *line, double *step) {
#define METRIC_KEY(constant, name) [constant] = {name, sizeof name - 1},
    static const struct {
        const char *text;
        size_t length;
    } keys[N_METRICS] = {METRICS(METRIC_KEY)};
#undef METRIC_KEY
    if (length == 4 && memcmp(key, "step", 4) == 0)
        *step = number_of(value, end);
    for (int i = 0; i < N_METRICS; i++)
        if (keys[i].length == length && memcmp(keys[i].text, key, length) == 0) {
            line->values[i] = number_of(value, end);
            line->is_step |= i == METRIC_LOSS;
            line->is_eval |= i == METRIC_VAL_LOSS;
            return;
        }
}

static bool read_line(const char *p, struct metrics_line *line) {
    double step = NAN;
    *line = (struct metrics_line){.text = p};
    for (int i = 0; i < N_METRICS; i++)
        line->values[i] = NAN;
    p += strspn(p, BLANKS);
    if (*p != '{')
        return false;
    do {
        const char *key = p + 1 + strspn(p + 1, BLANKS), *end = *key == '"' ? skip_string(key) : NULL,
                   *value = end ? end + strspn(end, BLANKS) : "";
        if (*value != ':')
            return false;
        value += 1 + strspn(value + 1, BLANKS);
        p = skip_value(value);
        if (!p || p == value)
            return false;
        read_member(key + 1, (size_t)(end - key) - 2, value, p, line, &step);
        p += strspn(p, BLANKS);
    } while (*p == ',');
    if (*p != '}' || p[1 + strspn(p + 1, BLANKS)] != '\0' || !(step >= 0 && step <= 9007199254740992.0))
        return false;
    line->step = (int64_t)step;
    return true;
}

// ---- reading the file

void metrics_reader_open(struct metrics_reader *reader, const char *folder) {
    *reader = (struct metrics_reader){
        .path = file_path("%s/metrics.jsonl", folder), .buffer = allocate(1, BUFFER_BYTES), .descriptor = -1};
}

void metrics_reader_close(struct metrics_reader *reader) {
    if (reader->descriptor >= 0)
        close(reader->descriptor);
    free(reader->path);
    free(reader->buffer);
    *reader = (struct metrics_reader){.descriptor = -1};
}

static void forget_file(struct metrics_reader *reader) {
    if (reader->descriptor >= 0)
        close(reader->descriptor);
    *reader = (struct metrics_reader){.path = reader->path, .buffer = reader->buffer, .descriptor = -1};
}

// Opens the file if it exists. If the run has not begun, there is no file, and the descriptor stays -1.
static enum status open_file(struct metrics_reader *reader) {
    struct stat info;
    if (reader->descriptor >= 0 || stat(reader->path, &info) != 0)
        return STATUS_OK;
    TRY(file_open_regular(reader->path, O_RDONLY, &reader->descriptor));
    if (fstat(reader->descriptor, &info) != 0)
        return FAIL(STATUS_FAILED, "cannot stat %s: %s", reader->path, strerror(errno));
    reader->inode = (uint64_t)info.st_ino;
    return STATUS_OK;
}

void metrics_reader_seek_tail(struct metrics_reader *reader, uint64_t bytes) {
    struct stat info;
    if (stat(reader->path, &info) == 0 && (uint64_t)info.st_size > bytes) {
        reader->offset = (uint64_t)info.st_size - bytes;
        reader->skips = true; // the offset may be inside a line: skip up to the next newline
        reader->damaged = -1; // makes up for the skipped line, which counts as damaged
    }
}

// Returns true if the file was truncated, deleted, or replaced by another file with the same name.
static bool was_replaced(const struct metrics_reader *reader) {
    struct stat info;
    if (stat(reader->path, &info) != 0)
        return true;
    return (uint64_t)info.st_ino != reader->inode || (uint64_t)info.st_size < reader->offset;
}

// Moves the bytes that are not yet scanned to the front, and reads more after them.
static enum status fill(struct metrics_reader *reader, size_t *got) {
    memmove(reader->buffer, reader->buffer + reader->begin, reader->end - reader->begin);
    reader->end -= reader->begin;
    reader->begin = 0;
    if (reader->end == BUFFER_BYTES) { // the buffer is full and has no newline
        reader->skips = true;
        reader->end = 0;
    }
    ssize_t n;
    do
        n = pread(reader->descriptor, reader->buffer + reader->end, BUFFER_BYTES - reader->end,
                  (off_t)reader->offset);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return FAIL(STATUS_FAILED, "cannot read %s: %s", reader->path, strerror(errno));
    reader->end += (size_t)n;
    reader->offset += (uint64_t)n;
    *got = (size_t)n;
    return STATUS_OK;
}

enum status metrics_reader_next(struct metrics_reader *reader, struct metrics_line *line,
                                enum metrics_event *event) {
    size_t got = 1;
    *event = METRICS_END;
    TRY(open_file(reader));
    if (reader->descriptor < 0)
        return STATUS_OK;
    while (got > 0) {
        char *begin = reader->buffer + reader->begin, *end = reader->buffer + reader->end,
             *newline = memchr(begin, '\n', (size_t)(end - begin));
        if (!newline) {
            TRY(fill(reader, &got));
            continue;
        }
        reader->begin = (size_t)(newline + 1 - reader->buffer);
        *newline = '\0';
        const bool is_line = !reader->skips && read_line(begin, line);
        reader->skips = false;
        if (is_line) {
            *event = METRICS_LINE;
            return STATUS_OK;
        }
        reader->damaged++;
    }
    if (was_replaced(reader)) {
        forget_file(reader);
        *event = METRICS_RESTARTED;
    }
    return STATUS_OK;
}
