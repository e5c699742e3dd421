// Prints a configuration as JSON or as overrides for a command line, prints the options page, and lists
// options for shell completion.
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

// Describes the batch sizes of a run if they change (train.batch_size_schedule, train.max_batch_size): "batch
// size: 64 sequences, 128 after step 1000". Appends nothing otherwise. The config must be resolved.
void config_print_schedule(const struct config *config, struct text *out);

// An option's name and its possible values, for shell completion. Only CHOICE and BOOL options list values.
struct option_words {
    const char *name;
    const char *const *values; // (n); NULL if n is 0
    int n;
};
// Sets *words to those of option i, counted from 0. Returns false if there is no option i.
bool config_option_words(int i, struct option_words *words);

#endif
