// Names that are not options, and the messages for them. The rows of foreign.def list option names of other
// trainers with their equivalents here, and this program's removed options, values and commands with their
// replacements.
#ifndef ZERO_OPTIONS_FOREIGN_H
#define ZERO_OPTIONS_FOREIGN_H

#include <stdbool.h>

#include "base/json.h"
#include "base/text.h"

enum foreign_kind {
    FOREIGN_OURS,   // this program has it under another name
    FOREIGN_NONE,   // this program has nothing to set for it
    FOREIGN_ALTERS, // not supported, and it changes what a run computes
};

struct foreign {
    enum foreign_kind kind;
    const char *program; // the programs that have these names: "nanoGPT, Hugging Face"
    const char *names;   // separated by spaces; moe_* matches every name with that prefix
    const char *ours;    // FOREIGN_OURS: "optimizer.lr", "recompute=block", or a section; else NULL
    const char *note;    // FOREIGN_OURS: a remark, or ""; else why there is no such option
};
extern const struct foreign foreigns[];
extern const int n_foreigns;

// Finds the row for an unknown option ("train.max_iters") or section; NULL if there is none. Looks up, in
// this order: the whole name, the sections that contain it from the inner to the outer, its last component.
// Dashes inside the name count as underscores.
const struct foreign *foreign_find(const char *full_name);
// The DeepSpeed row for a path in a DeepSpeed file, or for a section that contains it; NULL if DeepSpeed has
// no such option.
const struct foreign *foreign_find_deepspeed(const char *path);
// Whether the row is for DeepSpeed options.
bool foreign_is_deepspeed(const struct foreign *row);

enum gone_kind { GONE_OPTION, GONE_VALUES, GONE_COMMANDS };
struct gone {
    enum gone_kind kind;
    const char *name;    // "section.key"; GONE_COMMANDS: "checkpoint consolidate", "tokenize --restart"
    const char *was;     // GONE_OPTION: old default as JSON; GONE_VALUES: removed values, separated by spaces
    const char *instead; // what to use instead; follows "was removed; " in messages
};
extern const struct gone gones[];
extern const int n_gones;

// The row of a removed option, or NULL.
const struct gone *gone_option(const char *full_name);
// Whether all options of this section were removed.
bool gone_is_section(const char *name);
// Whether the value is the option's old default.
bool gone_is_default(const struct gone *row, const cJSON *value);
// The replacement for a removed value of an option; NULL if `word` is not a removed value.
const char *gone_word(const char *full_name, const char *word);
// STATUS_INVALID if the arguments begin with a removed command, or have a removed flag of their command.
enum status gone_command(int n_args, char *const *args) MUST_CHECK;

// ---- names that are not an option or section

struct option;

// Fails for a key that is not an option, with the best hint: the section that has the key, the equivalent of
// another trainer's name, or the nearest name.
//   source      where the key is: "c.json:3", "override"
//   full_name   "model.n_layers"
//   value       the key's value, which the hint may depend on; NULL if unknown
enum status unknown_option(const char *source, const char *full_name, const cJSON *value) MUST_CHECK;
// The choice of this option that `word` means in other trainers, or else the closest one; NULL if there is
// none.
const char *unknown_word(const struct option *option, const char *word);
// Like unknown_option, for an object that is not a section.
enum status unknown_section(const char *source, const char *name, const cJSON *value) MUST_CHECK;

#endif
