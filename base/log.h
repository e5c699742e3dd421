// What a person reads: messages to standard error, each also to the run's log file once one is open, and one
// live line that plain messages never tear. Not for metrics (zero/metrics) or a command's own output
// (stdout).
#ifndef ZERO_BASE_LOG_H
#define ZERO_BASE_LOG_H

#include <stdbool.h>

#include "base/status.h"

enum log_level { LOG_QUIET, LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG };

void log_set_level(enum log_level level); // LOG_INFO at the start
// Each adds its own newline. log_error prefixes "train: error: ", log_warning "train: warning: ".
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_warning(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Appends every message to this file too, until log_close_file. STATUS_FAILED when it cannot be opened.
enum status log_open_file(const char *path) MUST_CHECK;
void log_close_file(void);

// Whether standard error is a terminal that can redraw a line (TERM is set and not "dumb").
bool log_is_terminal(void);
// Redraws the live line (terminal only; cut to its width). The next message clears it first.
void log_live(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Ends the live line so that it stays on the screen.
void log_live_end(void);

#endif
