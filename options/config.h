// The configuration of a run: read from a JSON file and command-line overrides (read.c), completed and
// checked (rules.c). The struct and all tables of options are generated from schema.def. Printing is in
// print.h, comparing with another configuration in resume.h.
#ifndef ZERO_OPTIONS_CONFIG_H
#define ZERO_OPTIONS_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/file.h"
#include "base/status.h"
#include "base/text.h"

// One enum per set of choices: enum config_device { CONFIG_DEVICE_AUTO, ... }.
#define CHOICES(set)         enum config_##set {
#define WORD(constant, word) constant,
#define END_CHOICES(set)                                                                                     \
    }                                                                                                        \
    ;
#include "options/schema.def"

// The word for a choice in files and on the command line: config_device_name(CONFIG_DEVICE_CPU) is "cpu".
#define END_CHOICES(set) const char *config_##set##_name(enum config_##set choice);
#include "options/schema.def"

// One member per option, in a struct per section: config.model.n_layer. A CHOICE has the type of its enum. A
// STRING is never NULL; the config owns it. PATHS and SOURCES hold the patterns as written, before globbing.
#define CONFIG_AUTO (-1) // the value of an AUTO_INTEGER that is "auto"
struct config_pair {
    double value[2];
};
#define CONFIG_MAX_INTEGERS 64
struct config_integers {
    int n; // 0: none given
    int64_t values[CONFIG_MAX_INTEGERS];
};
#define CONFIG_MAX_SOURCES 256
struct config_source {
    struct file_list files; // at least one path or glob
    double weight;          // 0: none given; then no source of the list has a weight
};
struct config_sources {
    struct config_source *list;
    int n; // 0: no sources given. A path, or a list of paths, is one source without a weight
};
#define CONFIG_MAX_GROUPS 64
struct config_group {
    char **patterns; // (n_patterns) patterns of tensor names, as for fnmatch; at least one
    int n_patterns;
    bool has_lr, has_weight_decay;
    double lr;           // valid if has_lr
    double weight_decay; // valid if has_weight_decay
    bool by_adamw;       // with optimizer.type=muon, adamw updates the tensors of the group
    bool is_frozen;      // the tensors of the group are not trained
};
struct config_groups {
    struct config_group *list; // the first group that matches a tensor applies to it
    int n;
};
#define CONFIG_SCHEDULE_MOST 32
struct config_stage {
    int64_t step, value; // `value` applies after the first `step` steps of the run
};
struct config_stages {
    int n;                                            // 0: no schedule
    struct config_stage stages[CONFIG_SCHEDULE_MOST]; // (n) with ascending steps
};
struct config {
#define SECTION(name, help)                                           struct {
#define SUBSECTION(section, name, help)                               struct {
#define BOOL(section, name, initial, resume, help)                    bool name;
#define INTEGER(section, name, initial, low, high, resume, help)      int64_t name;
#define AUTO_INTEGER(section, name, initial, low, high, resume, help) int64_t name;
#define NUMBER(section, name, initial, low, high, resume, help)       double name;
#define PAIR(section, name, first, second, low, high, resume, help)   struct config_pair name;
#define INTEGERS(section, name, low, high, resume, help)              struct config_integers name;
#define CHOICE(section, name, set, initial, resume, help)             enum config_##set name;
#define STRING(section, name, initial, resume, help)                  char *name;
#define PATHS(section, name, resume, help)                            struct file_list name;
#define SOURCES(section, name, resume, help)                          struct config_sources name;
#define SCHEDULE(section, name, low, high, resume, help)              struct config_stages name;
#define GROUPS(section, name, resume, help)                           struct config_groups name;
#define END_SECTION(name)                                                                                    \
    }                                                                                                        \
    name;
#include "options/schema.def"
    // Set by config_resolve. True if the batch size is given, but neither micro_batch_size nor
    // gradient_accumulation_steps is given as a number. Both then hold the values for a CPU; on a GPU the
    // memory plan replaces them (trainer/plan/micro_batch.h).
    bool micro_batch_is_open;
    // Set by config_resolve. True if train.train_batch_size was "auto". The option then holds the run's
    // initial batch size.
    bool batch_is_auto;
    // Set by config_resolve: the number of logical ranks (zero/partition/logical.h). It is
    // train.logical_ranks or, if that is 0, the number of ranks; config_resume_batch may then change it.
    int64_t logical_ranks;
    // Set by config_resolve: the greatest common divisor of the sequences per logical rank and step, over all
    // batch sizes of the run. The micro-batch size must divide it. With batch_is_auto on one logical rank, it
    // is at most half the initial batch size, so that a step has several micro-batches.
    int64_t rank_sequences;
    // (n_options) whether the file or an override sets the option.
    bool *given;
    // (n_options) whether an override sets the option, or takes away the effect of the file's value.
    bool *overridden;
    char *source; // path of the file, for messages
    // Names of removed options that the file sets to their old defaults (allowed), separated by commas.
    struct text dropped;
    // Options of the file that lost their effect because of an override, with the reason; separated by
    // commas.
    struct text replaced;
};

// Reads the file, then applies the overrides in order: "section.key=value", where the value is JSON or a bare
// word. If an option is overridden several times, the last override wins, so that options can be appended to
// a saved command. Options that are not given get their defaults, which may depend on model.family; nothing
// else is derived. If an override makes options of the file have no effect (optimizer.betas with
// optimizer.type=sgd), these are reset.
// Free with config_free, also after a failure.
// STATUS_INVALID: unknown section or key (the message suggests the nearest), wrong type, out of bounds, not
// one of the choices, or a duplicate key in the file.
enum status config_read(struct config *config, const char *path, int n_overrides,
                        char **overrides) MUST_CHECK;
// Reads a configuration from JSON text, such as the one in a checkpoint's manifest. `source` names the text
// in messages.
enum status config_parse(struct config *config, const char *json, size_t length,
                         const char *source) MUST_CHECK;
// Sets one option from a JSON value, as config_read does for a key of a file. Messages begin with `source`.
struct cJSON;
enum status config_set(struct config *config, const char *source, const char *full_name,
                       const struct cJSON *value) MUST_CHECK;
void config_free(struct config *config);
// Logs config->dropped and config->replaced, one line each, unless empty.
void config_log_dropped(const struct config *config);
void config_sources_free(struct config_sources *sources);
void config_groups_free(struct config_groups *groups);

// Whether the file or an override sets this option ("model.n_layer", "device"). Asserts that the option
// exists.
bool config_given(const struct config *config, const char *name);

// Derives run.dir, if it is empty: runs/NAME for configs/NAME.json. config_resolve does this too; call this
// function to read the run's folder before the config is resolved.
void config_derive_run_folder(struct config *config);

// Derives the options that were not given (batch sizes, seq_len, run.dir), then checks the rules between
// options: consistent batch sizes, n_embd divisible by n_head, seq_len at most n_positions, and so on.
//   world   number of ranks
// STATUS_INVALID: a rule is broken; the message names the options and what to change.
enum status config_resolve(struct config *config, int world) MUST_CHECK;

// The compute type that precision.compute names. Returns false, and leaves *type unchanged, if it is "auto".
bool config_compute_type(const struct config *config, enum dtype *type);

// Sets train.micro_batch_size, which must divide config_rank_sequences, and gradient_accumulation_steps so
// that the batch size stays the same. The config must be resolved.
void config_set_micro_batch(struct config *config, int64_t size);
// For a resumed run: continues with what `before`, the config of its checkpoint, decided, as far as `world`
// ranks can. The config must be resolved.
// The number of logical ranks is kept if train.logical_ranks is 0, and with it the micro-batch size if that
// is open. The batch size is kept if train_batch_size is "auto" and train.min_batch_size is not given, unless
// it is a single micro-batch.
//   logical_ranks   of the checkpoint's run
void config_resume_batch(struct config *config, const struct config *before, int64_t logical_ranks,
                         int world);
// True if `world` ranks can compute the sums of a run with this number of logical ranks.
static inline bool config_ranks_fit(int64_t logical_ranks, int64_t world) {
    return logical_ranks == world || (logical_ranks % world == 0 && (world & (world - 1)) == 0);
}
// The number that the micro-batch size must divide: the sequences per logical rank and step, or
// config->rank_sequences if the batch size changes during the run.
int64_t config_rank_sequences(const struct config *config);
// The largest divisor of `sequences` that is at most `most`; at least 1.
int64_t config_largest_divisor(int64_t sequences, int64_t most);

// The schedule's value after `step` steps; `base` before its first stage.
int64_t config_stages_at(const struct config_stages *schedule, int64_t base, int64_t step);
// The length of the learning rate schedule in steps: scheduler.decay_steps, or train.max_steps if that is 0.
int64_t config_decay_steps(const struct config *config);

// Whether losses are scaled: fp16.loss_scaling, where "auto" depends on precision.compute.
bool config_scales_losses(const struct config *config);

// Checks that comm.backend fits the chosen device. STATUS_INVALID: it is nccl, but the device is the CPU.
enum status config_check_backend(const struct config *config, bool on_gpu) MUST_CHECK;

// Checks that data.train names token shards, which only training needs. STATUS_INVALID: it names none.
enum status config_require_training(const struct config *config) MUST_CHECK;

// The model presets of configs/, embedded at build time, so that the program does not need the files.
struct preset {
    const char *path; // "configs/gpt2-xl.json"
    const char *json; // the content of the file
};
extern const struct preset presets[];
extern const int n_presets;

#endif
