// Messages for names that are no option or section.
#ifndef ZERO_OPTIONS_UNKNOWN_H
#define ZERO_OPTIONS_UNKNOWN_H

#include "base/json.h"

struct option;

// Fails for a key that is no option, with the best hint: the key's section, what another trainer's name is
// here, or the nearest name.
//   source      where it is: "c.json:3", "override"
//   full_name   "model.n_layers"
//   value       what it is set to, which the hint may depend on; NULL when unknown
enum status unknown_option(const char *source, const char *full_name, const cJSON *value) MUST_CHECK;
// The choice that `word` stands for in other trainers, or that it is closest to; NULL when there is none.
const char *unknown_word(const struct option *option, const char *word);
// The same as unknown_option for an object that is no section.
enum status unknown_section(const char *source, const char *name, const cJSON *value) MUST_CHECK;

#endif
