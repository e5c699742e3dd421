// Internal to options/: one table of options that have an effect only with certain values of another option.
// Setting such an option where it has no effect is refused. Two exceptions: default values are accepted,
// because a printed config has all options; and a value in the file is dropped if the command line removed
// its effect.
#ifndef ZERO_OPTIONS_UNUSED_H
#define ZERO_OPTIONS_UNUSED_H

#include "options/option.h"

// Sets choices that were not given and follow from other options: schedule-free AdamW uses a constant rate,
// and train_batch_size=auto measures the noise scale.
void unused_derive_choices(struct config *config);

// Checks one option. STATUS_INVALID: it is set, but has no effect.
//   faulty   (n_options) whether an option's value was refused; options that depend on it are not checked.
//            NULL: none was
enum status unused_check(const struct option *option, const struct config *config,
                         const bool *faulty) MUST_CHECK;

// Resets options of the file that have no effect because an override changed the option that they depend on.
// Names them in config->replaced.
//   is_printed   the program printed the file, perhaps an older version that accepted such options;
//                every option without effect is reset then
void unused_drop(struct config *config, const bool *faulty, bool is_printed);

// If the option is set without effect, resets it, appends the reason ("optimizer.type is sgd") to `why` and
// returns true.
bool unused_reset(const struct option *option, struct config *config, struct text *why);

// Whether the option has no effect in this run because of another option that a resume compares. The option
// itself then need not be compared.
bool unused_on_resume(const struct option *option, const struct config *config);

#endif
