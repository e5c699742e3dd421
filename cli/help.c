// The texts of `train help`. Scripts for shells are in completion.c.
#include "cli/help.h"

#include <stdint.h>
#include <string.h>

#include "base/text.h"
#include "cli/version.h"
#include "options/foreign.h"

const struct command *help_find(const struct command_list *list, const char *name) {
    for (int i = 0; i < list->n; i++)
        if (strcmp(list->commands[i]->name, name) == 0)
            return list->commands[i];
    return NULL;
}

enum status help_unknown(const struct command_list *list, const char *name) {
    const char *names[64];
    TRY(gone_command(1, (char *[]){(char *)(uintptr_t)name}));
    int n = list->n < 64 ? list->n : 64;
    for (int i = 0; i < n; i++)
        names[i] = list->commands[i]->name;
    const char *nearest = text_nearest(name, names, n);
    if (nearest)
        return FAIL(STATUS_INVALID, "\"%s\" is neither a configuration file nor a command; did you mean %s?",
                    name, nearest);
    return FAIL(STATUS_INVALID, "\"%s\" is neither a configuration file nor a command; see: train help",
                name);
}

void help_print_usage(FILE *stream, const struct command_list *list) {
    fprintf(stream, "zero.c %s: trains GPT models\n\n", ZERO_VERSION);
    fprintf(stream,
            "usage: train CONFIG.json [section.key=value ...]\n       train COMMAND ...\n\ncommands:\n");
    for (int i = 0; i < list->n; i++)
        fprintf(stream, "  %-14s %s\n", list->commands[i]->name, list->commands[i]->summary);
    fprintf(stream, "\nTrain a first model: scripts/quickstart.sh\n"
                    "Flags and examples of a command: train help COMMAND\n"
                    "Version, libraries and GPU architectures: train --version\n");
}

static void print_examples(const char *examples) {
    bool is_title = true;
    printf("\nexamples:\n");
    for (const char *line = examples; *line; is_title = !is_title) {
        const size_t length = strcspn(line, "\n");
        printf("%s%.*s\n", is_title ? "  " : "      ", (int)length, line);
        line += length + (line[length] == '\n');
    }
}

static void print_command(const struct command_list *list, const struct command *command) {
    const bool initial = command == list->initial;
    printf("usage: train %s%s%s\n\n%s\n", initial ? "" : command->name, initial ? "" : " ", command->synopsis,
           command->summary);
    if (command->details)
        printf("%s\n", command->details);
    if (command->n_flags > 0) {
        printf("\n");
        args_print_help(stdout, command->flags, command->n_flags);
    }
    if (command->examples)
        print_examples(command->examples);
}

// ---- the command

enum status help_run(const struct command_list *list, int n_args, char **args) {
    const char *name;
    int n_names;
    TRY(args_parse("help", NULL, 0, n_args, args, &name, 1, &n_names));
    const struct command *command = n_names ? help_find(list, name) : NULL;
    if (n_names && !command)
        return help_unknown(list, name);
    if (command)
        print_command(list, command);
    else
        help_print_usage(stdout, list);
    return STATUS_OK;
}
