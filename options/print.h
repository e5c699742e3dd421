// Prints a configuration: as JSON, as overrides for a command line, as the options page; names for
// completion.
#ifndef ZERO_OPTIONS_PRINT_H
#define ZERO_OPTIONS_PRINT_H

#include "options/config.h"

// Appends the whole config as JSON: every option, in schema order, indented by two spaces.
void config_print(const struct config *config, struct text *out);
// Appends only the options that are given (config_given), and the sections that have some.
void config_print_given(const struct config *config, struct text *out);
// Appends the overrides that turn `before` into `now`, quoted for a shell: "section.key=value ...".
void config_print_overrides(const struct config *before, const struct config *now, struct text *out);
// Appends the options page: Markdown, one table per section. `./train options` prints it, and
// configs/OPTIONS.md is its output.
void config_print_options(struct text *out);

// Appends a description of train.batch_size_schedule or train.max_batch_size, if one is set: "batch size: 64
// sequences, 128 after step 1000". The config must be resolved.
void config_print_schedule(const struct config *config, struct text *out);

// An option's name and its possible values, for shell completion. Only CHOICE and BOOL options list values.
struct option_words {
    const char *name;
    const char *const *values; // (n)
    int n;
};
// The words of option i = 0, 1, ...; returns false if there is no option i.
bool config_option_words(int i, struct option_words *words);

#endif
