// Manual pages from the same tables as the help texts.
#include "cli/help_man.h"

#include <ctype.h>
#include <string.h>

#include "base/text.h"
#include "cli/version.h"

// Text that roff prints as it is: a backslash, a hyphen and, at the start of a line, a dot or a quote mean
// something else to it.
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
                  "0: done. 1: failed. 2: bad input; the message says what, where, and what to do.\n");
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
    text_add(out, ".SH NAME\ntrain \\- train GPT models\n.SH SYNOPSIS\n.B train\n"
                  "CONFIG.json [section.key=value ...]\n.br\n.B train\nCOMMAND ...\n.SH COMMANDS\n");
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

enum status help_print_man(FILE *stream, const struct command_list *list, const struct command *command) {
    struct text page = {0};
    if (command)
        add_command(&page, list, command);
    else
        add_program(&page, list);
    enum status status = text_status(&page);
    if (status == STATUS_OK)
        fwrite(page.data, 1, page.length, stream);
    text_free(&page);
    return status;
}
