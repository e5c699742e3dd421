// Translates a DeepSpeed configuration into one of this program. Every key of the file gets an answer: what
// it became, that there is nothing to set, or that there is no such thing here. Values are chosen so that the
// run computes what DeepSpeed's would: where the file leaves an option out, DeepSpeed's default is written,
// unless it is ours too. Sources: DeepSpeed's "DeepSpeed Configuration JSON", runtime/lr_schedules.py and
// ops/adam (0.19); transformers' integrations/deepspeed.py and TrainingArguments (4.57) for "auto".
#ifndef ZERO_OPTIONS_DEEPSPEED_H
#define ZERO_OPTIONS_DEEPSPEED_H

#include <cjson/cJSON.h>

#include "options/config.h"

enum deepspeed_kind {
    TRANSLATED, // became an option
    REPLACED,   // became something else, with the same results
    CHOSEN,     // decided by the Trainer, a script or DeepSpeed's version: to be checked
    ALTERING,   // not there, and changes what a run computes
    NEEDLESS,   // nothing to set, or not there, with the same results
    OFF,        // switched off there
    UNKNOWN,    // none of DeepSpeed's documented options
    DEEPSPEED_KINDS
};
struct deepspeed_translation {
    struct config config; // the translated options are given, the others have their defaults
    struct {
        struct text lines; // one per key, indented by two spaces and ended by a newline
        int n;
    } answers[DEEPSPEED_KINDS];
};

// source: the file's path, for messages. Free with deepspeed_free, also after a failure.
// STATUS_INVALID: no object, a configuration of this program, not one key of it is DeepSpeed's, or options
// that contradict each other, which DeepSpeed refuses too.
enum status deepspeed_translate(const cJSON *root, const char *source,
                                struct deepspeed_translation *out) MUST_CHECK;
void deepspeed_free(struct deepspeed_translation *translation);

#endif
