// The progress line of `train eval`, on a terminal.
#ifndef ZERO_CLI_EVAL_PROGRESS_H
#define ZERO_CLI_EVAL_PROGRESS_H

#include <stddef.h>

// Which of several runs is being evaluated: "runs/a (1 of 3)". NULL: only one.
void eval_progress_run(const char *path, int number, int n);
// Redraws the line, at most every half second: "FILE  1200/40168 requests". what: a file or a task.
void eval_progress(const char *what, size_t done, size_t total, const char *unit);
// Ends the line, if there is one.
void eval_progress_end(void);

#endif
