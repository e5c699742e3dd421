// Internal to the translation of DeepSpeed files: the keys that are still without an answer, and the answers.
#ifndef ZERO_CONFIGS_DEEPSPEED_TRANSLATE_H
#define ZERO_CONFIGS_DEEPSPEED_TRANSLATE_H

#include "configs/deepspeed.h"
#include "configs/faults.h"

struct translator {
    struct deepspeed_translation *out;
    const char *source;   // the file's path, for messages
    cJSON *rest;          // a copy of the file, without the keys that are answered
    cJSON *taken;         // a list of the answered ones, which owns them
    bool has_auto;        // some value is "auto": transformers' Trainer fills it in
    struct faults faults; // why the file is refused, after all of it is read
    enum status status;   // the first failure; later calls do nothing
};

// Ends the translation after a failure to allocate: good is false.
void deepspeed_check(struct translator *t, bool good);
// Removes the item at a path, "fp16.enabled", from `rest` and returns it; NULL if it is not there.
const cJSON *deepspeed_take(struct translator *t, const char *path);
// Whether the value is the string "auto".
bool deepspeed_is_auto(const cJSON *value);
// Whether an option is switched on: true, a number but 0, 1 and -1, a text other than "none", a section that
// is not disabled.
bool deepspeed_is_on(const cJSON *value);
// Adds a line to the answers: "  PATH VALUE: text". value NULL: the file does not give the option.
void deepspeed_answer(struct translator *t, struct deepspeed_answers *answers, const char *path,
                      const cJSON *value, const char *format, ...) __attribute__((format(printf, 5, 6)));

// Records why the file is refused. The translation goes on, so that all reasons are reported at once.
void deepspeed_refuse(struct translator *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Each sets one of our options, and adds a line to the answers that says so.
//   path, value   the key that is translated; value NULL: the file does not give it
//   why           an explanation, or ""
// A value that our option does not take is not set; the answer says what applies instead.
void deepspeed_set(struct translator *t, struct deepspeed_answers *answers, const char *path,
                   const cJSON *value, const char *ours, const cJSON *ours_value, const char *why);
void deepspeed_set_word(struct translator *t, struct deepspeed_answers *answers, const char *path,
                        const cJSON *value, const char *ours, const char *word, const char *why);
void deepspeed_set_number(struct translator *t, struct deepspeed_answers *answers, const char *path,
                          const cJSON *value, const char *ours, double number, const char *why);

// Takes the key at a path. A value is set as it is; "auto" sets the Trainer's default, and a missing key
// DeepSpeed's.
struct deepspeed_number {
    const char *path, *ours;
    double missing;       // DeepSpeed's default; NAN: leave our option alone
    const char *argument; // the Trainer's argument that "auto" stands for
    double automatic;     // its default; NAN: leave our option alone
};
// Returns the value in the file, or NULL.
const cJSON *deepspeed_take_number(struct translator *t, const struct deepspeed_number *number);

#endif
