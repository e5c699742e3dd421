// A buffer slides over the file. The scanner knows JSON's tokens, not its grammar in full: a line of metrics
// is a flat object, whose nested values are skipped.
#include "trainer/runs/metrics_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

#define BUFFER_BYTES ((size_t)1 << 20) // the longest line, with its newline

struct name {
    const char *text;
    size_t length;
};
#define METRIC_KEY(constant, name) [constant] = {name, sizeof name - 1},
static const struct name metric_keys[N_METRICS] = {METRICS(METRIC_KEY)},
                         json_keys[N_METRICS_JSON] = {METRICS_JSON(METRIC_KEY)};
#undef METRIC_KEY

// ---- a line

static const char *skip_blanks(const char *p, const char *end) {
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\r'))
        p++;
    return p;
}

// p is at the opening quote. Returns what follows the closing one, or NULL.
static const char *skip_string(const char *p, const char *end) {
    for (p++; p < end && *p != '"'; p++)
        if (*p == '\\')
            p++;
    return p < end ? p + 1 : NULL;
}

// Returns what follows a value, or NULL.
static const char *skip_value(const char *p, const char *end) {
    int depth = 0;
    const char *const begin = p;
    while (p && p < end) {
        if (*p == '"') {
            p = skip_string(p, end);
            if (depth == 0)
                return p;
            continue;
        }
        if (depth == 0 && (*p == ',' || *p == '}' || *p == ' '))
            return p > begin ? p : NULL;
        if (*p == '{' || *p == '[')
            depth++;
        else if ((*p == '}' || *p == ']') && --depth == 0)
            return p + 1;
        p++;
    }
    return NULL;
}

struct member {
    const char *key, *value;
    size_t key_length, value_length;
};

static bool is_key(const struct member *member, const char *key) {
    return member->key_length == strlen(key) && memcmp(member->key, key, member->key_length) == 0;
}

static bool has_name(const struct member *member, const struct name *name) {
    return member->key_length == name->length && memcmp(member->key, name->text, name->length) == 0;
}

static bool is_value(const struct member *member, const char *value) {
    return member->value_length == strlen(value) && memcmp(member->value, value, member->value_length) == 0;
}

// *p is at a member. Moves it to the next one, or to `end` after the closing brace. False: not JSON.
static bool read_member(const char **p, const char *end, struct member *member) {
    const char *at = skip_blanks(*p, end);
    if (at >= end || *at != '"')
        return false;
    member->key = at + 1;
    at = skip_string(at, end);
    if (!at)
        return false;
    member->key_length = (size_t)(at - member->key) - 1;
    at = skip_blanks(at, end);
    if (at >= end || *at != ':')
        return false;
    member->value = skip_blanks(at + 1, end);
    at = skip_value(member->value, end);
    if (!at)
        return false;
    member->value_length = (size_t)(at - member->value);
    at = skip_blanks(at, end);
    if (at >= end || (*at != ',' && *at != '}'))
        return false;
    *p = *at == ',' ? at + 1 : end;
    return *at == ',' || skip_blanks(at + 1, end) == end;
}

// NaN for what is not a number of JSON. A newline or bracket follows each value, so strtod ends in the line.
static double number_of(const struct member *member) {
    const char first = member->value[0];
    if (first != '-' && (first < '0' || first > '9'))
        return NAN;
    char *after;
    const double value = strtod(member->value, &after);
    return after == member->value + member->value_length ? value : NAN;
}

static void read_known(const struct member *member, struct metrics_line *line, double *step) {
    if (is_key(member, "step"))
        *step = number_of(member);
    else if (is_key(member, "final"))
        line->is_final = is_value(member, "true");
    else if (is_key(member, "mfu_of"))
        line->mfu_of_dense_peak = is_value(member, "\"dense peak\"");
    for (int i = 0; i < N_METRICS; i++)
        if (has_name(member, &metric_keys[i])) {
            line->values[i] = number_of(member);
            line->is_step |= i == METRIC_LOSS;
            line->is_eval |= i == METRIC_VAL_LOSS;
            return;
        }
    for (int i = 0; i < N_METRICS_JSON; i++)
        if (has_name(member, &json_keys[i]))
            line->json[i] = (struct metrics_json){member->value, member->value_length};
}

static bool read_line(const char *p, const char *end, struct metrics_line *line) {
    struct member member;
    double step = NAN;
    *line = (struct metrics_line){0};
    for (int i = 0; i < N_METRICS; i++)
        line->values[i] = NAN;
    p = skip_blanks(p, end);
    if (p >= end || *p != '{')
        return false;
    for (p++; p < end;) {
        if (!read_member(&p, end, &member))
            return false;
        read_known(&member, line, &step);
    }
    if (!(step >= 0 && step <= 9007199254740992.0))
        return false;
    // Versions before 0.3 counted losses from 0.
    line->step = (int64_t)step + (line->is_step && isnan(line->values[METRIC_WALL_TIME]));
    return true;
}

// ---- the file

enum status metrics_reader_open(struct metrics_reader *reader, const char *folder) {
    *reader = (struct metrics_reader){
        .path = file_path("%s/metrics.jsonl", folder), .buffer = malloc(BUFFER_BYTES), .descriptor = -1};
    if (!reader->path || !reader->buffer)
        return FAIL(STATUS_FAILED, "out of memory to read %s/metrics.jsonl", folder);
    return STATUS_OK;
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

// The run may not have begun: then there is no file, and the descriptor stays -1.
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
        reader->skips = true; // the rest of the line there
        reader->damaged = -1; // which is not damaged
    }
}

// The file that was read so far is not the one of that name any more, or was cut.
static bool was_replaced(const struct metrics_reader *reader) {
    struct stat info;
    if (stat(reader->path, &info) != 0)
        return true;
    return (uint64_t)info.st_ino != reader->inode || (uint64_t)info.st_size < reader->offset;
}

// Moves what is not scanned to the front, and reads more behind it.
static enum status fill(struct metrics_reader *reader, size_t *got) {
    memmove(reader->buffer, reader->buffer + reader->begin, reader->end - reader->begin);
    reader->end -= reader->begin;
    reader->begin = 0;
    if (reader->end == BUFFER_BYTES) { // no newline in all of it
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
        const bool is_line = !reader->skips && read_line(begin, newline, line);
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
