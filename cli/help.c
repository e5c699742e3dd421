// The help texts and manual pages. Shell completion scripts are in completion.c.
#include "cli/help.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>

#include "base/output.h"
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
    fprintf(stream, "usage: train CONFIG.json [section.key=value ...] [--ranks N]\n       train COMMAND "
                    "...\n\ncommands:\n");
    for (int i = 0; i < list->n; i++)
        fprintf(stream, "  %-14s %s\n", list->commands[i]->name, list->commands[i]->summary);
    fprintf(stream, "\nTrain a first model: scripts/quickstart.sh\n"
                    "Flags and examples of a command: train help COMMAND, or as a manual page: train help "
                    "COMMAND --man | "
                    "man -l -\n"
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

static bool as_man;
const struct arg help_flags[HELP_FLAGS] = {
    {"--man", ARG_FLAG, &as_man, 0, 0, "print a page for man(1)"},
};

// ---- manual pages, written with the macros of man(7) from the same tables as the help texts

// Appends text, escaped so that roff prints it literally: backslashes and hyphens, and a dot or quote at the
// start of a line.
static void add_plain(struct text *out, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if ((i == 0 || bytes[i - 1] == '\n') && (bytes[i] == '.' || bytes[i] == '\''))
            text_add(out, "\\&");
        if (bytes[i] == '\\')
            text_add(out, "\\e");
        else if (bytes[i] == '-')
            text_add(out, "\\-");
        else
            text_add_bytes(out, &bytes[i], 1);
    }
}

static void add_line(struct text *out, const char *line) {
    add_plain(out, line, strlen(line));
    text_add(out, "\n");
}

static void add_title(struct text *out, const char *name) {
    text_add(out, ".TH \"");
    for (const char *c = name; *c; c++)
        text_add(out, "%s%c", *c == '-' ? "\\" : "", toupper((unsigned char)*c));
    text_add(out, "\" 1 \"\" \"zero.c %s\" \"zero.c\"\n", ZERO_VERSION);
}

static void add_flags(struct text *out, const struct command *command) {
    if (command->n_flags == 0)
        return;
    text_add(out, ".SH OPTIONS\n");
    for (int i = 0; i < command->n_flags; i++) {
        text_add(out, ".TP\n.B ");
        add_plain(out, command->flags[i].name, strlen(command->flags[i].name));
        text_add(out, " \\fI%s\\fR\n", args_placeholder(&command->flags[i]));
        add_line(out, command->flags[i].help);
    }
}

static void add_examples(struct text *out, const char *examples) {
    if (!examples)
        return;
    text_add(out, ".SH EXAMPLES\n");
    bool is_title = true;
    for (const char *line = examples; *line; is_title = !is_title) {
        const size_t length = strcspn(line, "\n");
        text_add(out, !is_title ? ".PP\n.RS\n.nf\n" : line > examples ? ".PP\n" : "");
        add_plain(out, line, length);
        text_add(out, is_title ? "\n" : "\n.fi\n.RE\n");
        line += length + (line[length] == '\n');
    }
}

static void add_exit_status(struct text *out) {
    text_add(out, ".SH EXIT STATUS\n"
                  "0: done. 1: failed. 2: bad input; the message says what, where, and what to do. "
                  "128 + N: ended by signal N before its work was done (130: Ctrl\\-C).\n");
}

static void add_command(struct text *out, const struct command_list *list, const struct command *command) {
    char name[64];
    snprintf(name, sizeof name, "train-%s", command->name);
    add_title(out, name);
    text_add(out, ".SH NAME\n");
    add_plain(out, name, strlen(name));
    text_add(out, " \\- ");
    add_line(out, command->summary);
    text_add(out, ".SH SYNOPSIS\n.B train ");
    add_line(out, command == list->initial ? "" : command->name);
    add_line(out, command->synopsis);
    if (command->details) {
        text_add(out, ".SH DESCRIPTION\n");
        add_line(out, command->details);
    }
    add_flags(out, command);
    add_examples(out, command->examples);
    add_exit_status(out);
    text_add(out, ".SH SEE ALSO\n.BR train (1)\n");
}

static void add_program(struct text *out, const struct command_list *list) {
    add_title(out, "train");
    text_add(
        out,
        ".SH NAME\ntrain \\- train GPT models\n.SH SYNOPSIS\n.B train\n"
        "CONFIG.json [section.key=value ...] [\\-\\-ranks N]\n.br\n.B train\nCOMMAND ...\n.SH COMMANDS\n");
    for (int i = 0; i < list->n; i++) {
        text_add(out, ".TP\n.BR train\\-");
        add_plain(out, list->commands[i]->name, strlen(list->commands[i]->name));
        text_add(out, " (1)\n");
        add_line(out, list->commands[i]->summary);
    }
    text_add(out, ".SH CONFIGURATION\n"
                  "A configuration is one JSON object; \\fBtrain options\\fR lists every option.\n");
    add_exit_status(out);
}

// ---- the command

enum status help_run(const struct command_list *list, int n_args, char **args) {
    const char *name;
    int n_names;
    TRY(args_parse("help", help_flags, HELP_FLAGS, n_args, args, &name, 1, &n_names));
    const struct command *command = n_names ? help_find(list, name) : NULL;
    if (n_names && !command)
        return help_unknown(list, name);
    if (as_man) {
        struct text page = {0};
        if (command)
            add_command(&page, list, command);
        else
            add_program(&page, list);
        output_text(&page);
    } else if (command)
        print_command(list, command);
    else
        help_print_usage(stdout, list);
    return STATUS_OK;
}
