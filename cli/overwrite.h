// Guards the files of users against commands that write: no command replaces its input, nor a file of another
// kind than it writes, without --force.
#ifndef ZERO_CLI_OVERWRITE_H
#define ZERO_CLI_OVERWRITE_H

#include <stdbool.h>

#include "base/status.h"

struct overwrite {
    const char *command;       // "tokenizer train", for messages
    const char *const *inputs; // (n_inputs) files that the command reads
    int n_inputs;
    const char *kind;                  // what it writes: "a tokenizer"
    bool (*is_kind)(const char *path); // whether an existing file is one
};

// Checks that `path` may be written: it is absent or empty, or a file of that kind and no input.
// STATUS_INVALID names the file and says what to do.
enum status overwrite_check(const struct overwrite *overwrite, const char *path) MUST_CHECK;

#endif
