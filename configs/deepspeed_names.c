// DeepSpeed's names are those of foreign.def's rows, those that our options share, and a few that the
// translation reads itself.
#include "configs/deepspeed_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "configs/foreign.h"

// Names that the translation reads and no row has.
static const char *const read_by_translation[] = {
    "optimizer.type",       "optimizer.params.lr",           "optimizer.params.betas",
    "optimizer.params.eps", "optimizer.params.weight_decay", "optimizer.params.momentum",
    "scheduler.type",       "torch_autocast.enabled",        "torch_autocast.dtype",
};
enum { N_READ = sizeof read_by_translation / sizeof *read_by_translation };

const struct option *deepspeed_same_option(const char *path) {
    const struct option *option = option_find(path);
    if (!option)
        return NULL;
    const bool shared = strncmp(path, "zero_optimization.", 18) == 0 || strncmp(path, "fp16.", 5) == 0 ||
                        strcmp(path, "communication_data_type") == 0;
    return shared ? option : NULL;
}

// ---- all names

enum { MOST_NAMES = 1024, LONGEST_NAME = 128 };

// Calls `visit` for each name, until it returns true; returns whether it did.
typedef bool name_visitor(void *context, const char *path, size_t length);
static bool visit_names(name_visitor *visit, void *context) {
    for (int i = 0; i < n_foreigns; i++)
        for (const char *p = foreigns[i].names; foreign_is_deepspeed(&foreigns[i]) && *p;) {
            const size_t length = strcspn(p, " ");
            if (visit(context, p, length))
                return true;
            p += length + (p[length] == ' ');
        }
    for (int i = 0; i < n_options; i++) {
        const char *path = option_full_name(&options[i]);
        if (deepspeed_same_option(path) && visit(context, path, strlen(path)))
            return true;
    }
    for (int i = 0; i < N_READ; i++)
        if (visit(context, read_by_translation[i], strlen(read_by_translation[i])))
            return true;
    return false;
}

struct names {
    char *paths[MOST_NAMES]; // owned
    int n;
};

static bool add_name(void *context, const char *path, size_t length) {
    struct names *names = context;
    if (length >= LONGEST_NAME || path[length - 1] == '*')
        return false;
    names->paths[names->n] = strndup(path, length);
    names->n += names->paths[names->n] != NULL;
    return names->n == MOST_NAMES;
}

// Without memory the list is empty, which costs a suggestion.
static struct names *list_names(void) {
    struct names *names = calloc(1, sizeof *names);
    if (names)
        visit_names(add_name, names);
    return names;
}

static void free_names(struct names *names) {
    for (int i = 0; names && i < names->n; i++)
        free(names->paths[i]);
    free(names);
}

static const char *last_component(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

// ---- questions

static bool is_inside(void *section, const char *path, size_t length) {
    const size_t own = strlen(section);
    return length > own && memcmp(path, section, own) == 0 && path[own] == '.';
}

bool deepspeed_is_section(const char *path) {
    char section[LONGEST_NAME];
    snprintf(section, sizeof section, "%s", path);
    return visit_names(is_inside, section);
}

static bool is_read_by_translation(const char *path) {
    for (int i = 0; i < N_READ; i++)
        if (strcmp(path, read_by_translation[i]) == 0)
            return true;
    return false;
}

bool deepspeed_is_our_word(const struct option *option, const cJSON *value) {
    for (int i = 0; cJSON_IsString(value) && i < option->n_choices; i++)
        if (strcmp(option->choices[i], value->valuestring) == 0)
            return true;
    return false;
}

// Whether a member of a section that both have, such as optimizer.lr, is only ours; or the name of a
// schedule.
static bool is_own_member(const char *section, const cJSON *item) {
    char path[LONGEST_NAME];
    snprintf(path, sizeof path, "%s.%s", section, item->string);
    const struct option *option = option_find(path);
    if (!option || deepspeed_same_option(path))
        return false;
    if (is_read_by_translation(path))
        return strcmp(path, "scheduler.type") == 0 && deepspeed_is_our_word(option, item);
    return !foreign_find_deepspeed(path);
}

bool deepspeed_is_ours(const cJSON *root) {
    int n_own = 0;
    const cJSON *item, *member;
    cJSON_ArrayForEach(item, root) {
        const char *name = item->string;
        const bool theirs =
            foreign_find_deepspeed(name) || deepspeed_is_section(name) || deepspeed_same_option(name);
        const bool ours = section_exists(name, strlen(name)) || option_find(name);
        if (theirs && !ours)
            return false;
        n_own += ours && !theirs;
        if (theirs && cJSON_IsObject(item))
            cJSON_ArrayForEach(member, item) n_own += is_own_member(name, member);
    }
    return n_own > 0;
}

// ---- the nearest name

// The nearest name in the same section, in `out` of LONGEST_NAME bytes; NULL if none is near.
static const char *nearest_sibling(const struct names *names, const char *path, char *out) {
    const char *key = last_component(path);
    const size_t prefix = (size_t)(key - path);
    char(*components)[LONGEST_NAME] = calloc(MOST_NAMES, sizeof *components);
    const char *list[MOST_NAMES];
    int n = 0;
    for (int i = 0; components && i < names->n; i++) {
        const char *rest = names->paths[i] + prefix;
        if (strncmp(names->paths[i], path, prefix) != 0 || !*rest)
            continue;
        snprintf(components[n], LONGEST_NAME, "%.*s", (int)strcspn(rest, "."), rest);
        list[n] = components[n], n++;
    }
    const char *nearest = text_nearest(key, list, n);
    snprintf(out, LONGEST_NAME, "%.*s%s", (int)prefix, path, nearest ? nearest : "");
    free(components);
    return nearest ? out : NULL;
}

// The name whose last component is `key`, or near to it; NULL if there is none.
static const char *find_elsewhere(const struct names *names, const char *key, bool near) {
    const char *list[MOST_NAMES];
    for (int i = 0; i < names->n; i++)
        list[i] = last_component(names->paths[i]);
    const char *wanted = near ? text_nearest(key, list, names->n) : key;
    for (int i = 0; wanted && i < names->n; i++)
        if (strcmp(list[i], wanted) == 0)
            return names->paths[i];
    return NULL;
}

static const char *find_ours(const char *key) {
    for (int i = 0; i < n_options; i++)
        if (strcmp(options[i].name, key) == 0)
            return option_full_name(&options[i]);
    return NULL;
}

void deepspeed_add_nearest(const char *path, struct text *out) {
    char sibling[LONGEST_NAME];
    const char *key = last_component(path), *ours = option_find(path) ? path : find_ours(key), *theirs = NULL;
    struct names *names = option_find(path) ? NULL : list_names();
    if (names && strlen(path) < LONGEST_NAME)
        theirs = nearest_sibling(names, path, sibling);
    if (names && !theirs)
        theirs = find_elsewhere(names, key, false);
    if (names && !theirs && !ours)
        theirs = find_elsewhere(names, key, true);
    if (theirs)
        text_add(out, "; did you mean %s?", theirs);
    else if (ours)
        text_add(out, "; %s is an option here, to be set in the translated file", ours);
    free_names(names);
}

bool deepspeed_is_misspelled(const char *path) {
    char section[LONGEST_NAME], sibling[LONGEST_NAME];
    const char *key = last_component(path);
    const struct foreign *row = foreign_find_deepspeed(path);
    if (!row || key == path || strlen(path) >= LONGEST_NAME)
        return false;
    snprintf(section, sizeof section, "%.*s", (int)(key - path) - 1, path);
    if (row != foreign_find_deepspeed(section))
        return false;
    struct names *names = list_names();
    const bool misspelled = names && nearest_sibling(names, path, sibling) && strcmp(sibling, path) != 0;
    free_names(names);
    return misspelled;
}
