// Help texts, manual pages and shell completion scripts, generated from the commands' tables.
#ifndef ZERO_CLI_HELP_H
#define ZERO_CLI_HELP_H

#include <stdio.h>

#include "base/args.h"

// The commands of the program, in the order of its help.
struct command_list {
    const struct command *const *commands;
    int n;
    const struct command *initial; // the command that runs if no command name is given
};

// Returns the command with this name, or NULL.
const struct command *help_find(const struct command_list *list, const char *name);
// Always returns STATUS_INVALID. The message says that no command has this name, and suggests a similar one,
// if any.
enum status help_unknown(const struct command_list *list, const char *name) MUST_CHECK;

// Prints the general help, which `train` without arguments prints: all commands, and where to begin.
void help_print_usage(FILE *stream, const struct command_list *list);
// The flags of `train help`.
#define HELP_FLAGS 1
extern const struct arg help_flags[HELP_FLAGS];
// Runs `train help [COMMAND] [--man]`: prints the help of a command or of the program; with --man, as a page
// for man(1).
enum status help_run(const struct command_list *list, int n_args, char **args) MUST_CHECK;
// Runs `train completion bash|zsh|fish`: prints a script for that shell, which completes commands, flags and
// options.
enum status help_completion(const struct command_list *list, int n_args, char **args) MUST_CHECK;

#endif
