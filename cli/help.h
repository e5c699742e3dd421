// Help for people and for shells, made from the commands' own tables: texts, manual pages, and scripts that
// complete words.
#ifndef ZERO_CLI_HELP_H
#define ZERO_CLI_HELP_H

#include <stdio.h>

#include "base/args.h"

// The commands of the program, in the order of its help.
struct command_list {
    const struct command *const *commands;
    int n;
    const struct command *initial; // the command whose name may be left out
};

// The command with this name, or NULL.
const struct command *help_find(const struct command_list *list, const char *name);
// STATUS_INVALID: no command has this name; the message suggests the nearest.
enum status help_unknown(const struct command_list *list, const char *name) MUST_CHECK;

// `train` without arguments: all commands, and where to begin.
void help_print_usage(FILE *stream, const struct command_list *list);
// The flags of `train help`.
#define HELP_FLAGS 1
extern const struct arg help_flags[HELP_FLAGS];
// `train help [COMMAND] [--man]`: the text, or with --man the page for man(1), of a command or of the
// program.
enum status help_run(const struct command_list *list, int n_args, char **args) MUST_CHECK;
// `train completion bash|zsh|fish`: the script that makes this shell complete commands, flags and options.
enum status help_completion(const struct command_list *list, int n_args, char **args) MUST_CHECK;

#endif
