// Checks before a command overwrites a user's file.
#include "base/overwrite.h"

#include <string.h>
#include <sys/stat.h>

#include "base/file.h"

#define START_BYTES 4096

bool overwrite_has_words(const char *path, const char *words) {
    char start[START_BYTES];
    return memmem(start, file_read_start(path, sizeof start, start), words, strlen(words));
}

enum status overwrite_check(const struct overwrite *overwrite, const char *path) {
    const char *instead =
        overwrite->instead ? overwrite->instead : "choose another place with --out, or add --force";
    struct stat there;
    TRY(file_check_replaced(path));
    if (overwrite->force || stat(path, &there) != 0)
        return STATUS_OK;
    for (int i = 0; i < overwrite->n_inputs; i++)
        if (file_is_same(overwrite->inputs[i], path))
            return FAIL(STATUS_INVALID, "%s: would overwrite its input %s; %s", overwrite->writer, path,
                        instead);
    if (there.st_size == 0 || (overwrite->is_kind && overwrite->is_kind(path)))
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s: would overwrite %s, which exists%s%s; %s", overwrite->writer, path,
                overwrite->is_kind ? " and is not " : "", overwrite->is_kind ? overwrite->kind : "", instead);
}
