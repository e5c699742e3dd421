// The tables of other trainers' names and of what is gone, and their lookups.
#include "options/foreign.h"

#include <stdio.h>
#include <string.h>

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

// Whether one of the row's names equals `name`, or begins it and ends in *. last: compare only the names'
// last components.
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

// The row of the whole name, else that of the innermost section around it.
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
    for (char *p = name + 1; name[0] && *p; p++) // learning-rate; llm.c's flags begin with their dash
        *p = *p == '-' ? '_' : *p;
    const struct foreign *row = find_with_sections(name, false);
    const char *dot = strrchr(name, '.'), *own = dot ? dot + 1 : name;
    const bool says_little = strcmp(own, "enabled") == 0 || strcmp(own, "name") == 0; // without its section
    return row || says_little ? row : find(own, strlen(own), true, false);
}

const struct foreign *foreign_find_whole(const char *full_name) {
    return find(full_name, strlen(full_name), false, false);
}

const struct foreign *foreign_find_deepspeed(const char *path) {
    return find_with_sections(path, true);
}

// The advice for a feature that is off, where our option has the value `value`, such as bf16, if it is on.
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

void foreign_add_advice(const struct foreign *row, bool off, struct text *out) {
    const char *equals = row->kind == FOREIGN_OURS ? strchr(row->ours, '=') : NULL;
    if (equals && off && strncmp(row->note, "for ", 4) != 0) // a note may say for which value the row is
        add_advice_off(row, equals + 1, out);
    else if (row->kind == FOREIGN_OURS)
        text_add(out, *row->note ? "here it is %s (%s)" : "here it is %s", row->ours, row->note);
    else
        text_add(out, "%s; leave it out", row->note);
}

void foreign_add_programs(const struct foreign *row, struct text *out) {
    const char *last = strrchr(row->program, ',');
    if (last)
        text_add(out, "%.*s or%s", (int)(last - row->program), row->program, last + 1);
    else
        text_add(out, "%s", row->program);
}

// ---- what is gone

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
                if (strcspn(p, " ") == length && memcmp(p, word, length) == 0)
                    return gones[i].instead;
    return NULL;
}

enum status gone_command(int n_args, char *const *args) {
    for (int i = 0; i < n_gones; i++) {
        const char *name = gones[i].name;
        const size_t first = strcspn(name, " ");
        const char *second = name[first] ? name + first + 1 : NULL; // a flag may be anywhere
        const int last = second && *second == '-' ? n_args : n_args < 2 ? n_args : 2;
        if (gones[i].kind != GONE_COMMANDS || strncmp(args[0], name, first) != 0 || args[0][first])
            continue;
        for (int k = second ? 1 : 0; k < last; k++)
            if (!second || strcmp(args[k], second) == 0)
                return FAIL(STATUS_INVALID, "train %s is not there any more; %s", name, gones[i].instead);
    }
    return STATUS_OK;
}
