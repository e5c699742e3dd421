// One mutex keeps lines whole: the loader's thread may warn while the trainer draws the progress line.
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/status.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static enum log_level shown = LOG_INFO;
static FILE *log_file;
static bool live; // the progress line is on the terminal

void log_set_level(enum log_level level) {
    shown = level;
}

static void erase_live(void) {
    if (live)
        fputs("\r\033[K", stderr);
    live = false;
}

static void add_message(enum log_level level, const char *prefix, const char *format, va_list arguments) {
    char message[STATUS_MESSAGE_BYTES];
    vsnprintf(message, sizeof message, format, arguments);
    pthread_mutex_lock(&lock);
    if (level <= shown) {
        erase_live();
        fprintf(stderr, "%s%s\n", prefix, message);
    }
    if (log_file) {
        char stamp[32];
        time_t now = time(NULL);
        struct tm local;
        strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &local));
        fprintf(log_file, "%s %s%s\n", stamp, prefix, message);
        fflush(log_file);
    }
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

enum status log_open_file(const char *path) {
    log_close_file();
    FILE *file;
    TRY(file_append_open(path, &file));
    pthread_mutex_lock(&lock);
    log_file = file;
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

void log_live(const char *format, ...) {
    if (shown < LOG_INFO || !log_is_terminal())
        return;
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    size_t columns = terminal_columns();
    if (strlen(line) >= columns) // a wrapped line cannot be redrawn
        line[columns - 1] = '\0';
    pthread_mutex_lock(&lock);
    fprintf(stderr, "\r%s\033[K", line);
    fflush(stderr);
    live = true;
    pthread_mutex_unlock(&lock);
}

void log_live_end(void) {
    pthread_mutex_lock(&lock);
    if (live)
        fputc('\n', stderr);
    live = false;
    pthread_mutex_unlock(&lock);
}
