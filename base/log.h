// Log messages and the progress line, on standard error. Messages also go to the run's log file once it is
// open. Thread-safe; a message never splits the progress line. Metrics go through trainer/output/metrics, a
// command's output to stdout.
#ifndef ZERO_BASE_LOG_H
#define ZERO_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum log_level { LOG_QUIET, LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG };

void log_set_level(enum log_level level); // default: LOG_INFO
// Each call appends a newline. log_error prefixes "train: error: ", log_warning "train: warning: ".
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_warning(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Like log_warning, but each distinct message is logged only once, because a file may be read several times.
void log_warning_once(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Appends every message, whatever its level, with a time stamp to this file until log_close_file. Messages
// from before the call come first (up to 8 KiB of them). STATUS_FAILED: the file cannot be opened.
enum status log_open_file(const char *path) MUST_CHECK;
void log_close_file(void);

// Whether standard error is a terminal that can redraw a line: TERM is set and not "dumb".
bool log_is_terminal(void);
// One field of the progress line. If the line is too long, whole fields are dropped, those with the highest
// `rank` first. The others keep their order. A field with an empty text is not shown.
struct log_field {
    char text[64];
    int rank; // 0: dropped last. Among fields with the same rank, the last is dropped first
};
// Writes the fields that fit into `columns` columns to `line` (`size` bytes), separated by two spaces.
// Returns `line`.
const char *log_join_fields(const struct log_field *fields, int n, size_t columns, char *line, size_t size);
// Redraws the progress line at the terminal's current width. The next message clears it first. No-op if
// log_is_terminal is false or the log level is below LOG_INFO.
void log_live(const struct log_field *fields, int n);
// Keeps the progress line on the screen and starts a new line below it.
void log_live_end(void);

#endif
