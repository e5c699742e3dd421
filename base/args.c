// Parses flags by a table of them (struct arg). Every other argument is positional.
#include "base/args.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"

static enum status unknown_flag(const char *command, const struct arg *table, int n_table, const char *flag) {
    const char **names = allocate((size_t)n_table, sizeof *names);
    for (int i = 0; i < n_table; i++)
        names[i] = table[i].name;
    const char *nearest = text_nearest(flag, names, n_table);
    free(names);
    if (nearest)
        return FAIL(STATUS_INVALID, "train %s has no flag %s; did you mean %s? See: train help %s", command,
                    flag, nearest, command);
    return FAIL(STATUS_INVALID, "train %s has no flag %s; see: train help %s", command, flag, command);
}

static enum status parse_number(const char *command, const struct arg *arg, const char *text) {
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    bool whole = arg->type == ARG_INTEGER;
    if (end == text || *end || errno || !isfinite(value) ||
        (whole && (value != floor(value) || fabs(value) > 0x1p53)))
        return FAIL(STATUS_INVALID, "train %s: %s is \"%s\", expected %s", command, arg->name, text,
                    whole ? "an integer" : "a number");
    if (value < arg->minimum || value > arg->maximum)
        return FAIL(STATUS_INVALID, "train %s: %s is %s, expected from %.15g to %.15g", command, arg->name,
                    text, arg->minimum, arg->maximum);
    if (whole)
        *(int64_t *)arg->value = (int64_t)value;
    else
        *(double *)arg->value = value;
    return STATUS_OK;
}

static enum status parse_bytes(const char *command, const struct arg *arg, const char *text) {
    uint64_t bytes;
    char low[32], high[32];
    if (!text_read_bytes(text, &bytes))
        return FAIL(STATUS_INVALID, "train %s: %s is \"%s\", expected a size, such as 24G, 512MiB or 80GB",
                    command, arg->name, text);
    if ((double)bytes < arg->minimum || (double)bytes > arg->maximum)
        return FAIL(STATUS_INVALID, "train %s: %s is %s, expected from %s to %s", command, arg->name, text,
                    text_bytes(low, sizeof low, arg->minimum), text_bytes(high, sizeof high, arg->maximum));
    *(uint64_t *)arg->value = bytes;
    return STATUS_OK;
}

static enum status add_string(const char *command, const struct arg *arg, const char *text) {
    struct arg_strings *strings = arg->value;
    if (strings->n == ARG_MOST_STRINGS)
        return FAIL(STATUS_INVALID, "train %s: %s is given more than %d times", command, arg->name,
                    ARG_MOST_STRINGS);
    strings->strings[strings->n++] = text;
    return STATUS_OK;
}

static const struct arg *find_flag(const struct arg *table, int n_table, const char *name, size_t length) {
    for (int i = 0; i < n_table; i++)
        if (strlen(table[i].name) == length && strncmp(table[i].name, name, length) == 0)
            return &table[i];
    return NULL;
}

// Parses the flag at args[*i]. When the next argument is its value, advances *i.
static enum status parse_flag(const char *command, const struct arg *table, int n_table, int n_args,
                              char **args, int *i) {
    const char *equals = strchr(args[*i], '=');
    size_t length = equals ? (size_t)(equals - args[*i]) : strlen(args[*i]);
    const struct arg *arg = find_flag(table, n_table, args[*i], length);
    if (!arg)
        return unknown_flag(command, table, n_table, args[*i]);
    if (arg->type == ARG_FLAG) {
        if (equals)
            return FAIL(STATUS_INVALID, "train %s: %s takes no value", command, arg->name);
        *(bool *)arg->value = true;
        return STATUS_OK;
    }
    const char *text = equals ? equals + 1 : *i + 1 < n_args ? args[++*i] : NULL;
    if (!text)
        return FAIL(STATUS_INVALID, "train %s: %s needs a value after it", command, arg->name);
    if (arg->type == ARG_BYTES)
        return parse_bytes(command, arg, text);
    if (arg->type == ARG_STRINGS)
        return add_string(command, arg, text);
    if (arg->type != ARG_STRING)
        return parse_number(command, arg, text);
    *(const char **)arg->value = text;
    return STATUS_OK;
}

enum status args_parse(const char *command, const struct arg *table, int n_table, int n_args, char **args,
                       const char **positional, int max_positional, int *n_positional) {
    bool flags = true;
    *n_positional = 0;
    for (int i = 0; i < n_args; i++) {
        if (flags && strcmp(args[i], "--") == 0) {
            flags = false;
        } else if (flags && args[i][0] == '-' && args[i][1] == '-') {
            TRY(parse_flag(command, table, n_table, n_args, args, &i));
        } else {
            if (*n_positional == max_positional)
                return FAIL(STATUS_INVALID, "train %s: unexpected argument \"%s\"; see: train help %s",
                            command, args[i], command);
            positional[(*n_positional)++] = args[i];
        }
    }
    return STATUS_OK;
}

const char *args_placeholder(const struct arg *arg) {
    static const char *const names[] = {[ARG_FLAG] = "",      [ARG_INTEGER] = "N",   [ARG_NUMBER] = "X",
                                        [ARG_BYTES] = "SIZE", [ARG_STRING] = "TEXT", [ARG_STRINGS] = "TEXT"};
    return names[arg->type];
}

void args_print_help(FILE *stream, const struct arg *table, int n_table) {
    for (int i = 0; i < n_table; i++)
        fprintf(stream, "  %s %-*s %s\n", table[i].name, 21 - (int)strlen(table[i].name),
                args_placeholder(&table[i]), table[i].help);
}
