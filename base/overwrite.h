// Guards the files of users against what writes: nothing replaces its input, nor a file of another kind than
// it writes, without --force.
#ifndef ZERO_BASE_OVERWRITE_H
#define ZERO_BASE_OVERWRITE_H

#include <stdbool.h>

#include "base/status.h"

struct overwrite {
    const char *writer;        // "train report", for messages
    const char *const *inputs; // (n_inputs) files that it reads
    int n_inputs;
    bool (*is_kind)(const char *path); // of an existing file: is it what is written? NULL: it never is
    const char *kind;                  // "a report"
    const char *instead;               // what to do; NULL: choose another --out, or --force
    bool force;                        // --force: any file
};

// Checks that `path` may be written: it is absent or empty, or a file of that kind and no input.
// STATUS_INVALID names the file and says what to do; also for a folder, a FIFO and a device.
enum status overwrite_check(const struct overwrite *overwrite, const char *path) MUST_CHECK;

// Whether the start of a file contains these words, by which kinds of files can be told.
bool overwrite_has_words(const char *path, const char *words);

#endif
