// See trainer/data/input_files.h. A list has one line "OPTION\tSTATE\tPATH" per file.
#include "trainer/data/input_files.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define END_BYTES 65536 // bytes from the start and from the end of a file that its checksum covers

// Describes the state of a file: "is missing", "is there" or, if `checked`, its size and a checksum. The
// checksum covers only the first and last bytes. That is enough to tell two versions of weights apart,
// because training changes weights everywhere.
//   text   memory for the result
static const char *state_of(const char *path, bool checked, char text[64]) {
    static char ends[2 * END_BYTES];
    int descriptor;
    uint64_t bytes = 0;
    if (access(path, R_OK) != 0)
        return "is missing";
    if (!checked || file_open_regular(path, O_RDONLY, &descriptor) != STATUS_OK) {
        status_clear();
        return "is there";
    }
    const off_t end = lseek(descriptor, 0, SEEK_END);
    bytes = end > 0 ? (uint64_t)end : 0;
    const size_t n = bytes < END_BYTES ? (size_t)bytes : END_BYTES;
    const bool is_read =
        file_read_at(descriptor, 0, n, ends) == 0 && file_read_at(descriptor, bytes - n, n, ends + n) == 0;
    close(descriptor);
    snprintf(text, 64, "has %llu bytes, checksum %016llx", (unsigned long long)bytes,
             is_read ? (unsigned long long)XXH3_64bits(ends, 2 * n) : 0);
    return text;
}

void input_files_add(struct text *files, const char *option, const char *pattern, bool checked) {
    struct file_list found = {0};
    char state[64];
    if (file_glob(&found, pattern) != STATUS_OK) {
        status_clear();
        file_list_add(&found, pattern);
    }
    for (int i = 0; i < found.n_paths; i++)
        text_add(files, "%s\t%s\t%s\n", option, state_of(found.paths[i], checked, state), found.paths[i]);
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
    for (int i = 0; i < config->eval.tasks.n_paths; i++) { // each is KIND=FILE
        const char *file = strchr(config->eval.tasks.paths[i], '=');
        if (file)
            input_files_add(files, "eval.tasks", file + 1, false);
    }
}

enum status input_files_compare(const struct text *mine, const struct text *of_rank_0) {
    const int host = (int)strcspn(mine->data, ":"), folder = (int)strcspn(mine->data, "\n");
    for (int i = 0; i < 2; i++) { // first all files in rank 0's list, then those that only this rank has
        const struct text *list = i == 0 ? of_rank_0 : mine, *other = i == 0 ? mine : of_rank_0;
        for (const char *line = strchr(list->data, '\n') + 1, *end; (end = strchr(line, '\n'));
             line = end + 1) {
            char option[32], listed[64], path[4096], state[64];
            if (memmem(other->data, other->length, line, (size_t)(end + 1 - line)) ||
                sscanf(line, "%31[^\t\n]\t%63[^\t\n]\t%4095[^\n]", option, listed, path) != 3)
                continue;
            const char *here = i == 0 ? state_of(path, listed[0] == 'h', state) : listed,
                       *there = i == 0 ? listed : "is missing";
            if (strcmp(here, there) != 0)
                return FAIL(
                    STATUS_INVALID,
                    "%s: %.*s%s %s, but on rank 0 (%.*s) it %s; every rank must see the same files at "
                    "the same paths",
                    option, path[0] == '/' ? host + 1 : folder, mine->data, path, here,
                    (int)strcspn(of_rank_0->data, ":"), of_rank_0->data, there);
        }
    }
    return STATUS_OK;
}
