// Names that are not an option or section: tables of other trainers' names and of removed names, lookups in
// them, and the messages for such names and for misspelled ones.
#include "options/foreign.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "options/option.h"

const struct foreign foreigns[] = {
#define OURS(program, names, ours, more) {FOREIGN_OURS, program, names, ours, more},
#define NONE(program, names, why)        {FOREIGN_NONE, program, names, NULL, why},
#define ALTERS(program, names, why)      {FOREIGN_ALTERS, program, names, NULL, why},
#include "options/foreign.def"
};
const int n_foreigns = sizeof foreigns / sizeof *foreigns;

bool foreign_is_deepspeed(const struct foreign *row) {
    return strstr(row->program, "DeepSpeed") != NULL;
}

// Whether `name` equals one of the row's names, or begins with one that ends in *.
//   last   compare with the last components of the row's names only
static bool has_name(const struct foreign *row, const char *name, size_t length, bool last) {
    for (const char *p = row->names; *p;) {
        size_t size = strcspn(p, " ");
        const char *own = p, *end = p + size;
        for (const char *q = p; last && q < end; q++)
            if (*q == '.')
                own = q + 1;
        const bool begins = end[-1] == '*';
        const size_t compared = (size_t)(end - own) - begins;
        if ((begins ? length > compared : length == compared) && memcmp(own, name, compared) == 0)
            return true;
        p = end + (*end == ' ');
    }
    return false;
}

static const struct foreign *find(const char *name, size_t length, bool last, bool deepspeed) {
    for (int i = 0; i < n_foreigns; i++)
        if ((!deepspeed || foreign_is_deepspeed(&foreigns[i])) && has_name(&foreigns[i], name, length, last))
            return &foreigns[i];
    return NULL;
}

// The row of the whole name or, if it has none, of the innermost section that contains it and has a row.
static const struct foreign *find_with_sections(const char *name, bool deepspeed) {
    for (size_t length = strlen(name); length > 0;) {
        const struct foreign *row = find(name, length, false, deepspeed);
        if (row)
            return row;
        while (length > 0 && name[length - 1] != '.')
            length--;
        length -= length > 0;
    }
    return NULL;
}

const struct foreign *foreign_find(const char *full_name) {
    char name[256];
    snprintf(name, sizeof name, "%s", full_name);
    // learning-rate becomes learning_rate. The leading dash of llm.c's flags stays.
    for (char *p = name + 1; name[0] && *p; p++)
        *p = *p == '-' ? '_' : *p;
    const struct foreign *row = find_with_sections(name, false);
    const char *dot = strrchr(name, '.'), *own = dot ? dot + 1 : name;
    // The names "enabled" and "name" are too common to look up without their section.
    const bool says_little = strcmp(own, "enabled") == 0 || strcmp(own, "name") == 0;
    return row || says_little ? row : find(own, strlen(own), true, false);
}

const struct foreign *foreign_find_deepspeed(const char *path) {
    return find_with_sections(path, true);
}

// Whether the value switches a feature off: false, "False" (Python's), or {"enabled": false}.
static bool is_off(const cJSON *value) {
    const char *word = cJSON_GetStringValue(value);
    return cJSON_IsFalse(value) || (word && strcmp(word, "False") == 0) ||
           cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(value, "enabled"));
}

// Appends the advice for a value that switches a feature off.
//   value   the value in row->ours, which would switch the feature on, such as bf16
static void add_advice_off(const struct foreign *row, const char *value, struct text *out) {
    char ours[128];
    snprintf(ours, sizeof ours, "%.*s", (int)(value - row->ours) - 1, row->ours);
    const struct option *option = option_find(ours);
    if (option->type == OPTION_BOOL)
        text_add(out, "here it is %s=%s", ours, strcmp(value, "true") == 0 ? "false" : "true");
    else
        text_add(out, "for false leave it out (%s is then %s), or set another value; true is %s here", ours,
                 option->type == OPTION_CHOICE ? option->choices[option->chosen] : option->initial,
                 row->ours);
}

// Appends the advice, without a full stop: "here it is optimizer.lr", "there is no dropout; leave it out". If
// the value switches the feature off, the advice must not switch our option on. If the value is a removed
// value of our option, the advice names its replacement.
static void add_advice(const struct foreign *row, const cJSON *value, struct text *out) {
    const bool off = is_off(value);
    const char *equals = row->kind == FOREIGN_OURS ? strchr(row->ours, '=') : NULL,
               *word = row->kind == FOREIGN_OURS ? cJSON_GetStringValue(value) : NULL,
               *instead = word ? gone_word(row->ours, word) : NULL;
    if (instead)
        text_add(out, "here it is %s, whose value %s was removed; %s", row->ours, word, instead);
    // A note "for decay_lr=False; ..." names the value that the row is for, so the note applies as it is.
    else if (equals && off && strncmp(row->note, "for ", 4) != 0)
        add_advice_off(row, equals + 1, out);
    else if (row->kind == FOREIGN_OURS)
        text_add(out, *row->note ? "here it is %s (%s)" : "here it is %s", row->ours, row->note);
    else
        text_add(out, "%s; leave it out", row->note);
}

// Appends the programs that use the row's names: "nanoGPT, Hugging Face or Megatron".
static void add_programs(const struct foreign *row, struct text *out) {
    const char *last = strrchr(row->program, ',');
    if (last)
        text_add(out, "%.*s or%s", (int)(last - row->program), row->program, last + 1);
    else
        text_add(out, "%s", row->program);
}

// ---- removed names

const struct gone gones[] = {
#define GONE(name, initial, instead)     {GONE_OPTION, name, initial, instead},
#define GONE_WORDS(name, words, instead) {GONE_VALUES, name, words, instead},
#define GONE_COMMAND(name, use)          {GONE_COMMANDS, name, NULL, "use " use},
#include "options/foreign.def"
};
const int n_gones = sizeof gones / sizeof *gones;

const struct gone *gone_option(const char *full_name) {
    for (int i = 0; i < n_gones; i++)
        if (gones[i].kind == GONE_OPTION && strcmp(gones[i].name, full_name) == 0)
            return &gones[i];
    return NULL;
}

// The removed option whose name within its section is `key`, or NULL.
static const struct gone *gone_option_called(const char *key) {
    for (int i = 0; i < n_gones; i++)
        if (gones[i].kind == GONE_OPTION && strcmp(strrchr(gones[i].name, '.') + 1, key) == 0)
            return &gones[i];
    return NULL;
}

bool gone_is_section(const char *name) {
    const size_t length = strlen(name);
    for (int i = 0; i < n_gones; i++)
        if (gones[i].kind == GONE_OPTION && strncmp(gones[i].name, name, length) == 0 &&
            gones[i].name[length] == '.')
            return !section_exists(name, length);
    return false;
}

bool gone_is_default(const struct gone *row, const cJSON *value) {
    cJSON *initial = cJSON_Parse(row->was);
    const bool equal = cJSON_Compare(initial, value, true);
    cJSON_Delete(initial);
    return equal;
}

const char *gone_word(const char *full_name, const char *word) {
    const size_t length = strlen(word);
    for (int i = 0; i < n_gones; i++)
        if (gones[i].kind == GONE_VALUES && strcmp(gones[i].name, full_name) == 0)
            for (const char *p = gones[i].was; *p; p += strcspn(p, " "), p += *p == ' ')
                if (strcspn(p, " ") == length && strncasecmp(p, word, length) == 0) // ignores case
                    return gones[i].instead;
    return NULL;
}

// Whether an argument equals `words`, or is a flag with its value: "--to llmc" matches --to=llmc, and --to
// followed by `next` (may be NULL).
static bool is_words(const char *words, const char *argument, const char *next) {
    const size_t n = strcspn(argument, "=");
    if (strncmp(words, argument, n) != 0)
        return false;
    const char *value = argument[n] && argument[0] == '-' ? argument + n + 1 : next;
    return words[n] ? words[n] == ' ' && value && strcmp(words + n + 1, value) == 0
                    : !argument[n] || argument[0] == '-';
}

enum status gone_command(int n_args, char *const *args) {
    for (int i = 0; i < n_gones; i++) {
        const char *name = gones[i].name;
        const size_t first = strcspn(name, " ");
        const char *second = name[first] ? name + first + 1 : NULL;
        // A removed flag may be any of the arguments, a removed second word only the one after the command.
        const int last = second && *second == '-' ? n_args : n_args < 2 ? n_args : 2;
        if (gones[i].kind != GONE_COMMANDS || strncmp(args[0], name, first) != 0 || args[0][first])
            continue;
        for (int k = second ? 1 : 0; k < last; k++)
            if (!second || is_words(second, args[k], k + 1 < n_args ? args[k + 1] : NULL))
                return FAIL(STATUS_INVALID, "train %s was removed; %s", name, gones[i].instead);
    }
    return STATUS_OK;
}

// ---- messages for unknown names

// Our options whose key (last component of the name) has another meaning in another trainer.
static const struct {
    const char *option, *meant; // `meant` follows "did you mean ", instead of the option
} namesakes[] = {
    {"train.eval_steps", "train.eval_every, the steps between evaluations (Hugging Face's eval_steps), or "
                         "train.eval_steps, the length of an evaluation in batches"},
    {"model.init_from",
     "model.init_from, the path of weights? For nanoGPT's init_from=scratch, leave it out; "
     "for resume too (the same command resumes a run: checkpoint.resume)"},
    {"train.gradient_accumulation_steps",
     "train.gradient_accumulation_steps, the micro-batches of each rank (nanoGPT counts those of all ranks)"},
};

// Fails with the row's advice for another trainer's name.
static enum status foreign_name(const char *source, const char *what, const char *name, const cJSON *value,
                                const struct foreign *row) {
    struct text advice = {0};
    add_programs(row, &advice);
    text_add(&advice, "; ");
    add_advice(row, value, &advice);
    enum status status =
        FAIL(STATUS_INVALID, "%s: unknown %s %s, a name of %s", source, what, name, advice.data);
    text_free(&advice);
    return status;
}

// Fails for a key that several sections have.
static enum status in_several(const char *source, const char *full_name, const char *key, int n_owners) {
    struct text list = {0};
    int n = 0;
    for (int i = 0; i < n_options; i++)
        if (strcmp(options[i].name, key) == 0)
            text_add(&list, "%s%s",
                     n++ == 0        ? ""
                     : n == n_owners ? " or "
                                     : ", ",
                     option_full_name(&options[i]));
    enum status status =
        FAIL(STATUS_INVALID, "%s: unknown option %s; did you mean %s?", source, full_name, list.data);
    text_free(&list);
    return status;
}

// Fails for an option's key in the wrong section.
static enum status misplaced(const char *source, const char *full_name, const struct option *option) {
    int n_owners = 0;
    for (int i = 0; i < n_options; i++)
        n_owners += strcmp(options[i].name, option->name) == 0;
    if (n_owners > 1 && !section_is_top(option->section))
        return in_several(source, full_name, option->name, n_owners);
    const char *own = option_full_name(option);
    for (size_t i = 0; i < sizeof namesakes / sizeof *namesakes; i++)
        if (strcmp(namesakes[i].option, own) == 0)
            return FAIL(STATUS_INVALID, "%s: unknown option %s; did you mean %s%s", source, full_name,
                        namesakes[i].meant, strchr(namesakes[i].meant, '?') ? "" : "?");
    const bool is_top = section_is_top(option->section);
    return FAIL(STATUS_INVALID, "%s: unknown option %s: %s is %s%s; did you mean %s?", source, full_name,
                option->name, is_top ? "outside all sections" : "in the section ",
                is_top ? "" : option->section, own);
}

// Fails for a section that is set like an option, such as fp16=true, a switch of other trainers.
static enum status section_as_option(const char *source, const char *name, const cJSON *value) {
    char enabled[160];
    snprintf(enabled, sizeof enabled, "%s.enabled", name);
    const struct foreign *row = value && cJSON_IsBool(value) ? foreign_find_deepspeed(enabled) : NULL;
    if (row)
        return foreign_name(source, "option", name, value, row);
    return FAIL(STATUS_INVALID, "%s: %s is a section, expected one of its options, such as %s", source, name,
                option_full_name(option_first_of(name)));
}

// Fails for a name that continues after an option's name: "optimizer.groups.lr", "optimizer.groups[0].lr".
static enum status inside_option(const char *source, const char *full_name, const struct option *option) {
    const char *own = option_full_name(option);
    if (option->type != OPTION_GROUPS)
        return FAIL(STATUS_INVALID, "%s: unknown option %s: %s is an option, not a section", source,
                    full_name, own);
    return FAIL(
        STATUS_INVALID,
        "%s: unknown option %s: %s is a list of groups; set it whole, as in %s='[{\"match\": \"*.bias\", "
        "\"lr\": 1e-4}]'",
        source, full_name, own, own);
}

static const struct option *option_around(const char *full_name) {
    for (int i = 0; i < n_options; i++) {
        const char *own = option_full_name(&options[i]);
        const size_t length = strlen(own);
        if (strncmp(full_name, own, length) == 0 && (full_name[length] == '.' || full_name[length] == '['))
            return &options[i];
    }
    return NULL;
}

static bool is_in(const struct option *option, const char *section, size_t length) {
    return strlen(option->section) == length && memcmp(option->section, section, length) == 0;
}

// Whether the name begins or ends with the word `key`: rope_type ends with "type".
static bool has_words(const char *name, const char *key) {
    const size_t n = strlen(name), length = strlen(key);
    return length > 0 && n > length &&
           ((memcmp(name, key, length) == 0 && name[length] == '_') ||
            (strcmp(name + n - length, key) == 0 && name[n - length - 1] == '_'));
}

// The only option of the section whose name begins or ends with `key`; NULL if there is none, or several.
static const struct option *option_with_words(const char *key, const char *section, size_t section_length) {
    const struct option *found = NULL;
    for (int i = 0; i < n_options; i++)
        if (is_in(&options[i], section, section_length) && has_words(options[i].name, key)) {
            if (found)
                return NULL;
            found = &options[i];
        }
    return found;
}

// The option whose section and name the key joins with an underscore: ema_decay is train.ema.decay.
static const struct option *option_joined(const char *key) {
    for (int s = 0; s < section_count(); s++) {
        const char *own = section_own_name(s), *section = section_name(s);
        const size_t length = strlen(own);
        if (strncmp(key, own, length) != 0 || key[length] != '_')
            continue;
        for (int i = 0; i < n_options; i++)
            if (strcmp(options[i].section, section) == 0 && strcmp(options[i].name, key + length + 1) == 0)
                return &options[i];
    }
    return NULL;
}

// The option of a section (NULL: of all sections) whose name is closest to `key`; NULL when none is close.
static const struct option *nearest_option(const char *key, const char *section, size_t section_length) {
    const char *names[MAX_OPTIONS] = {0};
    const struct option *owners[MAX_OPTIONS];
    int n = 0;
    for (int i = 0; i < n_options; i++)
        if (!section || is_in(&options[i], section, section_length)) {
            owners[n] = &options[i];
            names[n++] = options[i].name;
        }
    const char *nearest = text_nearest(key, names, n);
    for (int i = 0; i < n; i++)
        if (names[i] == nearest)
            return owners[i];
    return NULL;
}

static const char *nearest_section(const char *name) {
    const char *names[MAX_OPTIONS];
    int n = 0;
    for (int i = 0; i < section_count(); i++) {
        if (!section_is_top(section_name(i)))
            names[n++] = section_name(i);
        if (strcmp(section_own_name(i), name) == 0) // a subsection without its section
            return section_name(i);
    }
    return text_nearest(name, names, n);
}

// Fails for a removed option.
static enum status gone_name(const char *source, const struct gone *row, const cJSON *value) {
    char *text = value && !cJSON_IsString(value) ? cJSON_PrintUnformatted(value) : NULL;
    const char *shown = text ? text : cJSON_GetStringValue(value);
    enum status status = FAIL(STATUS_INVALID, "%s: %s%s%.60s: this option was removed; %s", source, row->name,
                              shown ? "=" : "", shown ? shown : "", row->instead);
    cJSON_free(text);
    return status;
}

enum status unknown_option(const char *source, const char *full_name, const cJSON *value) {
    const char *dot = strrchr(full_name, '.'), *key = dot ? dot + 1 : full_name;
    const struct gone *gone = dot ? gone_option(full_name) : gone_option_called(key);
    if (gone)
        return gone_name(source, gone, value);
    if (section_exists(full_name, strlen(full_name)))
        return section_as_option(source, full_name, value);
    const struct option *around = option_around(full_name);
    if (around)
        return inside_option(source, full_name, around);
    // Options of the same section are tried first.
    const size_t section_length = dot ? (size_t)(dot - full_name) : 0;
    const struct option *nearest = dot ? option_with_words(key, full_name, section_length) : NULL;
    const struct foreign *row = dot && !nearest ? find(full_name, strlen(full_name), false, false) : NULL;
    for (int i = 0; i < n_options && !nearest && !row; i++)
        if (strcmp(options[i].name, key) == 0)
            return misplaced(source, full_name, &options[i]);
    if (!nearest && !row)
        row = foreign_find(full_name);
    if (row)
        return foreign_name(source, "option", full_name, value, row);
    if (!nearest && dot)
        nearest = nearest_option(key, full_name, section_length);
    if (!nearest)
        nearest = option_joined(key);
    if (!nearest)
        nearest = nearest_option(key, NULL, 0);
    if (nearest)
        return FAIL(STATUS_INVALID, "%s: unknown option %s; did you mean %s?", source, full_name,
                    option_full_name(nearest));
    return FAIL(STATUS_INVALID, "%s: unknown option %s; ./train options lists them all", source, full_name);
}

const char *unknown_word(const struct option *option, const char *word) {
    static const char *const theirs[][2] = {{"wsd", "warmup-stable-decay"},
                                            {"trapezoidal", "warmup-stable-decay"}};
    for (int i = 0; i < option->n_choices; i++) { // a word may begin with ours: cosine_with_min_lr
        const char *ours = option->choices[i];
        const size_t length = strlen(ours);
        if (strncmp(word, ours, length) == 0 && word[length] == '_')
            return ours;
        for (size_t k = 0; k < sizeof theirs / sizeof *theirs; k++)
            if (strcmp(word, theirs[k][0]) == 0 && strcmp(ours, theirs[k][1]) == 0)
                return ours;
    }
    return text_nearest(word, option->choices, option->n_choices);
}

enum status unknown_section(const char *source, const char *name, const cJSON *value) {
    const struct foreign *row = foreign_find(name);
    if (row)
        return foreign_name(source, "section", name, value, row);
    const char *nearest = nearest_section(name);
    if (nearest)
        return FAIL(STATUS_INVALID, "%s: unknown section %s; did you mean %s?", source, name, nearest);
    struct text list = {0};
    for (int i = 0; i < section_count(); i++)
        if (!section_is_top(section_name(i)))
            text_add(&list, "%s%s", list.length ? ", " : "", section_name(i));
    enum status status =
        FAIL(STATUS_INVALID, "%s: unknown section %s, expected one of %s", source, name, list.data);
    text_free(&list);
    return status;
}
