// See trainer/data/input_files.h. A list has a line "OPTION\tBYTES\tPATH" for each file.
#include "trainer/data/input_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// In place of a size.
#define ABSENT  (-1) // or not readable
#define PRESENT (-2)

static long long bytes_of(const char *path, bool sized) {
    struct stat info;
    if (stat(path, &info) != 0 || access(path, R_OK) != 0)
        return ABSENT;
    return sized ? (long long)info.st_size : PRESENT;
}

void input_files_add(struct text *files, const char *option, const char *pattern, bool sized) {
    struct file_list found = {0};
    if (file_glob(&found, pattern) != STATUS_OK) {
        status_clear();
        file_list_add(&found, pattern);
    }
    for (int i = 0; i < found.n_paths; i++)
        text_add(files, "%s\t%lld\t%s\n", option, bytes_of(found.paths[i], sized), found.paths[i]);
    file_list_free(&found);
}

static void add_sources(struct text *files, const char *option, const struct config_sources *sources) {
    for (int i = 0; i < sources->n; i++)
        for (int k = 0; k < sources->list[i].files.n_paths; k++)
            input_files_add(files, option, sources->list[i].files.paths[k], false);
}

void input_files_add_config(struct text *files, const struct config *config) {
    add_sources(files, "data.train", &config->data.train);
    add_sources(files, "data.val", &config->data.val);
    if (config->data.tokenizer[0])
        input_files_add(files, "data.tokenizer", config->data.tokenizer, false);
    for (int i = 0; i < config->eval.tasks.n_paths; i++) { // KIND=FILE
        const char *file = strchr(config->eval.tasks.paths[i], '=');
        if (file)
            input_files_add(files, "eval.tasks", file + 1, false);
    }
}

static const char *state_of(long long bytes, char text[48]) {
    snprintf(text, 48,
             bytes == ABSENT    ? "is missing"
             : bytes == PRESENT ? "is there"
                                : "has %lld bytes",
             bytes);
    return text;
}

static enum status refuse(const char *option, const char *path, long long bytes_here, long long bytes_there,
                          const char *here, const char *there) {
    char on_this[48], on_rank_0[48];
    const int host = (int)strcspn(here, ":");
    return FAIL(
        STATUS_INVALID,
        "%s: %.*s%s %s, but on rank 0 (%.*s) it %s; every rank must see the same files at the same paths",
        option, path[0] == '/' ? host + 1 : (int)strlen(here), here, path, state_of(bytes_here, on_this),
        (int)strcspn(there, ":"), there, state_of(bytes_there, on_rank_0));
}

enum status input_files_compare(const struct text *mine, const struct text *of_rank_0, const char *here,
                                const char *there) {
    const struct text *const lists[] = {of_rank_0, mine};
    for (int i = 0; i < 2; i++) {
        const struct text *other = lists[1 - i];
        for (const char *line = lists[i]->data, *end; line && (end = strchr(line, '\n')); line = end + 1) {
            char option[32], path[4096];
            long long listed;
            if (memmem(other->data, other->length, line, (size_t)(end + 1 - line)) ||
                sscanf(line, "%31[^\t]\t%lld\t%4095[^\n]", option, &listed, path) != 3)
                continue;
            // What only this rank lists is not on rank 0: what is there with another size was found before.
            const long long found = i == 0 ? bytes_of(path, listed >= 0) : ABSENT;
            if (listed != found)
                return i == 0 ? refuse(option, path, found, listed, here, there)
                              : refuse(option, path, listed, found, here, there);
        }
    }
    return STATUS_OK;
}
