// Protects users' files from being overwritten. Without --force, a command never replaces one of its inputs,
// nor a file of another kind than it writes.
#ifndef ZERO_BASE_OVERWRITE_H
#define ZERO_BASE_OVERWRITE_H

#include <stdbool.h>

#include "base/status.h"

struct overwrite {
    const char *writer;        // "train report", for messages
    const char *const *inputs; // (n_inputs) files that the command reads
    int n_inputs;
    bool (*is_kind)(const char *path); // whether an existing file is of the written kind; NULL: never
    const char *kind;                  // "a report"
    const char *instead;               // what to do; NULL: choose another --out, or --force
    bool force;                        // --force: overwrite any file
};

// Checks that `path` may be written: it is absent, empty, or a file of that kind that is not an input.
// STATUS_INVALID: it may not, or is a folder, FIFO or device. The message names the file and what to do.
enum status overwrite_check(const struct overwrite *overwrite, const char *path) MUST_CHECK;

// Whether the start of a file contains `words`, to recognize its kind.
bool overwrite_has_words(const char *path, const char *words);

#endif
