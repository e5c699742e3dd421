// Translates a DeepSpeed configuration into one of this program. Every key of the file gets an answer: what
// it became, that nothing needs to be set, or that this program has no such feature. The translated run
// computes the same as DeepSpeed's run. So options missing in the file are set to DeepSpeed's defaults where
// ours differ. Sources: DeepSpeed's "DeepSpeed Configuration JSON", runtime/lr_schedules.py and ops/adam
// (0.19); transformers' integrations/deepspeed.py and TrainingArguments (4.57) for "auto".
#ifndef ZERO_OPTIONS_DEEPSPEED_H
#define ZERO_OPTIONS_DEEPSPEED_H

#include <cjson/cJSON.h>

#include "options/config.h"

enum deepspeed_kind {
    TRANSLATED, // became an option of this program
    REPLACED,   // not supported here, but replaced by another setting with the same results
    CHOSEN,     // decided by the Trainer, a script or DeepSpeed's version; the user should check it
    ALTERING,   // not supported here, and changes what a run computes
    NEEDLESS,   // nothing to set, or not supported here but without influence on results
    OFF,        // switched off in the file
    UNKNOWN,    // none of DeepSpeed's documented options
    DEEPSPEED_KINDS
};
struct deepspeed_translation {
    struct config config; // translated options are set and given (config_given); others have their defaults
    struct {
        struct text lines; // one per key, indented by two spaces and ended by a newline
        int n;
    } answers[DEEPSPEED_KINDS];
};

// Translates the parsed file `root`. `source` is its path, for messages. Free with deepspeed_free, also after
// a failure.
// STATUS_INVALID: the file is not an object, is a configuration of this program, has no DeepSpeed key, or has
// options that contradict each other (DeepSpeed refuses these too).
enum status deepspeed_translate(const cJSON *root, const char *source,
                                struct deepspeed_translation *out) MUST_CHECK;
void deepspeed_free(struct deepspeed_translation *translation);

#endif
