// The configuration of a run: read from a JSON file and command-line overrides, checked, and printed. The
// struct and everything else about an option are generated from schema.def. config.c reads, rules.c derives
// and checks, print.c prints.
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

// One member per option, in a struct per section: config.model.n_layer. A CHOICE is the enum of its set. A
// STRING is never NULL, and owned by the config. PATHS and SOURCES are lists as written, before globbing.
#define CONFIG_AUTO (-1) // an AUTO_INTEGER that is "auto"
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
    double weight;          // 0: none given, in all sources of the list
};
struct config_sources {
    struct config_source *list;
    int n; // 0: nothing named. A path, or a list of paths, is one source without a weight
};
#define CONFIG_MAX_GROUPS 64
struct config_group {
    char **patterns; // (n_patterns) of tensors' names, as for fnmatch; at least one
    int n_patterns;
    bool has_lr, has_weight_decay;
    double lr, weight_decay; // where they are given
    bool by_adamw, is_frozen;
};
struct config_groups {
    struct config_group *list; // the first that matches a tensor applies
    int n;
};
#define CONFIG_SCHEDULE_MOST 32
struct config_stage {
    int64_t step, value; // from `step` steps done on
};
struct config_stages {
    int n;                                            // 0: none
    struct config_stage stages[CONFIG_SCHEDULE_MOST]; // ascending steps
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
    // Set by config_resolve: neither micro_batch_size nor gradient_accumulation_steps is a number, so both
    // are as a CPU takes them, and a GPU's memory plan chooses others (trainer/plan/micro_batch.h).
    bool micro_batch_is_open;
    // Set by config_resolve: train.train_batch_size was "auto". It is then the batch that the run begins
    // with.
    bool batch_is_auto;
    // Set by config_resolve: the greatest common divisor of a rank's sequences of a step, over all batch
    // sizes of the run; with batch_is_auto such that a step has several micro-batches. Micro-batches divide
    // it.
    int64_t rank_sequences;
    bool *given; // (number of options) whether the file or an override sets it
    // (number of options) whether an override sets it, or leaves what the file sets without effect.
    bool *overridden;
    char *source; // path of the file, for messages
    // Options that were read at the default that they had, and are not there any more; with commas.
    struct text dropped;
    // What the file sets for a value that an override replaced, and why it has no effect now; with commas.
    struct text replaced;
};

// Reads the file, then applies the overrides in order: "section.key=value", where the value is JSON or a bare
// word. The last of several for one option wins, so that options can be appended to a saved command. Options
// that are not given get their defaults, which may depend on model.family; nothing else is derived. What the
// file sets for a value that an override replaces, such as optimizer.betas with optimizer.type=sgd, is reset.
// Free with config_free, also after a failure. STATUS_INVALID: unknown section or key (the message suggests
// the nearest), wrong type, out of bounds, not one of the choices, or a duplicate key in the file.
enum status config_read(struct config *config, const char *path, int n_overrides,
                        char **overrides) MUST_CHECK;
// Reads a configuration from JSON text, such as the one in a checkpoint's manifest. `source` names it in
// messages.
enum status config_parse(struct config *config, const char *json, size_t length,
                         const char *source) MUST_CHECK;
// Sets one option from a JSON value, as config_read does for a key of a file. `source` begins the message.
struct cJSON;
enum status config_set(struct config *config, const char *source, const char *full_name,
                       const struct cJSON *value) MUST_CHECK;
void config_free(struct config *config);
// Logs config->dropped and config->replaced, each in a line if it names any.
void config_log_dropped(const struct config *config);
void config_sources_free(struct config_sources *sources);
void config_groups_free(struct config_groups *groups);

// Whether the file or an override sets this option ("model.n_layer", "device"). Asserts that the option
// exists.
bool config_given(const struct config *config, const char *name);

// Derives run.dir, if it is left open: runs/NAME for configs/NAME.json. config_resolve does so too; this is
// for callers that look into the run's folder before.
void config_derive_run_folder(struct config *config);

// Derives the values left open (batch sizes, seq_len, run.dir), then checks the rules between options: batch
// sizes that disagree, n_embd % n_head, seq_len above n_positions, and so on.
//   world   number of ranks
// STATUS_INVALID: a rule is broken; the message names the options and what to change.
enum status config_resolve(struct config *config, int world) MUST_CHECK;

// Appends the whole config as JSON: every option, in schema order, indented by two spaces.
void config_print(const struct config *config, struct text *out);
// Appends only the options that are given (config_given), and the sections that have some.
void config_print_given(const struct config *config, struct text *out);
// Appends the overrides that turn `before` into `now`, quoted for a shell: "section.key=value ...".
void config_print_overrides(const struct config *before, const struct config *now, struct text *out);
// Appends the options page: Markdown, one table per section. `./train options` prints it, and
// configs/OPTIONS.md is a copy of it.
void config_print_options(struct text *out);

// An option's name and the words of its values, for completion: of a choice and of a switch, else none.
struct option_words {
    const char *name;
    const char *const *values; // (n)
    int n;
};
// Those of option i = 0, 1, ...; false when there are no more.
bool config_option_words(int i, struct option_words *words);

// The compute type that precision.compute names. Returns false, and leaves *type alone, when it is auto.
bool config_compute_type(const struct config *config, enum dtype *type);

// Sets train.micro_batch_size, which must divide the rank's sequences of a step, and with it
// gradient_accumulation_steps. The batch stays. Of a resolved config.
void config_set_micro_batch(struct config *config, int64_t size);
// The batch of a run whose train_batch_size is "auto" and which resumes another: it begins with the batch of
// that one, where micro-batches and ranks divide it. Else nothing changes. Of a resolved config.
void config_resume_batch(struct config *config, const struct config *before, int world);
// Appends train.batch_size_schedule or train.max_batch_size where one is set: "batch size: 64 sequences, 128
// after step 1000". Of a resolved config.
void config_print_schedule(const struct config *config, struct text *out);
// A rank's sequences of a step, which micro-batches divide; with train.batch_size_schedule the greatest
// common divisor of those of all batch sizes, and with batch_is_auto of a part of them.
int64_t config_rank_sequences(const struct config *config);
// The largest divisor of `sequences` that is at most `most`, or 1.
int64_t config_largest_divisor(int64_t sequences, int64_t most);

// The value after `step` steps; `base` before the first stage.
int64_t config_stages_at(const struct config_stages *schedule, int64_t base, int64_t step);
// The length of the schedule in steps: scheduler.decay_steps, or train.max_steps where that is 0.
int64_t config_decay_steps(const struct config *config);

// Whether losses are scaled: fp16.loss_scaling, with auto resolved by precision.compute.
bool config_scales_losses(const struct config *config);

// STATUS_INVALID: comm.backend is nccl, and the device that was chosen is the CPU.
enum status config_check_backend(const struct config *config, bool on_gpu) MUST_CHECK;

// Checks what only training needs: data.train names token shards.
enum status config_require_training(const struct config *config) MUST_CHECK;

// Checks that this rank's config equals rank 0's. run.threads may differ, because machines do.
// STATUS_INVALID: the message names the first option that differs.
enum status config_check_same(const struct config *mine, const struct config *of_rank_0) MUST_CHECK;

// What a run decided where its options are "auto".
struct config_decided {
    enum dtype compute;              // precision.compute
    enum config_attention attention; // AUTO: nothing, as the run was on the CPU
};

// Checks a resumed run's config: FIXED options must be equal, RAISE options must not be smaller. NAMED and
// RAISE options that checkpoint.resume_with lists may differ. A size of the model that one of the two leaves
// at 0 is not compared: the checkpoint's model is.
//   before    config of the checkpoint
//   decided   what the run of the checkpoint decided
//   changed   called for each difference that checkpoint.resume_with allows, with both values as JSON
// STATUS_INVALID: the message lists every option that must not change, and the ways out.
typedef enum status config_changed(void *context, const char *option, const char *was, const char *is);
enum status config_check_resume(const struct config *before, const struct config_decided *decided,
                                const struct config *now, config_changed *changed, void *context) MUST_CHECK;

// The presets of models in configs, embedded at build time, so that the program does not need the files.
struct preset {
    const char *path; // "configs/gpt2-xl.json"
    const char *json; // the content of the file
};
extern const struct preset presets[];
extern const int n_presets;

#endif
