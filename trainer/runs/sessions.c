// Lines are JSON objects with "event": "begin", "constants" or "end". Each is appended with a single write,
// so that readers see whole lines. Lines of any other form are skipped.
#include "trainer/runs/sessions.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"

#define LARGEST_FILE ((size_t)256 << 20)

const char *session_end_name(enum session_end end) {
#define SESSION_NAME(constant, word) [constant] = word,
    static const char *const names[] = {SESSION_ENDS(SESSION_NAME)};
#undef SESSION_NAME
    return names[end];
}

// ---- writing

static bool ends_with_newline(const char *path) {
    FILE *stream = fopen(path, "rb");
    bool whole = !stream || fseek(stream, -1, SEEK_END) != 0 || getc(stream) == '\n';
    if (stream)
        fclose(stream);
    return whole;
}

static enum status append(const char *folder, struct text *line) {
    int descriptor;
    char *path = file_path("%s/sessions.jsonl", folder);
    const bool whole = ends_with_newline(path);
    enum status status = file_open_regular(path, O_WRONLY | O_CREAT | O_APPEND, &descriptor);
    if (status == STATUS_OK) {
        if (!whole)
            status = file_append(descriptor, path, "\n", 1);
        if (status == STATUS_OK)
            status = file_append(descriptor, path, line->data, line->length);
        close(descriptor);
    }
    free(path);
    text_free(line);
    return status;
}

static void add_string(struct text *line, const char *name, const char *value) {
    text_add(line, ", \"%s\": ", name);
    json_add_string(line, value);
}

static void add_number(struct text *line, const char *name, double value) {
    char number[32];
    text_add(line, ", \"%s\": %s", name, text_double(number, value));
}

enum status sessions_begin(const char *folder, const struct session *session) {
    struct text line = {0};
    text_add(&line, "{\"event\": \"begin\"");
    add_number(&line, "wall_time", session->began);
    text_add(&line, ", \"step\": %lld", (long long)session->step);
    add_string(&line, "version", session->version);
    add_string(&line, "machine", session->machine);
    add_string(&line, "device", session->device);
    add_string(&line, "fingerprint", session->fingerprint);
    add_string(&line, "compute", session->compute);
    text_add(&line, ", \"ranks\": %d, \"threads\": %d", session->ranks, session->threads);
    add_number(&line, "parameters", session->parameters);
    add_number(&line, "gemm_flops_per_s", session->gemm_flops_per_s);
    add_number(&line, "dense_peak_flops_per_s", session->dense_peak_flops);
    text_add(&line, "}\n");
    return append(folder, &line);
}

enum status sessions_constants(const char *folder, const char *constants) {
    struct text line = {0};
    text_add(&line, "{\"event\": \"constants\", %s}\n", constants);
    return append(folder, &line);
}

enum status sessions_end(const char *folder, const struct session *session) {
    struct text line = {0};
    text_add(&line, "{\"event\": \"end\"");
    add_number(&line, "wall_time", session->ended);
    text_add(&line, ", \"step\": %lld, \"total\": %lld", (long long)session->end_step,
             (long long)session->total);
    add_string(&line, "state", session_end_name(session->end));
    add_string(&line, "message", session->message);
    text_add(&line, "}\n");
    return append(folder, &line);
}

// ---- reading

static double number_of(const cJSON *entry, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(entry, name);
    return cJSON_IsNumber(item) && isfinite(item->valuedouble) ? item->valuedouble : 0;
}

// Reads a count, and clamps it to [0, 2^53]. Returns 0 if it is absent.
static int64_t count_of(const cJSON *entry, const char *name) {
    return (int64_t)fmin(fmax(number_of(entry, name), 0), 9007199254740992.0);
}

static void read_string(const cJSON *entry, const char *name, char *out, size_t size) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(entry, name);
    snprintf(out, size, "%s", cJSON_IsString(item) ? item->valuestring : "");
}

static void read_begin(const cJSON *entry, struct session *session) {
    *session = (struct session){.began = number_of(entry, "wall_time"),
                                .step = count_of(entry, "step"),
                                .ranks = (int)fmin((double)count_of(entry, "ranks"), 1e9),
                                .threads = (int)fmin((double)count_of(entry, "threads"), 1e9),
                                .parameters = number_of(entry, "parameters"),
                                .gemm_flops_per_s = number_of(entry, "gemm_flops_per_s"),
                                .dense_peak_flops = number_of(entry, "dense_peak_flops_per_s")};
    read_string(entry, "version", session->version, sizeof session->version);
    read_string(entry, "machine", session->machine, sizeof session->machine);
    read_string(entry, "device", session->device, sizeof session->device);
    read_string(entry, "compute", session->compute, sizeof session->compute);
}

static void read_end(const cJSON *entry, struct session *session) {
    char word[16];
    read_string(entry, "state", word, sizeof word);
    for (int end = SESSION_FINISHED; end < N_SESSION_ENDS; end++)
        if (strcmp(word, session_end_name((enum session_end)end)) == 0)
            session->end = (enum session_end)end;
    session->ended = number_of(entry, "wall_time");
    session->end_step = count_of(entry, "step");
    session->total = count_of(entry, "total");
    read_string(entry, "message", session->message, sizeof session->message);
}

static bool is_named(const cJSON *event, const char *name) {
    return cJSON_IsString(event) && strcmp(event->valuestring, name) == 0;
}

// Reads one line into `sessions`. If SESSIONS_MOST are there and another begins, drops the oldest.
static void read_line(const char *line, size_t length, struct session *sessions, int *n) {
    cJSON *entry = cJSON_ParseWithLength(line, length);
    const cJSON *event = cJSON_GetObjectItemCaseSensitive(entry, "event");
    if (is_named(event, "begin")) {
        if (*n == SESSIONS_MOST)
            memmove(sessions, sessions + 1, (size_t)-- * n * sizeof *sessions);
        read_begin(entry, &sessions[(*n)++]);
    } else if (is_named(event, "end") && *n > 0) {
        read_end(entry, &sessions[*n - 1]);
    } else if (is_named(event, "constants") && *n > 0 && length < sizeof sessions->constants) {
        memcpy(sessions[*n - 1].constants, line, length);
        sessions[*n - 1].constants[length] = '\0';
    }
    cJSON_Delete(entry);
}

struct session *sessions_read(const char *folder, int *n) {
    char *text = NULL, *path = file_path("%s/sessions.jsonl", folder);
    size_t length = 0;
    *n = 0;
    struct session *sessions = allocate(SESSIONS_MOST, sizeof *sessions);
    if (file_exists(path) && file_read(path, LARGEST_FILE, &text, &length) != STATUS_OK)
        status_clear(); // as if the file were absent: a report shows what it can read
    for (char *line = text; line && line < text + length;) {
        char *end = memchr(line, '\n', (size_t)(text + length - line));
        if (!end)
            break;
        read_line(line, (size_t)(end - line), sessions, n);
        line = end + 1;
    }
    free(text);
    free(path);
    return sessions;
}
