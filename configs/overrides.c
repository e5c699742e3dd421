// From two configurations to the words of a command line that make the one into the other.
#include <string.h>

#include "configs/option.h"

void config_print_overrides(const struct config *before, const struct config *now, struct text *out) {
    struct text was = {0}, is = {0}, word = {0};
    for (int i = 0; i < n_options; i++) {
        const struct option *option = &options[i];
        was.length = is.length = word.length = 0;
        option_print(option, before, &was);
        option_print(option, now, &is);
        if (was.failed || is.failed) {
            out->failed = true;
            break;
        }
        if (strcmp(was.data, is.data) == 0)
            continue;
        const char *value = option->type == OPTION_CHOICE   ? option_word(option, now)
                            : option->type == OPTION_STRING ? *(char *const *)option_value(option, now)
                                                            : is.data;
        text_add(&word, "%s=%s", option_full_name(option), value);
        if (word.failed) {
            out->failed = true;
            break;
        }
        text_add(out, out->length ? " " : "");
        text_add_shell_word(out, word.data);
    }
    text_free(&was);
    text_free(&is);
    text_free(&word);
}
