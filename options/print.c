// Prints a configuration as JSON or as overrides for a command line; prints the options page.
#include "options/print.h"

#include <stdio.h>
#include <string.h>

#include "options/option.h"

// ---- JSON

// Whether a section is `name` or one of its subsections. All sections count as inside "top".
static bool is_within(const char *section, const char *name) {
    const size_t length = strlen(name);
    return section_is_top(name) ||
           (strncmp(section, name, length) == 0 && (section[length] == '.' || section[length] == '\0'));
}

// Whether a section or its subsections have an option to print. given: print only options that are given.
static bool has_options(const struct config *config, const char *section, bool given) {
    for (int i = 0; i < n_options; i++)
        if ((!given || config->given[i]) && is_within(options[i].section, section))
            return true;
    return false;
}

// Prints the options of a section, then its subsections.
//   given   print only options that are given
static void print_section(const struct config *config, struct text *out, const char *name, int indent,
                          bool given) {
    size_t length = strlen(name);
    const char *separator = "{";
    for (int i = 0; i < n_options; i++) {
        if (strcmp(options[i].section, name) != 0 || (given && !config->given[i]))
            continue;
        text_add(out, "%s\n%*s\"%s\": ", separator, indent, "", options[i].name);
        option_print(&options[i], config, out);
        separator = ",";
    }
    for (int s = 0; s < section_count(); s++) {
        const char *other = section_name(s), *own = section_own_name(s);
        bool inside = section_is_top(name) ? own == other && !section_is_top(other)
                                           : own == other + length + 1 && memcmp(other, name, length) == 0;
        if (!inside || !has_options(config, other, given))
            continue;
        text_add(out, "%s\n%*s\"%s\": ", separator, indent, "", own);
        print_section(config, out, other, indent + 2, given);
        separator = ",";
    }
    text_add(out, "%s\n%*s}", *separator == '{' ? "{" : "", indent - 2, "");
}

void config_print(const struct config *config, struct text *out) {
    print_section(config, out, "top", 2, false);
    text_add(out, "\n");
}

void config_print_given(const struct config *config, struct text *out) {
    print_section(config, out, "top", 2, true);
    text_add(out, "\n");
}

// ---- overrides

void config_print_overrides(const struct config *before, const struct config *now, struct text *out) {
    struct text was = {0}, is = {0}, word = {0};
    for (int i = 0; i < n_options; i++) {
        const struct option *option = &options[i];
        was.length = is.length = word.length = 0;
        option_print(option, before, &was);
        option_print(option, now, &is);
        if (strcmp(was.data, is.data) == 0)
            continue;
        const char *value = option->type == OPTION_CHOICE   ? option_word(option, now)
                            : option->type == OPTION_STRING ? *(char *const *)option_value(option, now)
                                                            : is.data;
        text_add(&word, "%s=%s", option_full_name(option), value);
        text_add(out, out->length ? " " : "");
        text_add_shell_word(out, word.data);
    }
    text_free(&was);
    text_free(&is);
    text_free(&word);
}

// ---- the options page

static const char *bounds_of(const struct option *option, char *buffer, size_t size) {
    char low[32], high[32];
    switch (option->type) {
    case OPTION_INTEGER:
    case OPTION_AUTO_INTEGER:
    case OPTION_NUMBER:
    case OPTION_PAIR:
    case OPTION_SCHEDULE:
    case OPTION_INTEGERS:
        snprintf(buffer, size, "%s%s to %s", option->type == OPTION_AUTO_INTEGER ? "auto, or " : "",
                 option_number(low, option->minimum), option_number(high, option->maximum));
        break;
    case OPTION_CHOICE:
        return option_choices(option, buffer, size);
    default:
        snprintf(buffer, size, " ");
    }
    return buffer;
}

// The option's default, as the options page shows it.
static const char *default_of(const struct option *option, char *buffer, size_t size) {
    if (option->type != OPTION_CHOICE)
        return option->initial;
    snprintf(buffer, size, "\"%s\"", option->choices[option->chosen]);
    return buffer;
}

void config_print_options(struct text *out) {
    static const char *const types[] = {[OPTION_BOOL] = "true or false",
                                        [OPTION_INTEGER] = "integer",
                                        [OPTION_AUTO_INTEGER] = "integer",
                                        [OPTION_NUMBER] = "number",
                                        [OPTION_PAIR] = "two numbers",
                                        [OPTION_INTEGERS] = "integer, or a list of them",
                                        [OPTION_CHOICE] = "choice",
                                        [OPTION_STRING] = "text",
                                        [OPTION_PATHS] = "paths",
                                        [OPTION_SOURCES] = "paths, or sources",
                                        [OPTION_SCHEDULE] = "list of [step, value]",
                                        [OPTION_GROUPS] = "list of groups"};
    static const char *const resumes[] = {"may change", "may only grow", "with resume_with", "fixed"};
    text_add(
        out,
        "# Options\n\n"
        "Generated from `options/schema.def` by `./train options`.\n\n"
        "- A configuration is one JSON object with an object per section. Every option has a default.\n"
        "- `./train CONFIG.json section.key=value` overrides an option. The value is JSON; a bare word is a "
        "string. The last override of an option wins; in a file a repeated key is an error.\n"
        "- An option that has no effect with the values of others, such as `optimizer.betas` with "
        "`optimizer.type=sgd`, is refused, unless it has its default. If an override takes away the effect "
        "of an option in the file, this option is dropped, and the log says so.\n"
        "- On resume, `fixed` options define the run: a resumed run that changes one is refused. Options "
        "`with resume_with` may change if `checkpoint.resume_with` names them; those that `may only "
        "grow` may then also become smaller.\n");
    for (int s = 0; s < section_count(); s++) {
        bool top = section_is_top(section_name(s));
        if (top)
            text_add(out, "\n## Outside all sections\n\n");
        else
            text_add(out, "\n## %s: %s\n\n", section_name(s), section_help(s));
        text_add(out,
                 "| option | type | default | values | on resume | meaning |\n|---|---|---|---|---|---|\n");
        for (int i = 0; i < n_options; i++) {
            char bounds[256], initial[64];
            if (strcmp(options[i].section, section_name(s)) == 0)
                text_add(out, "| `%s` | %s | `%s` | %s | %s | %s |\n", option_full_name(&options[i]),
                         types[options[i].type], default_of(&options[i], initial, sizeof initial),
                         bounds_of(&options[i], bounds, sizeof bounds), resumes[options[i].resume],
                         options[i].help);
        }
    }
}

// ---- the schedule of batch sizes

void config_print_schedule(const struct config *config, struct text *out) {
    const struct config_stages *sizes = &config->train.batch_size_schedule;
    const long long first = (long long)config_stages_at(sizes, config->train.train_batch_size, 0);
    if (sizes->n > 0) {
        text_add(out, "batch size: %lld sequences", first);
        for (int i = 0; i < sizes->n; i++)
            if (sizes->stages[i].step > 0)
                text_add(out, ", %lld after step %lld", (long long)sizes->stages[i].value,
                         (long long)sizes->stages[i].step);
    } else if (config->train.max_batch_size > config->train.train_batch_size) {
        text_add(out, "batch size: %lld sequences, growing by the gradient noise scale up to %lld", first,
                 (long long)config->train.max_batch_size);
    }
}

// ---- words for shells

bool config_option_words(int i, struct option_words *words) {
    static const char *const switches[] = {"true", "false"};
    if (i >= n_options)
        return false;
    const struct option *option = &options[i];
    const bool is_switch = option->type == OPTION_BOOL, is_choice = option->type == OPTION_CHOICE;
    *words = (struct option_words){.name = option_full_name(option),
                                   .values = is_switch ? switches : option->choices,
                                   .n = is_switch   ? 2
                                        : is_choice ? option->n_choices
                                                    : 0};
    return true;
}
