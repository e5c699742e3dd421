// Command-line flags of the subcommands, from one table: parsing, bounds, unknown names with the nearest, and
// the help text all come from it.
#ifndef ZERO_BASE_ARGS_H
#define ZERO_BASE_ARGS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

enum arg_type { ARG_FLAG, ARG_INTEGER, ARG_NUMBER, ARG_BYTES, ARG_STRING };

struct arg {
    const char *name; // "--tokens"
    enum arg_type type;
    void *value;             // bool *, int64_t *, double *, uint64_t * or const char **; holds the default
    double minimum, maximum; // for numbers and bytes, inclusive
    const char *help;
};

struct command {
    const char *name;        // "generate"
    const char *synopsis;    // "RUN_OR_CHECKPOINT [--prompt TEXT] ..."
    const char *summary;     // one line
    const char *details;     // further lines of help, or NULL
    const struct arg *flags; // for the help text; NULL for none
    int n_flags;
    enum status (*run)(int n_args, char **args);
};

// Takes flags ("--name value" or "--name=value") out of `args`; what is left (in order) goes to positional,
// at most max_positional of them. "--" ends the flags. STATUS_INVALID names the flag and `command`.
enum status args_parse(const char *command, const struct arg *table, int n_table, int n_args, char **args,
                       const char **positional, int max_positional, int *n_positional) MUST_CHECK;
void args_print_help(FILE *stream, const struct arg *table, int n_table);

#endif
