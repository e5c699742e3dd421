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

// The command with this name, or NULL.
const struct command *help_find(const struct command_list *list, const char *name);
// STATUS_INVALID: no command has this name; the message suggests the nearest.
enum status help_unknown(const struct command_list *list, const char *name) MUST_CHECK;

// Prints the text of `train` without arguments: all commands, and where to begin.
void help_print_usage(FILE *stream, const struct command_list *list);
// The flags of `train help`.
#define HELP_FLAGS 1
extern const struct arg help_flags[HELP_FLAGS];
// `train help [COMMAND] [--man]`: prints the help of a command or of the program; with --man as a page for
// man(1).
enum status help_run(const struct command_list *list, int n_args, char **args) MUST_CHECK;
// `train completion bash|zsh|fish`: prints the script that completes commands, flags and options in this
// shell.
enum status help_completion(const struct command_list *list, int n_args, char **args) MUST_CHECK;

#endif
