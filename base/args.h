// Command-line flags of the subcommands. One table per command drives parsing, bounds checks, suggestions for
// misspelled names, and the help text.
#ifndef ZERO_BASE_ARGS_H
#define ZERO_BASE_ARGS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

enum arg_type { ARG_FLAG, ARG_INTEGER, ARG_NUMBER, ARG_BYTES, ARG_STRING, ARG_STRINGS };

#define ARG_MOST_STRINGS 16
struct arg_strings { // the values of a flag that may be given several times
    const char *strings[ARG_MOST_STRINGS];
    int n;
};

struct arg {
    const char *name; // "--tokens"
    enum arg_type type;
    // Points to the variable that holds the default and receives the value. The variable's type, for each
    // arg_type in order: bool, int64_t, double, uint64_t, const char *, struct arg_strings (initially empty).
    void *value;
    double minimum, maximum; // inclusive; only for ARG_INTEGER, ARG_NUMBER and ARG_BYTES
    const char *help;
};

struct command {
    const char *name;        // "generate"
    const char *synopsis;    // "RUN_OR_CHECKPOINT [--prompt TEXT] ..."
    const char *summary;     // one line of help
    const char *details;     // further lines of help, or NULL
    const char *examples;    // pairs of lines, each a title and a command line; or NULL
    const struct arg *flags; // for the help text and shell completion; NULL for none
    int n_flags;
    enum status (*run)(int n_args, char **args); // args: those after the command's name
};

// Parses flags ("--name value" or "--name=value") and sets the variables of `table`. The other arguments go
// to `positional` in order; after "--" all arguments do.
//   n_positional   [out] number of positional arguments
// STATUS_INVALID: unknown flag, bad value, or more than max_positional positional arguments. The message
// names `command` and the flag or argument.
enum status args_parse(const char *command, const struct arg *table, int n_table, int n_args, char **args,
                       const char **positional, int max_positional, int *n_positional) MUST_CHECK;
// The placeholder for the value of a flag in help texts: "N", "TEXT"; "" if it takes none.
const char *args_placeholder(const struct arg *arg);
// Prints one line per flag: name, placeholder for its value, help.
void args_print_help(FILE *stream, const struct arg *table, int n_table);

#endif
