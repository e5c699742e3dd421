// From two configurations to the words of a command line that make the one into the other.
#include <string.h>

#include "configs/option.h"

// What a shell would take apart goes in single quotes; none of our values has one.
static void add_word(const struct option *option, const char *value, struct text *out) {
    const char *quote = strpbrk(value, " \t[]{}*?\"'$&|;<>()\\`!~#") || !*value ? "'" : "";
    text_add(out, "%s%s%s=%s%s", out->length ? " " : "", quote, option_full_name(option), value, quote);
}

void config_print_overrides(const struct config *before, const struct config *now, struct text *out) {
    struct text was = {0}, is = {0};
    for (int i = 0; i < n_options; i++) {
        const struct option *option = &options[i];
        was.length = is.length = 0;
        option_print(option, before, &was);
        option_print(option, now, &is);
        if (was.failed || is.failed) {
            out->failed = true;
            break;
        }
        if (strcmp(was.data, is.data) == 0)
            continue;
        bool is_text = option->type == OPTION_CHOICE || option->type == OPTION_STRING;
        add_word(option, is_text ? *(char *const *)option_value(option, now) : is.data, out);
    }
    text_free(&was);
    text_free(&is);
}
