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
    // Returns whether the file at `path` is of the kind that the command writes. NULL: no file is.
    bool (*is_kind)(const char *path);
    const char *kind;    // that kind in messages: "a report"
    const char *instead; // advice in the message; NULL: to choose another --out, or add --force
    bool force;          // --force: overwrite any file
};

// Checks that the file at `path` may be replaced. It may if one of these holds:
// - it does not exist;
// - `force` is set;
// - it is not an input, and it is empty or of the kind that the command writes (is_kind).
// STATUS_INVALID: none holds, or `path` is a folder, FIFO, socket or device. The message names the path.
enum status overwrite_check(const struct overwrite *overwrite, const char *path) MUST_CHECK;

// Whether the first 4096 bytes of a file contain `words`, to recognize its kind.
bool overwrite_has_words(const char *path, const char *words);

#endif
