// Manual pages in the macros of man(7).
#ifndef ZERO_CLI_HELP_MAN_H
#define ZERO_CLI_HELP_MAN_H

#include "cli/help.h"

// Prints train-COMMAND(1), or train(1) where command is NULL.
enum status help_print_man(FILE *stream, const struct command_list *list,
                           const struct command *command) MUST_CHECK;

#endif
