// The configuration of a run: read from JSON and overrides, checked, printed. Everything comes from
// schema.def.
#ifndef ZERO_CONFIGS_CONFIG_H
#define ZERO_CONFIGS_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/file.h"
#include "base/status.h"
#include "base/text.h"

// The choices of options that take one word of a few: enum config_device {CONFIG_DEVICE_AUTO, ...}.
#define CHOICES(set)         enum config_##set {
#define WORD(constant, word) constant,
#define END_CHOICES(set)                                                                                     \
    }                                                                                                        \
    ;
#include "configs/schema.def"

// The word of a choice, as files and the command line write it: config_device_name(CONFIG_DEVICE_CPU) is
// "cpu".
#define END_CHOICES(set) const char *config_##set##_name(enum config_##set choice);
#include "configs/schema.def"

// One member per option, in a struct per section: config.model.n_layer. CHOICE is the enum of its set. STRING
// is owned by the config, never NULL. PATHS is the list as written, not yet globbed.
struct config_pair {
    double value[2];
};
struct config {
#define SECTION(name, help)                                         struct {
#define SUBSECTION(section, name, help)                             struct {
#define BOOL(section, name, initial, resume, help)                  bool name;
#define INTEGER(section, name, initial, low, high, resume, help)    int64_t name;
#define NUMBER(section, name, initial, low, high, resume, help)     double name;
#define PAIR(section, name, first, second, low, high, resume, help) struct config_pair name;
#define CHOICE(section, name, set, initial, resume, help)           enum config_##set name;
#define STRING(section, name, initial, resume, help)                char *name;
#define PATHS(section, name, resume, help)                          struct file_list name;
#define END_SECTION(name)                                                                                    \
    }                                                                                                        \
    name;
#include "configs/schema.def"
    bool *given;  // (number of options) whether file or override named it
    char *source; // path of the file
};

// Reads the file, then the overrides ("section.key=value", value JSON or a bare word), each named in
// messages. STATUS_INVALID: unknown section or key (with the nearest), wrong type, out of bounds, not one of
// the choices, a key given twice. Nothing is derived yet. Free with config_free, also after a failure.
enum status config_read(struct config *config, const char *path, int n_overrides,
                        char **overrides) MUST_CHECK;
// The same from a JSON text (a checkpoint's manifest).
enum status config_parse(struct config *config, const char *json, size_t length,
                         const char *source) MUST_CHECK;
void config_free(struct config *config);

// Whether the option at this full name ("model.n_layer"; "device") was given explicitly. The name must exist
// (asserted).
bool config_given(const struct config *config, const char *name);

// Derives what was left to derive (batch sizes, seq_len, run.dir) and checks rules across fields: batch sizes
// that disagree, n_embd % n_head, seq_len beyond n_positions, warm-up beyond max_steps, and so on. world:
// ranks.
enum status config_resolve(struct config *config, int world) MUST_CHECK;

// Adds the whole config as JSON (indented by two spaces, schema order, every option).
void config_print(const struct config *config, struct text *out);
// Adds the words of a command line that make `before` into `now`: "section.key=value ...", for what differs.
void config_print_overrides(const struct config *before, const struct config *now, struct text *out);
// Adds the options page: Markdown, a table a section. `./train options` prints it; configs/OPTIONS.md is it.
void config_print_options(struct text *out);

// The compute type that precision.compute names; false where it is auto, and *type is untouched.
bool config_compute_type(const struct config *config, enum dtype *type);

// Whether losses are scaled: what fp16.loss_scaling says or, where that is auto, comes to.
bool config_scales_losses(const struct config *config);

// Further, what only training needs: data.train is named.
enum status config_require_training(const struct config *config) MUST_CHECK;

// Refuses a config that differs from rank 0's, naming the first option that does. run.threads may differ, as
// machines do.
enum status config_check_same(const struct config *mine, const struct config *of_rank_0) MUST_CHECK;

// Refuses by name what schema.def calls FIXED and differs, and RAISE that shrank. `before` is the resumed
// run's, and `compute` the type that its precision.compute came to.
enum status config_check_resume(const struct config *before, enum dtype compute,
                                const struct config *now) MUST_CHECK;

#endif
