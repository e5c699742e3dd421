// One mutex keeps lines whole: the loader's thread may warn while the trainer draws the progress line.
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/status.h"
#include "base/utf8.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static enum log_level shown = LOG_INFO;
static FILE *log_file;
// Lines logged while no log file is open; log_open_file writes them first. Lines that do not fit are lost.
static char held[8192];
static size_t held_length;
static bool live;          // whether the terminal shows the progress line
static size_t live_length; // length of the progress line in columns

void log_set_level(enum log_level level) {
    shown = level;
}

static void erase_live(void) {
    if (live)
        fputs("\r\033[K", stderr);
    live = false;
}

// Writes a line to the log file or, before it is open, to `held`.
static void write_line(const char *prefix, const char *message) {
    char line[STATUS_MESSAGE_BYTES + 64], stamp[32];
    time_t now = time(NULL);
    struct tm local;
    strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &local));
    const int length = snprintf(line, sizeof line, "%s %s%s\n", stamp, prefix, message);
    if (log_file) {
        fputs(line, log_file);
        fflush(log_file);
    } else if (held_length + (size_t)length < sizeof held) {
        memcpy(held + held_length, line, (size_t)length);
        held_length += (size_t)length;
    }
}

static void add_message(enum log_level level, const char *prefix, const char *format, va_list arguments) {
    char message[STATUS_MESSAGE_BYTES];
    vsnprintf(message, sizeof message, format, arguments);
    pthread_mutex_lock(&lock);
    if (level <= shown) {
        erase_live();
        // On a terminal, control characters are replaced: text quoted from files and samples may have some.
        struct text visible = {0};
        if (isatty(STDERR_FILENO))
            utf8_add_visible(&visible, message, strlen(message), NULL);
        // One call per line, so that lines of several ranks do not mix.
        fprintf(stderr, "%s%s\n", prefix, visible.data ? visible.data : message);
        text_free(&visible);
    }
    write_line(prefix, message);
    pthread_mutex_unlock(&lock);
}

#define LOG_FUNCTION(name, level, prefix)                                                                    \
    void name(const char *format, ...) {                                                                     \
        va_list arguments;                                                                                   \
        va_start(arguments, format);                                                                         \
        add_message(level, prefix, format, arguments);                                                       \
        va_end(arguments);                                                                                   \
    }
LOG_FUNCTION(log_error, LOG_ERROR, "train: error: ")
LOG_FUNCTION(log_warning, LOG_WARNING, "train: warning: ")
LOG_FUNCTION(log_info, LOG_INFO, "")
LOG_FUNCTION(log_debug, LOG_DEBUG, "")

void log_warning_once(const char *format, ...) {
    static uint64_t logged[64]; // hashes of messages; once full, other messages are logged every time
    static int n;
    char message[STATUS_MESSAGE_BYTES];
    uint64_t hash = 14695981039346656037u; // FNV-1a
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    for (const char *c = message; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < n && logged[i] != hash)
        i++;
    const bool is_new = i == n;
    if (is_new && n < (int)(sizeof logged / sizeof *logged))
        logged[n++] = hash;
    pthread_mutex_unlock(&lock);
    if (is_new)
        log_warning("%s", message);
}

enum status log_open_file(const char *path) {
    log_close_file();
    FILE *file;
    TRY(file_append_open(path, &file));
    pthread_mutex_lock(&lock);
    log_file = file;
    fwrite(held, 1, held_length, file);
    fflush(file);
    held_length = 0;
    pthread_mutex_unlock(&lock);
    return STATUS_OK;
}

void log_close_file(void) {
    pthread_mutex_lock(&lock);
    if (log_file)
        fclose(log_file);
    log_file = NULL;
    pthread_mutex_unlock(&lock);
}

bool log_is_terminal(void) {
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
}

static size_t terminal_columns(void) {
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

// The index of the field to drop next; -1 if none is left.
static int least_useful(const struct log_field *fields, const bool *kept, int n) {
    int worst = -1;
    for (int i = 0; i < n; i++)
        if (kept[i] && (worst < 0 || fields[i].rank >= fields[worst].rank))
            worst = i;
    return worst;
}

const char *log_join_fields(const struct log_field *fields, int n, size_t columns, char *line, size_t size) {
    enum { MOST_FIELDS = 16, GAP = 2 };
    bool kept[MOST_FIELDS] = {false};
    size_t width = 0, length = 0;
    line[0] = '\0';
    n = n < MOST_FIELDS ? n : MOST_FIELDS;
    for (int i = 0; i < n; i++) {
        kept[i] = fields[i].text[0] != '\0';
        width += kept[i] ? strlen(fields[i].text) + GAP : 0;
    }
    columns = columns < size - 1 ? columns : size - 1;
    for (int drop; width > columns + GAP && (drop = least_useful(fields, kept, n)) >= 0;) {
        kept[drop] = false;
        width -= strlen(fields[drop].text) + GAP;
    }
    for (int i = 0; i < n; i++)
        if (kept[i])
            length +=
                (size_t)snprintf(line + length, size - length, "%s%s", length ? "  " : "", fields[i].text);
    return line;
}

// A line that fills the last column, or is wider, wraps and cannot be redrawn, so lines are kept shorter. If
// the terminal has become narrower than the displayed line, a new line is started below it.
void log_live(const struct log_field *fields, int n) {
    if (shown < LOG_INFO || !log_is_terminal())
        return;
    char line[512];
    const size_t columns = terminal_columns();
    log_join_fields(fields, n, columns - 1, line, sizeof line);
    pthread_mutex_lock(&lock);
    fprintf(stderr, "%s\r%s\033[K", live && live_length >= columns ? "\n" : "", line);
    fflush(stderr);
    live = true;
    live_length = strlen(line);
    pthread_mutex_unlock(&lock);
}

void log_live_end(void) {
    pthread_mutex_lock(&lock);
    if (live)
        fputc('\n', stderr);
    live = false;
    pthread_mutex_unlock(&lock);
}
