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
// As log_warning, but a message that was logged before is not logged again: a file may be read several times.
void log_warning_once(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Appends every message, with a time stamp, to this file until log_close_file, after those that came before
// (up to 8 KiB of them). STATUS_FAILED: cannot be
// opened.
enum status log_open_file(const char *path) MUST_CHECK;
void log_close_file(void);

// Whether standard error is a terminal that can redraw a line: TERM is set and not "dumb".
bool log_is_terminal(void);
// One field of the progress line. A line that is too long loses whole fields, those of the highest rank
// first; the fields left keep their order. Empty text: no field.
struct log_field {
    char text[64];
    int rank; // from 0; several fields may share one, of which the last one goes first
};
// Writes the fields that fit into `columns` to `line`, two blanks between them. Returns `line`.
const char *log_join_fields(const struct log_field *fields, int n, size_t columns, char *line, size_t size);
// Redraws the progress line, as wide as the terminal is at this moment. The next message clears it first.
// No-op when standard error is not a terminal.
void log_live(const struct log_field *fields, int n);
// Keeps the progress line on the screen and starts a new line below it.
void log_live_end(void);

#endif
