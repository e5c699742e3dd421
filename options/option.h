// The options of schema.def as a table.
#ifndef ZERO_OPTIONS_OPTION_H
#define ZERO_OPTIONS_OPTION_H

#include "options/config.h"

enum option_type {
    OPTION_BOOL,
    OPTION_INTEGER,
    OPTION_AUTO_INTEGER,
    OPTION_NUMBER,
    OPTION_PAIR,
    OPTION_INTEGERS,
    OPTION_CHOICE,
    OPTION_STRING,
    OPTION_PATHS,
    OPTION_SOURCES,
    OPTION_SCHEDULE,
    OPTION_GROUPS
};
// Whether a resumed run may change an option. FREE: yes. RAISE: to a larger value, or if
// checkpoint.resume_with names it. NAMED: if checkpoint.resume_with names it. FIXED: no.
enum option_resume { FREE, RAISE, NAMED, FIXED };

struct option {
    const char *section;          // "model", "zero_optimization.offload_param"; "top" outside all sections
    const char *name, *qualified; // "n_layer", "model.n_layer"; for device: "device", "top.device"
    enum option_type type;
    size_t offset; // of the member in struct config
    double minimum, maximum;
    const char *initial;        // the default as written in schema.def; NULL for a CHOICE
    const char *const *choices; // (n_choices) words of a CHOICE, indexed by its enum
    int n_choices, chosen;      // the default is choices[chosen]
    enum option_resume resume;
    const char *help;
};

#define MAX_OPTIONS 256

extern const struct option options[];
extern const int n_options;
// Sections are numbered as in schema.def. "top", for the options outside all sections, is one of them.
int section_count(void);
const char *section_name(int i);     // "zero_optimization", "zero_optimization.offload_param"
const char *section_own_name(int i); // the last component: "offload_param"
const char *section_help(int i);
bool section_is_top(const char *name);
// Whether there is a section, other than "top", with this name of `length` bytes.
bool section_exists(const char *name, size_t length);

// The name that users write: "model.n_layer", "device".
const char *option_full_name(const struct option *option);
const struct option *option_find(const char *full_name); // NULL when there is none
// The option's member of `config`, of the type that config.h gives it.
void *option_value(const struct option *option, const struct config *config);
// Whether the file or an override sets the option, which must exist.
bool option_given(const char *full_name, const struct config *config);
// The first option of a section. The section must have options of its own, not only subsections.
const struct option *option_first_of(const char *section);
// Sets the option to its default in schema.def.
void option_reset(const struct option *option, struct config *config);
// Whether the option has its default in schema.def.
bool option_is_default(const struct option *option, const struct config *config);
// Formats a value or a bound, if possible without an exponent: 1000000, not 1e+06. buffer: 32 bytes.
const char *option_number(char *buffer, double value);
// The word that a CHOICE is set to.
const char *option_word(const struct option *option, const struct config *config);
// The words of a CHOICE: "auto, cpu, cuda". Returns buffer.
const char *option_choices(const struct option *option, char *buffer, size_t size);
// Sets a CHOICE to choices[i].
void option_choose(const struct option *option, struct config *config, int i);
// Reads the option's value from JSON. Messages begin with `source`. STATUS_INVALID: the message names the
// option, and the element if it is a list. After that, only config_free may use the option's value.
enum status option_read(const struct option *option, const char *source, const struct cJSON *value,
                        struct config *config) MUST_CHECK;
// Describes a JSON value for messages: "the string \"a\"", "a list". Returns buffer.
const char *option_what_is(const struct cJSON *value, char *buffer, size_t size);
// Appends the option's value as JSON.
void option_print(const struct option *option, const struct config *config, struct text *out);

#endif
