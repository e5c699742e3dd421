// See cli/overwrite.h.
#include "cli/overwrite.h"

#include <sys/stat.h>

enum status overwrite_check(const struct overwrite *overwrite, const char *path) {
    struct stat there, input;
    if (stat(path, &there) != 0 || !S_ISREG(there.st_mode)) // writing reports what is wrong with others
        return STATUS_OK;
    for (int i = 0; i < overwrite->n_inputs; i++)
        if (stat(overwrite->inputs[i], &input) == 0 && input.st_dev == there.st_dev &&
            input.st_ino == there.st_ino)
            return FAIL(
                STATUS_INVALID,
                "train %s: would overwrite its input %s; choose another place with --out, or add --force",
                overwrite->command, path);
    if (there.st_size == 0 || overwrite->is_kind(path))
        return STATUS_OK;
    return FAIL(
        STATUS_INVALID,
        "train %s: would overwrite %s, which exists and is not %s; choose another place with --out, or "
        "add --force",
        overwrite->command, path, overwrite->kind);
}
