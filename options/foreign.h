// Option names of other trainers, and what they are here; options, values and commands that this program had,
// and what takes their place: the rows of foreign.def. And the messages for names that are no option.
#ifndef ZERO_OPTIONS_FOREIGN_H
#define ZERO_OPTIONS_FOREIGN_H

#include <stdbool.h>

#include "base/json.h"
#include "base/text.h"

enum foreign_kind {
    FOREIGN_OURS,   // we have it under another name
    FOREIGN_NONE,   // nothing to set here
    FOREIGN_ALTERS, // not there, and a run with it computes something else
};

struct foreign {
    enum foreign_kind kind;
    const char *program; // "nanoGPT, Hugging Face"
    const char *names;   // separated by blanks; moe_* is every name that begins so
    const char *ours;    // FOREIGN_OURS: "optimizer.lr", "recompute=block"; a section for a whole section
    const char *note;    // FOREIGN_OURS: an addition, or ""; else why there is none
};
extern const struct foreign foreigns[];
extern const int n_foreigns;

// The row for an unknown option, "train.max_iters", or section; NULL if it is no known name. It is the first
// that has the whole name, else a section that contains it, else its last component.
// Dashes inside the name count as underscores.
const struct foreign *foreign_find(const char *full_name);
// The row of DeepSpeed's for a path in its file, or for a section that contains it; NULL if it is none of its
// options.
const struct foreign *foreign_find_deepspeed(const char *path);
// Whether the row is DeepSpeed's.
bool foreign_is_deepspeed(const struct foreign *row);

enum gone_kind { GONE_OPTION, GONE_VALUES, GONE_COMMANDS };
struct gone {
    enum gone_kind kind;
    const char *name;    // "section.key"; a command's words
    const char *was;     // of an option: its default as JSON; of values: these, separated by blanks
    const char *instead; // follows "... is not there any more; "
};
extern const struct gone gones[];
extern const int n_gones;

// The row of an option that is gone, or NULL.
const struct gone *gone_option(const char *full_name);
// Whether no option is left of the section, but some are gone.
bool gone_is_section(const char *name);
// Whether the value is the option's old default.
bool gone_is_default(const struct gone *row, const cJSON *value);
// What takes the place of an option's value that is gone; NULL if this one never was one.
const char *gone_word(const char *full_name, const char *word);
// STATUS_INVALID if the first argument, or the first two, are a command that is gone.
enum status gone_command(int n_args, char *const *args) MUST_CHECK;

// ---- names that are no option or section

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
