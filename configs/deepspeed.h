// Translates a DeepSpeed configuration into one of this program. Every key of the file gets an answer: what
// it became, that there is nothing to set, or that there is no such thing here. Values are chosen so that the
// run computes what DeepSpeed's would: where the file leaves an option out, DeepSpeed's default is written,
// unless it is ours too. Sources: DeepSpeed's "DeepSpeed Configuration JSON", runtime/lr_schedules.py and
// ops/adam (0.19); transformers' integrations/deepspeed.py and TrainingArguments (4.57) for "auto".
#ifndef ZERO_CONFIGS_DEEPSPEED_H
#define ZERO_CONFIGS_DEEPSPEED_H

#include <cjson/cJSON.h>

#include "configs/config.h"

// Each text has one line per key, indented by two spaces and ended by a newline. n: its number of lines.
struct deepspeed_answers {
    struct text lines;
    int n;
};
struct deepspeed_translation {
    struct config config;                // the translated options are given, the others have their defaults
    struct deepspeed_answers translated; // became an option
    struct deepspeed_answers replaced;   // became something else, with the same results
    struct deepspeed_answers alters;     // not there, and changes what a run computes
    struct deepspeed_answers chosen; // decided by the Trainer, a script or DeepSpeed's version: to be checked
    struct deepspeed_answers needless; // nothing to set, or not there, with the same results
    struct deepspeed_answers unknown;  // none of DeepSpeed's documented options
    struct deepspeed_answers off;      // switched off there
};

// source: the file's path, for messages. Free with deepspeed_free, also after a failure.
// STATUS_INVALID: no object, a configuration of this program, not one key of it is DeepSpeed's, or options
// that contradict each other, which DeepSpeed refuses too.
enum status deepspeed_translate(const cJSON *root, const char *source,
                                struct deepspeed_translation *out) MUST_CHECK;
void deepspeed_free(struct deepspeed_translation *translation);

#endif
