// The translation of a DeepSpeed file. First, each `struct row` takes one key of the file and translates it.
// Then the keys that are left are looked up in foreign.def and among this program's own names.
#include "options/deepspeed.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "options/foreign.h"
#include "options/option.h"
#include "options/rules.h"
#include "options/unused.h"

enum { LONGEST_NAME = 128 };

struct translator {
    struct deepspeed_translation *out;
    const char *source; // the file's path, for messages
    const cJSON *root;  // the whole file
    cJSON *rest;        // a copy of the file, without the keys answered so far
    cJSON *taken;       // the keys answered so far
    const char *path;   // the key that is being read
    const cJSON *value; // the value of that key; NULL: the file does not have the key
    bool has_auto;      // some value is "auto", which transformers' Trainer fills in
    // DeepSpeed's names of the optimizer (or "other") and of the schedule; "" if the file names none.
    const char *types[2];
    // Indices into `modes`: the last mode that is on, and the last one that is on and sets the type of
    // parameters too. -1: none.
    int mode, mode_of_parameters;
    bool has_auto_mode;     // some mode is "auto"
    bool half;              // torch_autocast's type is fp16
    struct file_list names; // the names of DeepSpeed's options and sections
    struct faults faults;   // the reasons to refuse the file, reported once all of it is read
    enum status status;     // the first failure; later calls do nothing
};

// How one key of DeepSpeed's file is translated.
struct row {
    const char *theirs; // the key's path in DeepSpeed's file
    void (*convert)(struct translator *t, const struct row *row);
    const char *ours;      // our option
    const char *otherwise; // the path to read if the file does not have `theirs`, or NULL
    const char *missing;   // our value if the file has none: DeepSpeed's default, as JSON. NULL: none is set
    const char *argument;  // the Trainer's argument that replaces "auto"
    const char *automatic; // our value for "auto": the argument's default, as JSON. NULL: none is set
    const char *sentence;  // a part of the answer; `convert` decides when it is used
    const char *when;      // DeepSpeed's optimizers or schedules for which the row is read; NULL: all
};

// ---- values

static bool is_auto(const cJSON *value) {
    return cJSON_IsString(value) && strcmp(value->valuestring, "auto") == 0;
}

static bool is_text(const cJSON *value, const char *text) {
    return cJSON_IsString(value) && strcasecmp(value->valuestring, text) == 0;
}

// Whether a text is one of the words, which are separated by spaces. Case does not matter.
static bool is_word_of(const char *words, const char *text) {
    for (const char *p = words; p && *p; p += strcspn(p, " "), p += *p == ' ')
        if (strlen(text) == strcspn(p, " ") && strncasecmp(p, text, strlen(text)) == 0)
            return true;
    return false;
}

// Whether pydantic, which reads most of DeepSpeed's sections, accepts the value as true.
static bool is_true(const cJSON *value) {
    return cJSON_IsTrue(value) || (cJSON_IsNumber(value) && value->valuedouble == 1) ||
           (cJSON_IsString(value) && is_word_of("true 1 on yes t y", value->valuestring));
}

static bool is_false(const cJSON *value) {
    return cJSON_IsFalse(value) || (cJSON_IsNumber(value) && value->valuedouble == 0) ||
           (cJSON_IsString(value) && is_word_of("false 0 off no f n", value->valuestring));
}

// Whether Python's `if value` holds: DeepSpeed tests the optimizer's parameters this way.
static bool is_truthy(const cJSON *value) {
    return cJSON_IsNumber(value)   ? value->valuedouble != 0
           : cJSON_IsString(value) ? *value->valuestring != '\0'
                                   : cJSON_IsTrue(value) || (value && value->child);
}

// Whether an option is switched on: a section that is not disabled, or a value other than false, 0, "",
// "none" and "mean" (gradient_allreduce_op's value for what this program always does).
static bool is_on(const cJSON *value) {
    if (cJSON_IsObject(value)) {
        const cJSON *enabled = cJSON_GetObjectItemCaseSensitive(value, "enabled"),
                    *ranks =
                        cJSON_GetObjectItemCaseSensitive(value, "autotp_size"); // member of tensor_parallel
        return enabled ? is_on(enabled) : ranks ? cJSON_GetNumberValue(ranks) > 1 : value->child != NULL;
    }
    return is_truthy(value) && !is_false(value) && !is_text(value, "none") && !is_text(value, "mean");
}

static bool has_auto(const cJSON *node) {
    bool found = is_auto(node);
    const cJSON *item;
    cJSON_ArrayForEach(item, node) found = found || has_auto(item);
    return found;
}

// The item at a path, such as "fp16.enabled"; NULL if there is none.
//   parent   [out] the object that contains it
static cJSON *find(const cJSON *root, const char *path, cJSON **parent) {
    cJSON *item = (cJSON *)(uintptr_t)root;
    for (const char *part = path; item; part += strcspn(part, ".") + 1) {
        char name[LONGEST_NAME];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(part, "."), part);
        *parent = item;
        item = cJSON_GetObjectItemCaseSensitive(item, name);
        if (!strchr(part, '.'))
            break;
    }
    return item;
}

static const cJSON *peek(const struct translator *t, const char *path) {
    cJSON *parent;
    return find(t->root, path, &parent);
}

// Makes `path` the current key and removes it from `rest`. Returns its value; NULL if the file does not have
// it.
static const cJSON *take(struct translator *t, const char *path) {
    cJSON *parent, *item = find(t->rest, path, &parent);
    if (item)
        cJSON_AddItemToArray(t->taken, cJSON_DetachItemViaPointer(parent, item));
    t->path = path;
    t->value = item;
    return item;
}

// ---- answers

// Begins a line for the current key: "  PATH VALUE". The caller adds the rest to the text that is returned.
static struct text *begin(struct translator *t, enum deepspeed_kind kind) {
    enum { LONGEST = 40 };
    struct text *lines = &t->out->answers[kind].lines;
    char *json = cJSON_IsObject(t->value) ? NULL : cJSON_PrintUnformatted(t->value);
    text_add(lines, "  %s%s", t->path, t->value ? "" : " (not given)");
    if (json)
        text_add(lines, strlen(json) > LONGEST ? " %.*s..." : " %.*s", LONGEST, json);
    cJSON_free(json);
    t->out->answers[kind].n++;
    return lines;
}

// Adds a line for the current key: "  PATH VALUE: text".
__attribute__((format(printf, 3, 4))) static void say(struct translator *t, enum deepspeed_kind kind,
                                                      const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    text_add(begin(t, kind), ": %s\n", text);
}

// Records why the file is refused. The translation goes on, so that all reasons are reported at once.
static void refuse(struct translator *t, const char *why) {
    if (t->status == STATUS_OK)
        t->status = faults_take(&t->faults, FAIL(STATUS_INVALID, "%s: %s", t->source, why));
}

// Adds a line for a value that our option does not accept. The line has the reason, from the recorded message
// "PATH: OURS is ..., expected ...", and what applies instead: a value from another key, or the default.
static void say_left_out(struct translator *t, const struct option *option) {
    const char *name = option_full_name(option), *why = status_message() + strlen(t->path) + 2;
    const bool given = t->out->config.given[option - options];
    struct text now = {0};
    option_print(option, &t->out->config, &now);
    if (strstr(name, "batch_size") || strstr(name, "accumulation"))
        say(t, ALTERING, "left out, because %s; %s is derived from the other batch sizes", why, name);
    else
        say(t, ALTERING, "left out, because %s; %s%s=%s%s", why, given ? "" : "the default, ", name, now.data,
            given ? " applies" : ", applies");
    status_clear();
    text_free(&now);
}

// Converts a value as pydantic does for an option of this type: 1 or "true" to true, "2" to 2. Returns a new
// item; NULL if no conversion applies.
static cJSON *coerce(const char *path, const struct option *option, const cJSON *value) {
    const bool in_zero = strncmp(path, "zero_optimization.", 18) == 0;
    if (!in_zero && strncmp(path, "fp16.", 5) != 0)
        return NULL;
    if (option->type == OPTION_BOOL)
        return is_true(value) || is_false(value) ? cJSON_CreateBool(is_true(value)) : NULL;
    if (option->type != OPTION_INTEGER && option->type != OPTION_NUMBER)
        return NULL;
    if (cJSON_IsBool(value)) // in the section fp16, DeepSpeed refuses true and false as numbers
        return in_zero ? cJSON_CreateNumber(cJSON_IsTrue(value)) : NULL;
    double number;
    char rest;
    const char *text = cJSON_GetStringValue(value);
    return text && sscanf(text, "%lf %c", &number, &rest) == 1 ? cJSON_CreateNumber(number) : NULL;
}

// Sets one of our options, and adds a line that reports it, followed by `why` (may be "").
static void set(struct translator *t, enum deepspeed_kind kind, const char *ours, const cJSON *value,
                const char *why) {
    struct config *config = &t->out->config;
    const struct option *option = option_find(ours);
    if (t->status != STATUS_OK)
        return;
    cJSON *coerced = coerce(t->path, option, value);
    t->status = config_set(config, t->path, ours, coerced ? coerced : value);
    cJSON_Delete(coerced);
    if (t->status == STATUS_INVALID) {
        t->status = STATUS_OK;
        say_left_out(t, option);
    } else if (t->status == STATUS_OK) {
        struct text *lines = begin(t, kind);
        text_add(lines, " -> %s=", ours);
        option_print(option, config, lines);
        text_add(lines, *why ? " (%s)\n" : "\n", why);
    }
}

// Like set, with our value as JSON text or a bare word.
static void set_text(struct translator *t, enum deepspeed_kind kind, const char *ours, const char *text,
                     const char *why) {
    cJSON *parsed = cJSON_ParseWithOpts(text, NULL, true),
          *value = parsed ? parsed : cJSON_CreateString(text);
    set(t, kind, ours, value, why);
    cJSON_Delete(value);
}

// ---- conversions: each is the `convert` of some rows, and answers the current key

// Sets our option to the file's value. For "auto" sets the Trainer's default, for a missing key DeepSpeed's.
static void value_of(struct translator *t, const struct row *row) {
    const cJSON *other = row->otherwise ? peek(t, row->otherwise) : NULL;
    char why[160];
    if ((!t->value || cJSON_IsNull(t->value)) && other) {
        take(t, row->otherwise);
        t->value = other; // `take` returns NULL if another row already took it
    }
    snprintf(why, sizeof why, "the Trainer's %s; %s", row->argument,
             row->automatic ? "this is its default: set your value" : "set your value");
    if (is_auto(t->value) && row->automatic)
        set_text(t, CHOSEN, row->ours, row->automatic, why);
    else if (is_auto(t->value))
        say(t, CHOSEN, "%s: %s", row->ours, why);
    else if (t->value && !cJSON_IsNull(t->value))
        set(t, TRANSLATED, row->ours, t->value, "");
    else if (row->missing && row->sentence)
        set_text(t, CHOSEN, row->ours, row->missing, row->sentence);
    else if (row->missing)
        set_text(t, TRANSLATED, row->ours, row->missing, "DeepSpeed's default");
    else
        say(t, CHOSEN, "set %s", row->ours);
}

// For a behavior that is fixed in this program. `missing` lists the file's values that mean the same.
static void fixed(struct translator *t, const struct row *row) {
    const char *text = cJSON_GetStringValue(t->value);
    const bool same =
        text ? is_word_of(row->missing, text) : is_word_of(row->missing, "true") && is_truthy(t->value);
    if (t->value)
        say(t, cJSON_IsNull(t->value) ? OFF : same ? NEEDLESS : ALTERING, "%s", row->sentence);
}

// For a key that only determines how other keys are read.
static void read_elsewhere(struct translator *t, const struct row *row) {
    if (t->value)
        say(t, TRANSLATED, "%s", row->sentence);
}

// For a size that the Trainer derives from the model's hidden size.
static void sized(struct translator *t, const struct row *row) {
    struct text now = {0};
    option_print(option_find(row->ours), &t->out->config, &now);
    if (is_auto(t->value))
        say(t, NEEDLESS,
            "the Trainer derives it from the model's hidden size; here the default, %s, suits any size",
            now.data);
    else if (cJSON_IsNull(t->value))
        say(t, OFF, "not set");
    else if (t->value)
        set(t, TRANSLATED, row->ours, t->value, "");
    text_free(&now);
}

// The batch size that the file gives; 0: none, or an invalid one.
static double batch_size(const struct translator *t, const char *theirs, const char *ours) {
    const cJSON *value = peek(t, theirs);
    const double size = cJSON_IsNumber(value) ? value->valuedouble : 0;
    return size >= 1 && size <= option_find(ours)->maximum && size == floor(size) ? size : 0;
}

// For one of the three batch sizes. train_batch_size = micro-batch x accumulation x ranks must hold for some
// number of ranks.
static void batch(struct translator *t, const struct row *row) {
    const double whole = batch_size(t, "train_batch_size", "train.train_batch_size"),
                 micro = batch_size(t, "train_micro_batch_size_per_gpu", "train.micro_batch_size"),
                 accumulation =
                     batch_size(t, "gradient_accumulation_steps", "train.gradient_accumulation_steps"),
                 product = fmax(micro, 1) * fmax(accumulation, 1), ranks = whole / product;
    const bool is_whole = !row->argument, is_number = cJSON_IsNumber(t->value);
    char factors[2][64] = {"", ""}, why[320];
    if (is_whole && fmod(whole, product) != 0) {
        if (micro > 0)
            snprintf(factors[0], sizeof *factors, "train_micro_batch_size_per_gpu %.0f", micro);
        if (accumulation > 0)
            snprintf(factors[1], sizeof *factors, "gradient_accumulation_steps %.0f", accumulation);
        snprintf(
            why, sizeof why,
            "train_batch_size %.0f is not a multiple of %s%s%s, so these contradict each other at any number "
            "of ranks; change one of them",
            whole, factors[0], micro * accumulation > 0 ? " x " : "", factors[1]);
        refuse(t, why);
    }
    if (cJSON_IsNull(t->value))
        say(t, OFF, "not set");
    else if (is_number && whole * micro * accumulation > 0 &&
             strcmp(row->theirs, "gradient_accumulation_steps") == 0)
        say(t, TRANSLATED, "derived from the other batch sizes and the number of ranks: %.0f on %.0f rank%s",
            accumulation, ranks, ranks == 1 ? "" : "s");
    else if (is_number && t->value->valuedouble == 0) // our option would take 0 as "derive the value"
        say(t, ALTERING, "left out: DeepSpeed expects at least 1; %s is derived from the other batch sizes",
            row->ours);
    else if (is_auto(t->value) && (is_whole || whole > 0))
        say(t, TRANSLATED, "derived from the other batch sizes and the number of ranks");
    else if (t->value)
        value_of(t, row);
}

// ---- optimizer and schedule

struct type {
    const char *option;        // "optimizer.type" or "scheduler.type"
    const char *theirs, *ours; // DeepSpeed's value, and the value of our option
    const char *why;           // a remark in the answer, or ""
    const char *alters;        // what a run computes differently, or NULL
};

static const struct type *find_type(const char *option, const cJSON *value) {
    static const struct type types[] = {
#define TYPE(option, theirs, ours, why, alters) {option, theirs, ours, why, alters},
#include "options/foreign.def"
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].option, option) == 0 && is_text(value, types[i].theirs))
            return &types[i];
    return NULL;
}

// Answers an optimizer or schedule that this program does not have, or that the file does not name.
static void no_such_type(struct translator *t, const struct row *row, const char *ours) {
    char why[256], choices[160];
    snprintf(why, sizeof why, "%s%schoose one of %s", t->value ? row->sentence : "", t->value ? "; " : "",
             option_choices(option_find(row->ours), choices, sizeof choices));
    set_text(t, ALTERING, row->ours, ours, why);
}

// For a section that the file does not have. If the file has "auto" values, transformers' Trainer fills the
// section in, so its defaults are set. Returns whether the Trainer fills it in.
static bool by_trainer(struct translator *t, const char *section) {
    static const char *const initial[][3] = {
#define TRAINER(section, ours, initial) {section, ours, initial},
#include "options/foreign.def"
    };
    t->path = section;
    t->value = NULL;
    for (size_t i = 0; t->has_auto && i < sizeof initial / sizeof *initial; i++)
        if (strcmp(initial[i][0], section) == 0)
            set_text(t, CHOSEN, initial[i][1], initial[i][2],
                     "the file has none; this is the Trainer's default: set your value");
    return t->has_auto;
}

static void optimizer(struct translator *t, const struct row *row) {
    const struct type *type = find_type(row->ours, t->value);
    const cJSON *adamw = peek(t, "optimizer.params.adam_w_mode");
    const bool plain = is_text(t->value, "Adam") && adamw && !is_truthy(adamw);
    if (!cJSON_IsObject(peek(t, "optimizer"))) {
        if (!by_trainer(t, "optimizer"))
            say(t, CHOSEN,
                "the script makes the optimizer: set optimizer.type, lr, betas, eps and weight_decay; until "
                "then they have the defaults of this program");
        return;
    }
    t->types[0] = type ? type->theirs : "other";
    if (type)
        set_text(t, TRANSLATED, row->ours, plain ? "adam" : type->ours, plain ? "" : type->why);
    else
        no_such_type(t, row, "adamw");
    if (type && type->alters)
        say(t, ALTERING, "%s", type->alters);
}

// DeepSpeed's Muon has one scale, which the file cannot choose.
static void muon_scale(struct translator *t, const struct row *row) {
    t->value = peek(t, row->theirs);
    set_text(t, TRANSLATED, row->ours, row->missing, "DeepSpeed's scale");
}

// The learning rate of the tensors that AdamW updates with Muon. A rate of 0 cannot be translated, because in
// our option 0 means optimizer.lr.
static void adam_rate(struct translator *t, const struct row *row) {
    struct row read = *row;
    read.sentence = NULL;
    value_of(t, &read);
    if (config_given(&t->out->config, row->ours) && t->out->config.optimizer.adamw_lr == 0 &&
        t->out->config.optimizer.lr > 0)
        say(t, ALTERING, "%s", row->sentence);
}

// With ZeRO, DeepSpeed's Muon clips after orthogonalization, this program before it.
static void muon_clipping(struct translator *t, const struct row *row) {
    t->value = peek(t, t->path);
    if (t->out->config.zero_optimization.stage > 0 && !(t->value && is_false(t->value)))
        say(t, ALTERING, "%s", row->sentence);
}

// PyTorch's AdamW (torch_adam) and DeepSpeed's own have different defaults.
static void weight_decay(struct translator *t, const struct row *row) {
    const bool is_torch = is_truthy(peek(t, "optimizer.params.torch_adam")) &&
                          t->out->config.optimizer.type == CONFIG_OPTIMIZER_ADAMW;
    struct row read = *row;
    read.missing = is_torch ? "0.01" : row->missing;
    read.sentence = NULL;
    value_of(t, &read);
    if (t->out->config.optimizer.weight_decay > 0)
        say(t, ALTERING, "%s", row->sentence);
}

static bool is_our_schedule(const cJSON *value) {
    const struct option *option = option_find("scheduler.type");
    for (int i = 0; cJSON_IsString(value) && i < option->n_choices; i++)
        if (strcmp(option->choices[i], value->valuestring) == 0)
            return true;
    return false;
}

static void schedule(struct translator *t, const struct row *row) {
    const struct type *type = find_type(row->ours, t->value);
    if (type) {
        set_text(t, TRANSLATED, row->ours, type->ours, "");
        t->types[1] = type->theirs;
    } else if (t->value && !cJSON_IsNull(t->value)) {
        if (is_our_schedule(t->value))
            set(t, ALTERING, row->ours, t->value, "DeepSpeed has no such schedule");
        else
            no_such_type(t, row, "constant");
        set_text(t, ALTERING, "scheduler.warmup_steps", "0", "choose it too");
        if (take(t, "scheduler.params"))
            say(t, ALTERING, "left out with the schedule");
    } else if (!by_trainer(t, "scheduler")) {
        set_text(t, CHOSEN, row->ours, "constant",
                 "without a schedule the rate is constant, unless the script sets it");
        set_text(t, CHOSEN, "scheduler.warmup_steps", "0",
                 "without a schedule there is no warm-up, unless the script has one");
    }
}

// The schedule's peak rate replaces the optimizer's learning rate.
static void peak(struct translator *t, const struct row *row) {
    const bool replaces = config_given(&t->out->config, row->ours),
               is_muon = strcmp(t->types[0], "Muon") == 0;
    char rate[32];
    if (is_auto(t->value) && replaces && !is_muon)
        say(t, TRANSLATED, "%s", row->ours);
    else if (cJSON_IsNull(t->value))
        say(t, OFF, "not set");
    else if (cJSON_IsNumber(t->value) && replaces && t->value->valuedouble != t->out->config.optimizer.lr)
        set(t, TRANSLATED, row->ours, t->value, "the schedule's rate replaces the optimizer's");
    else if (t->value)
        value_of(t, row);
    else if (row->missing)
        set_text(t, TRANSLATED, row->ours, row->missing,
                 "DeepSpeed's default; the schedule's rate replaces the optimizer's");
    snprintf(rate, sizeof rate, "%.17g", t->out->config.optimizer.lr);
    if (is_muon && !cJSON_IsNull(t->value) && (t->value || row->missing))
        set_text(t, TRANSLATED, "optimizer.adamw_lr", rate, "the schedule's rate is that of all tensors");
}

// The number of steps by which DeepSpeed's schedule lags ours. DeepSpeed counts steps from -1, and both -1
// and 0 have the first rate of the warm-up. So the warm-up ends two steps late, and the decay begins two
// steps late. WarmupCosineLR skips the first step of its decay.
static int lateness(const struct translator *t) {
    return strcmp(t->types[1], "WarmupCosineLR") == 0 ? 1 : 2;
}

static void set_late(struct translator *t, const char *ours, double steps, const char *why) {
    char text[32], reason[160];
    snprintf(text, sizeof text, "%.0f", steps + lateness(t));
    snprintf(reason, sizeof reason, "%sDeepSpeed's schedule is %s behind", why,
             lateness(t) == 1 ? "1 step" : "2 steps");
    set_text(t, TRANSLATED, ours, text, reason);
}

static void warmup_steps(struct translator *t, const struct row *row) {
    const bool given = t->value && !cJSON_IsNull(t->value);
    const double steps = given ? cJSON_GetNumberValue(t->value) : atof(row->missing);
    if (steps >= 0 && steps < 1e9 && steps == floor(steps))
        set_late(t, row->ours, fmax(2, steps), given ? "" : "DeepSpeed's default; ");
    else
        value_of(t, row);
}

static void total_steps(struct translator *t, const struct row *row) {
    value_of(t, row);
    if (cJSON_IsNumber(t->value) && config_given(&t->out->config, row->ours))
        set_late(t, "scheduler.decay_steps", (double)t->out->config.train.max_steps, "");
}

static void warmup_type(struct translator *t, const struct row *unused) {
    (void)unused;
    if (t->out->config.scheduler.warmup_steps > 0)
        say(t, ALTERING,
            "warm-up is linear here%s. DeepSpeed's first two steps have the rate that warm-up starts from (0 "
            "unless the file gives one)%s",
            is_text(t->value, "linear") ? ", from the first step on" : "; DeepSpeed's default is logarithmic",
            lateness(t) == 1 ? ", and its peak is never reached" : "");
    else if (t->value)
        say(t, TRANSLATED, "there is no warm-up");
}

// The rate at which the warm-up starts. WarmupDecayLR also decays to this rate; only its row has `ours`.
static void warmup_low(struct translator *t, const struct row *row) {
    const double low = cJSON_IsNumber(t->value) ? t->value->valuedouble : 0, lr = t->out->config.optimizer.lr;
    const bool ends_above_0 = low > 0 && lr > 0;
    char ratio[32];
    snprintf(ratio, sizeof ratio, "%.17g", ends_above_0 ? low / lr : 0);
    if (is_auto(t->value) || cJSON_IsNull(t->value) || (cJSON_IsNumber(t->value) && low == 0))
        say(t, TRANSLATED, "warm-up starts from 0");
    else if (t->value)
        say(t, ALTERING, "warm-up starts from 0 here");
    if (row->ours)
        set_text(t, TRANSLATED, row->ours, ratio,
                 ends_above_0 ? "it decays to this rate: warmup_min_lr / optimizer.lr" : "it decays to 0");
}

// ---- precision

static const struct mode {
    const char *section; // in DeepSpeed's file
    const char *word;    // the value of precision.compute; see mode_word for torch_autocast in float16
    bool of_products;    // the type applies to matrix products, not to parameters
} modes[] = {{"bf16", "bf16", false},
             {"bfloat16", "bf16", false},
             {"fp16", "fp16", false},
             {"torch_autocast", "bf16", true},
             {"amp", "fp16", true}};
enum { N_MODES = sizeof modes / sizeof *modes };

static const char *mode_word(const struct translator *t, int i) {
    return modes[i].of_products && t->half ? "fp16" : modes[i].word;
}

// Answers the switch of a mode, {"bf16": {"enabled": true}} or {"bf16": true}.
static void answer_mode(struct translator *t, int i) {
    const struct mode *mode = &modes[i];
    const cJSON *section = peek(t, mode->section);
    const bool whole = section && !cJSON_IsObject(section);
    char path[64];
    snprintf(path, sizeof path, "%s%s", mode->section, whole ? "" : ".enabled");
    const cJSON *value = take(t, path);
    if (is_true(value)) {
        set_text(t, mode->of_products ? ALTERING : TRANSLATED, "precision.compute", mode_word(t, i),
                 mode->of_products ? "parameters have this type too, with fp32 master weights"
                 : whole           ? "DeepSpeed expects {\"enabled\": true}"
                                   : "");
        if (mode->of_products && take(t, mode->section) && t->value->child)
            say(t, ALTERING, "its other members have no equivalent here");
        return;
    }
    if (is_auto(value) && t->mode >= 0)
        say(t, CHOSEN, "the Trainer's --%s; precision.compute is %s because %s is true", mode->section,
            mode_word(t, t->mode), modes[t->mode].section);
    else if (is_auto(value))
        say(t, CHOSEN,
            "the Trainer's --%s: set precision.compute (bf16, fp16 or fp32); until then it is the faster of "
            "fp32 and bf16",
            mode->section);
    else if (value && !is_false(value) && !cJSON_IsNull(value))
        say(t, ALTERING, "%s",
            whole ? "treated as off; DeepSpeed expects {\"enabled\": true}"
                  : "neither true nor false: treated as false");
    else if (whole)
        say(t, OFF, cJSON_IsNull(value) ? "not set" : "off");
    if (!is_auto(value) && take(t, mode->section))
        say(t, OFF, "off");
}

static void precision(struct translator *t, const struct row *row) {
    const char *dtype = cJSON_GetStringValue(t->value);
    t->half = dtype && strstr(dtype, "float16") && !strstr(dtype, "bfloat16");
    read_elsewhere(t, row);
    for (int i = 0; i < N_MODES; i++) {
        const cJSON *value = peek(t, modes[i].section);
        value = cJSON_IsObject(value) ? cJSON_GetObjectItemCaseSensitive(value, "enabled") : value;
        t->has_auto_mode |= is_auto(value);
        if (!is_true(value))
            continue;
        if (i == 2 && t->mode >= 0)
            refuse(t, "bf16 and fp16 are both enabled, which DeepSpeed refuses; disable one of them");
        t->mode = i;
        t->mode_of_parameters = modes[i].of_products ? t->mode_of_parameters : i;
    }
    for (int i = 0; i < N_MODES; i++)
        answer_mode(t, i);
    t->path = "fp16.enabled, bf16.enabled";
    t->value = NULL;
    if (t->mode < 0 && !t->has_auto_mode)
        set_text(t, TRANSLATED, "precision.compute", "fp32", "neither is on");
}

// If the file gives no type, gradients are sent in the type of the parameters, as in DeepSpeed.
static void communication_type(struct translator *t, const struct row *row) {
    const char *text = cJSON_GetStringValue(t->value);
    if (text && is_word_of("bf16 bfp16 bfloat16", text)) // case does not matter
        set_text(t, TRANSLATED, row->ours, "bf16", "");
    else if (is_text(t->value, "fp16") || is_text(t->value, "fp32"))
        set_text(t, TRANSLATED, row->ours, text[2] == '1' ? "fp16" : "fp32", "");
    else if (t->value && !cJSON_IsNull(t->value))
        set(t, TRANSLATED, row->ours, t->value, "");
    else if (t->mode_of_parameters >= 0)
        set_text(t, TRANSLATED, row->ours, modes[t->mode_of_parameters].word,
                 "DeepSpeed's default: the compute type; fp32 is this program's");
    else if (t->has_auto_mode && t->mode < 0)
        say(t, CHOSEN,
            "DeepSpeed sends gradients in the compute type, this program in fp32: set it to do the same");
    else if (t->value)
        say(t, OFF, "not set");
}

// ---- ZeRO

// "zero_optimization": true is the oldest form, and means stage 1.
static void stage(struct translator *t, const struct row *row) {
    if (t->value)
        set(t, TRANSLATED, row->ours, t->value, "");
    else if (cJSON_IsBool(peek(t, "zero_optimization")))
        set_text(t, TRANSLATED, row->ours, cJSON_IsTrue(take(t, "zero_optimization")) ? "1" : "0", "");
}

// Reads the device of offload_optimizer or offload_param, or one of two old forms. Returns whether it is the
// host.
static bool offload_device(struct translator *t, const char *path, const char *old, const char *older) {
    const char *const forms[] = {old, older};
    bool on = false;
    for (int i = 0; i < 2; i++) {
        const bool is_set = is_true(take(t, forms[i]));
        if (t->value)
            say(t, is_set ? TRANSLATED : OFF, "the old form of %s", path);
        on = on || is_set;
    }
    const cJSON *device = take(t, path);
    if (!device && on)
        set_text(t, TRANSLATED, path, "cpu", "set by its old form");
    else if (cJSON_IsString(device) && strcmp(device->valuestring, "nvme") == 0)
        set_text(t, REPLACED, path, "cpu",
                 "there is no offload to NVMe: host memory must hold it; ./train plan shows how much");
    else if (device)
        set(t, TRANSLATED, path, device, "");
    const char *word = cJSON_GetStringValue(device);
    return device ? word && (strcmp(word, "cpu") == 0 || strcmp(word, "nvme") == 0) : on;
}

static void offload(struct translator *t, const struct row *row) {
    const cJSON *ratio = t->value;
    const char *device = "zero_optimization.offload_optimizer.device";
    const bool whole = t->out->config.zero_optimization.stage == 3;
    const bool host =
        offload_device(t, device, "zero_optimization.cpu_offload", "zero_optimization.cpu_offload");
    const bool params = whole && offload_device(t, "zero_optimization.offload_param.device",
                                                "zero_optimization.cpu_offload_param",
                                                "zero_optimization.cpu_offload_params");
    if (params && !host) {
        t->value = NULL;
        set_text(t, TRANSLATED, device, "cpu", "parameters on the host need it: the host updates them");
    }
    if (!whole && take(t, "zero_optimization.offload_param"))
        say(t, NEEDLESS, "it is valid only with stage 3, as in DeepSpeed");
    t->path = row->theirs;
    t->value = ratio;
    if (ratio && params)
        say(t, NEEDLESS, "with parameters on the host, the host updates all of them");
    else if (ratio && host)
        set(t, TRANSLATED, row->ours, ratio, "");
    else if (ratio)
        say(t, OFF, "off");
}

static void activation_checkpointing(struct translator *t, const struct row *unused) {
    (void)unused;
    if (is_on(t->value)) {
        set_text(t, TRANSLATED, "recompute", "block", "");
        set_text(t, TRANSLATED, "offload_activations", "cpu", "");
        return;
    }
    t->path = "activation_checkpointing";
    t->value = NULL;
    if (cJSON_IsObject(peek(t, t->path)))
        say(t, CHOSEN,
            "with DeepSpeed, the model's code switches it on; here set recompute=block or attention for less "
            "memory; results stay bitwise the same");
}

static const struct row rows[] = {
#define TAKE(...) {__VA_ARGS__},
#include "options/foreign.def"
};
enum { N_ROWS = sizeof rows / sizeof *rows };

static bool is_wanted(const struct translator *t, const struct row *row) {
    return !row->when || is_word_of(row->when, t->types[0]) || is_word_of(row->when, t->types[1]);
}

// ---- DeepSpeed's names: those in foreign.def, and those that equal our options' names

// Our option of the same name and meaning, such as zero_optimization.stage; NULL if there is none.
static const struct option *same_option(const char *path) {
    const bool shared = strncmp(path, "zero_optimization.", 18) == 0 || strncmp(path, "fp16.", 5) == 0 ||
                        strcmp(path, "communication_data_type") == 0;
    return shared ? option_find(path) : NULL;
}

// Adds a name and the names of the sections that contain it.
static void add_name(struct translator *t, const char *path, size_t length) {
    char *name = copy_bytes(path, length);
    for (char *end = name + length; end; end = strrchr(name, '.')) {
        *end = '\0';
        file_list_add(&t->names, name);
    }
    free(name);
}

static void list_names(struct translator *t) {
    for (int i = 0; i < n_foreigns; i++)
        for (const char *p = foreigns[i].names; foreign_is_deepspeed(&foreigns[i]) && *p;
             p += strcspn(p, " "), p += *p == ' ')
            add_name(t, p, strcspn(p, " "));
    for (int i = 0; i < n_options; i++)
        if (same_option(option_full_name(&options[i])))
            add_name(t, option_full_name(&options[i]), strlen(option_full_name(&options[i])));
    for (int i = 0; i < N_ROWS; i++)
        add_name(t, rows[i].theirs, strlen(rows[i].theirs));
}

static bool is_section(const struct translator *t, const char *path) {
    const size_t length = strlen(path);
    for (int i = 0; i < t->names.n_paths; i++)
        if (strncmp(t->names.paths[i], path, length) == 0 && t->names.paths[i][length] == '.')
            return true;
    return false;
}

static const char *last_component(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

// The name whose last component is nearest to the last component of `path`, in the same section (in_section)
// or in any. NULL if none is near.
static const char *nearest_name(const struct translator *t, const char *path, bool in_section) {
    const size_t prefix = (size_t)(last_component(path) - path);
    const char **keys = allocate((size_t)t->names.n_paths, sizeof *keys), *found = NULL;
    int n = 0;
    for (int i = 0; i < t->names.n_paths; i++) {
        const char *name = t->names.paths[i], *key = last_component(name);
        if (!in_section || ((size_t)(key - name) == prefix && memcmp(name, path, prefix) == 0))
            keys[n++] = key;
    }
    const char *nearest = text_nearest(path + prefix, keys, n);
    for (int i = 0; i < t->names.n_paths && nearest && !found; i++)
        found = last_component(t->names.paths[i]) == nearest ? t->names.paths[i] : NULL;
    free(keys);
    return found;
}

// Whether a file is a configuration of this program: it has a key that only this program has, and no
// top-level key that only DeepSpeed has.
//   is_theirs   [out] whether a key is DeepSpeed's
static bool is_ours(const struct translator *t, const cJSON *root, bool *is_theirs) {
    int n_own = 0, n_only_theirs = 0;
    const cJSON *item, *member;
    cJSON_ArrayForEach(item, root) {
        const char *name = item->string;
        const bool theirs = foreign_find_deepspeed(name) || is_section(t, name) || same_option(name);
        const bool ours = section_exists(name, strlen(name)) || option_find(name);
        *is_theirs = *is_theirs || theirs;
        n_only_theirs += theirs && !ours;
        n_own += ours && !theirs;
        // Members that only this program has: optimizer.lr, or scheduler.type with one of our schedules.
        if (theirs && cJSON_IsObject(item))
            cJSON_ArrayForEach(member, item) {
                char path[LONGEST_NAME];
                snprintf(path, sizeof path, "%s.%s", name, member->string);
                n_own += option_find(path) && !same_option(path) &&
                         (strcmp(path, "scheduler.type") == 0
                              ? is_our_schedule(member)
                              : strcmp(path, "optimizer.type") != 0 && !foreign_find_deepspeed(path));
            }
    }
    return n_own > 0 && n_only_theirs == 0;
}

// ---- the keys that are left

// Answers the current key: adds a line to the report of the translation.
//   row   the row of the key, or of a section that contains it
static void answer_row(struct translator *t, const struct foreign *row) {
    const char *word = row->ours ? strchr(row->ours, '=') : NULL;
    char ours[LONGEST_NAME] = "";
    if (row->ours)
        snprintf(ours, sizeof ours, "%.*s", (int)strcspn(row->ours, "="), row->ours);
    const struct option *option = option_find(ours);
    struct text now = {0};
    if (is_auto(t->value) && option) {
        option_print(option, &t->out->config, &now);
        say(t, CHOSEN, "neither DeepSpeed nor the Trainer fills it in; here %s=%s applies", ours, now.data);
    } else if (row->kind == FOREIGN_ALTERS)
        say(t, is_on(t->value) ? ALTERING : OFF, "%s", row->note);
    else if (row->kind == FOREIGN_NONE)
        say(t, cJSON_IsObject(t->value) && !is_on(t->value) ? OFF : NEEDLESS, "%s", row->note);
    else if (!option)
        say(t, ALTERING, "there is no such parameter here");
    else if (word && !is_on(t->value))
        say(t, OFF, "off");
    else if (word)
        set_text(t, TRANSLATED, ours, word + 1, "");
    else if (*row->note) // the note says how our option differs from DeepSpeed's
        say(t, NEEDLESS, "here it is %s (%s)", row->ours, row->note);
    else
        set(t, TRANSLATED, ours, t->value, "");
    text_free(&now);
}

static void answer_unknown(struct translator *t) {
    const char *path = t->path, *key = last_component(path), *ours = option_find(path) ? path : NULL,
               *theirs = NULL;
    if (!ours) {
        for (int i = 0; i < n_options && !ours; i++)
            ours = strcmp(options[i].name, key) == 0 ? option_full_name(&options[i]) : NULL;
        theirs = nearest_name(t, path, true);
        const char *any = theirs ? NULL : nearest_name(t, path, false);
        if (any && (!ours || strcmp(last_component(any), key) == 0))
            theirs = any;
    }
    say(t, UNKNOWN, "DeepSpeed's documentation has no such option%s%s%s",
        theirs ? "; did you mean "
        : ours ? "; "
               : "",
        theirs ? theirs
        : ours ? ours
               : "",
        theirs ? "?"
        : ours ? " is an option here, to be set in the translated file"
               : "");
}

// Whether the current key is probably misspelled: it has no row, its section has one, and a similar name
// exists in the section.
static bool is_misspelled(const struct translator *t, const struct foreign *row) {
    char section[LONGEST_NAME];
    const size_t prefix = (size_t)(last_component(t->path) - t->path);
    snprintf(section, sizeof section, "%.*s", prefix > 0 ? (int)prefix - 1 : 0, t->path);
    const char *nearest = row == foreign_find_deepspeed(section) ? nearest_name(t, t->path, true) : NULL;
    return nearest && strcmp(nearest, t->path) != 0;
}

// Answers a key or, if it is a section, all of its members. cJSON's nesting limit bounds the recursion.
static void answer_key(struct translator *t, const char *path, const cJSON *value) {
    const struct foreign same = {FOREIGN_OURS, "", "", path, ""},
                         *row = same_option(path) ? &same : foreign_find_deepspeed(path);
    const cJSON *item;
    t->path = path;
    t->value = value;
    if (cJSON_IsObject(value) && (section_exists(path, strlen(path)) || is_section(t, path))) {
        cJSON_ArrayForEach(item, value) {
            char *member = file_path("%s.%s", path, item->string);
            if (t->status == STATUS_OK)
                answer_key(t, member, item);
            free(member);
        }
    } else if (!row || (row != &same && is_misspelled(t, row)))
        answer_unknown(t);
    else if (cJSON_IsNull(value))
        say(t, OFF, "not set");
    else
        answer_row(t, row);
}

// ---- the whole file

// Replaces the answers that set this option by answers of the kind OFF, because the option has no effect.
//   why   "optimizer.type is sgd"
static void leave_out(struct translator *t, const struct option *option, const char *why) {
    struct text *off = &t->out->answers[OFF].lines;
    char arrow[LONGEST_NAME + 8], *at;
    snprintf(arrow, sizeof arrow, " -> %s=", option_full_name(option));
    for (int kind = 0; kind < OFF; kind++) {
        struct text *lines = &t->out->answers[kind].lines;
        while (lines->data && (at = strstr(lines->data, arrow))) {
            char *line = at, *rest = strchr(at, '\n') + 1;
            while (line > lines->data && line[-1] != '\n')
                line--;
            text_add(off, "%.*s: left out, as %s\n", (int)(at - line), line, why);
            memmove(line, rest, strlen(rest) + 1);
            lines->length -= (size_t)(rest - line);
            t->out->answers[kind].n--;
            t->out->answers[OFF].n++;
        }
    }
}

static void leave_out_unused(struct translator *t) {
    struct text why = {0};
    for (int i = 0; i < n_options; i++, text_free(&why))
        if (unused_reset(&options[i], &t->out->config, &why))
            leave_out(t, &options[i], why.data);
}

// Checks the rules between options, for one rank. Only given options are printed, so the values derived here
// do not appear.
static void check_rules(struct translator *t) {
    const enum status status = config_resolve(&t->out->config, 1);
    if (status == STATUS_INVALID) {
        const char *message = status_message(), *rule = strstr(message, t->source);
        t->path = t->source;
        t->value = t->rest;
        say(t, ALTERING, "./train refuses the translation; change it: %s",
            rule == message ? message + strlen(t->source) + 2 : message);
        status_clear();
    } else
        t->status = status;
}

static enum status check_kind(const struct translator *t) {
    bool is_theirs = false;
    if (cJSON_IsObject(t->root) && is_ours(t, t->root, &is_theirs))
        return FAIL(STATUS_INVALID, "%s is a zero.c configuration already; ./train %s runs it", t->source,
                    t->source);
    if (is_theirs)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s%s, expected a DeepSpeed configuration, such as {\"zero_optimization\": {\"stage\": 2}}",
                t->source, cJSON_IsObject(t->root) ? ": no key of it is DeepSpeed's" : " holds no object");
}

enum status deepspeed_translate(const cJSON *root, const char *source, struct deepspeed_translation *out) {
    struct translator t = {.out = out,
                           .source = source,
                           .root = root,
                           .rest = cJSON_Duplicate(root, true),
                           .taken = cJSON_CreateArray(),
                           .has_auto = has_auto(root),
                           .types = {"", ""},
                           .mode = -1,
                           .mode_of_parameters = -1,
                           .faults = faults_begin()};
    const cJSON *item;
    *out = (struct deepspeed_translation){0};
    list_names(&t);
    t.status = check_kind(&t);
    if (t.status == STATUS_OK)
        t.status = config_parse(&out->config, "{}", 2, source);
    for (int i = 0; i < N_ROWS && t.status == STATUS_OK; i++)
        if (is_wanted(&t, &rows[i])) {
            take(&t, rows[i].theirs);
            rows[i].convert(&t, &rows[i]);
        }
    cJSON_ArrayForEach(item, t.rest) if (t.status == STATUS_OK) answer_key(&t, item->string, item);
    if (t.status == STATUS_OK) {
        leave_out_unused(&t);
        check_rules(&t);
    }
    cJSON_Delete(t.rest);
    cJSON_Delete(t.taken);
    file_list_free(&t.names);
    return faults_end(&t.faults, t.status, NULL);
}

void deepspeed_free(struct deepspeed_translation *translation) {
    for (int i = 0; i < DEEPSPEED_KINDS; i++)
        text_free(&translation->answers[i].lines);
    config_free(&translation->config);
}
