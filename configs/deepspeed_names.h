// Internal to the translation of DeepSpeed files: which names DeepSpeed has, and which name a misspelled one
// is near.
#ifndef ZERO_CONFIGS_DEEPSPEED_NAMES_H
#define ZERO_CONFIGS_DEEPSPEED_NAMES_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "base/text.h"
#include "configs/option.h"

// Whether DeepSpeed has options inside this section, such as "zero_optimization".
bool deepspeed_is_section(const char *path);
// Our option of the same name and meaning, such as zero_optimization.stage; NULL if there is none.
const struct option *deepspeed_same_option(const char *path);
// Whether a file is a configuration of this program: it has a key that only this program has, and none
// outside all sections that only DeepSpeed has.
bool deepspeed_is_ours(const cJSON *root);
// Whether the value is one of the words of our option, such as "cosine" of scheduler.type.
bool deepspeed_is_our_word(const struct option *option, const cJSON *value);
// Appends what an unknown name may mean, "; did you mean train_batch_size?", or nothing.
void deepspeed_add_nearest(const char *path, struct text *out);
// Whether a name that has no row of its own, in a section that has one, is probably misspelled.
bool deepspeed_is_misspelled(const char *path);

#endif
