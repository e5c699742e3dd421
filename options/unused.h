// Internal to options/: options that have an effect only with some values of another, by one table. Set where
// they have none, they are refused; what the file sets for a value that the command line replaces is dropped.
// At their defaults they are accepted: a printed config has them all.
#ifndef ZERO_OPTIONS_UNUSED_H
#define ZERO_OPTIONS_UNUSED_H

#include "options/option.h"

// Sets the choices that others decide where they are not given: the rate of schedule-free AdamW is constant,
// and train_batch_size=auto measures the noise scale.
void unused_derive_choices(struct config *config);

// STATUS_INVALID: the option is set without effect.
//   faulty   (n_options) whether an option's value was refused: then what depends on it is not checked. NULL:
//            none was
enum status unused_check(const struct option *option, const struct config *config,
                         const bool *faulty) MUST_CHECK;

// Resets options of the file that have no effect, because an override replaced what they depend on, and names
// them in config->replaced.
//   is_printed   the file is one that the program printed, perhaps an older one that did not refuse them:
//                every option without effect is reset
void unused_drop(struct config *config, const bool *faulty, bool is_printed);

// Resets the option if it is set without effect, and appends the reason: "optimizer.type is sgd".
bool unused_reset(const struct option *option, struct config *config, struct text *why);

// Whether the option has no effect in a run, and what leaves it without is compared when a run is resumed:
// then the option itself need not be.
bool unused_on_resume(const struct option *option, const struct config *config);

#endif
