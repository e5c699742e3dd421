// The folder of a run's checkpoints: listing them, choosing the newest good one, pruning, and clearing away
// what killed writers and other runs left. Relies on the names alone: step-N is a checkpoint, anything else
// is not.
#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "zero/checkpoint.h"
#include "zero/manifest.h"

char *checkpoint_path(const char *checkpoints_folder, int64_t step) {
    return file_path("%s/step-%08" PRId64, checkpoints_folder, step);
}

bool checkpoint_is_folder(const char *path) {
    char *manifest = file_path("%s/" MANIFEST_NAME, path);
    bool is = manifest && file_exists(manifest);
    free(manifest);
    return is;
}

// The step of a folder's name, or -1 when it is no checkpoint's.
static int64_t step_of(const char *name) {
    static const char prefix[] = "step-";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return -1;
    const char *digits = name + sizeof prefix - 1;
    size_t length = strlen(digits);
    if (length < 8 || length > 15 || strspn(digits, "0123456789") != length)
        return -1;
    return strtoll(digits, NULL, 10);
}

static int compare_steps(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

enum status checkpoint_list(const char *checkpoints_folder, int64_t **steps, int *n_steps) {
    *steps = NULL;
    *n_steps = 0;
    if (!file_is_folder(checkpoints_folder))
        return STATUS_OK;
    struct file_list names = {0};
    TRY(file_list_folder(&names, checkpoints_folder));
    *steps = malloc(((size_t)names.n_paths + 1) * sizeof **steps);
    for (int i = 0; *steps && i < names.n_paths; i++) {
        int64_t step = step_of(names.paths[i]);
        if (step >= 0)
            (*steps)[(*n_steps)++] = step;
    }
    file_list_free(&names);
    if (!*steps)
        return FAIL(STATUS_FAILED, "out of memory while listing %s", checkpoints_folder);
    qsort(*steps, (size_t)*n_steps, sizeof **steps, compare_steps);
    return STATUS_OK;
}

bool checkpoint_holds_steps(const char *path) {
    int64_t *steps;
    int n_steps;
    enum status status = checkpoint_list(path, &steps, &n_steps);
    free(steps);
    return status == STATUS_OK && n_steps > 0;
}

static enum status open_step(struct comm *comm, const char *checkpoints_folder, int64_t step,
                             struct checkpoint **out) {
    *out = NULL;
    char *path = checkpoint_path(checkpoints_folder, step);
    if (!path)
        return STATUS_FAILED;
    enum status status = checkpoint_open(comm, path, out);
    free(path);
    return status;
}

enum status checkpoint_open_newest(struct comm *comm, const char *checkpoints_folder,
                                   struct checkpoint **out) {
    *out = NULL;
    int64_t *steps;
    int n_steps;
    TRY(checkpoint_list(checkpoints_folder, &steps, &n_steps));
    enum status status = STATUS_OK;
    for (int i = n_steps - 1; i >= 0; i--) {
        status = open_step(comm, checkpoints_folder, steps[i], out);
        if (status != STATUS_INVALID)
            break;
        log_warning("damaged checkpoint: %s%s", status_message(), i > 0 ? "; trying the one before it" : "");
        status_clear();
        if (i == 0)
            status = FAIL(
                STATUS_INVALID,
                "%s: no good checkpoint: %d found, all damaged (see the warnings above); restore one from "
                "a copy, or move the folder away to start anew",
                checkpoints_folder, n_steps);
    }
    free(steps);
    return status;
}

enum status checkpoint_open_path(struct comm *comm, const char *path, struct checkpoint **out) {
    *out = NULL;
    if (!file_exists(path))
        return FAIL(STATUS_INVALID, "%s: does not exist; expected a run folder or a checkpoint folder", path);
    if (checkpoint_is_folder(path))
        return checkpoint_open(comm, path, out);
    char *folder = file_path("%s/checkpoints", path);
    if (!folder)
        return STATUS_FAILED;
    // The folder of checkpoints itself is what tab completion often stops at.
    enum status status = checkpoint_open_newest(comm, file_is_folder(folder) ? folder : path, out);
    free(folder);
    if (status == STATUS_OK && !*out)
        return FAIL(
            STATUS_INVALID,
            "%s: holds no checkpoint: expected a run folder (with checkpoints/step-N in it) or a checkpoint "
            "folder (with " MANIFEST_NAME " in it)",
            path);
    return status;
}

enum status checkpoint_prune(const char *checkpoints_folder, int64_t keep, int64_t step) {
    if (keep <= 0)
        return STATUS_OK;
    int64_t *steps;
    int n_steps;
    TRY(checkpoint_list(checkpoints_folder, &steps, &n_steps));
    while (n_steps > 0 && steps[n_steps - 1] > step)
        n_steps--;
    enum status status = STATUS_OK;
    for (int i = 0; i < n_steps - keep && status == STATUS_OK; i++) {
        char *path = checkpoint_path(checkpoints_folder, steps[i]);
        status = path ? file_remove_tree(path) : STATUS_FAILED;
        free(path);
    }
    free(steps);
    return status;
}

enum status checkpoint_remove_stale(const char *checkpoints_folder) {
    if (!file_is_folder(checkpoints_folder))
        return STATUS_OK;
    DIR *folder = opendir(checkpoints_folder);
    if (!folder)
        return FAIL(STATUS_INVALID, "%s: cannot be listed; check its permissions", checkpoints_folder);
    enum status status = STATUS_OK;
    for (struct dirent *entry; status == STATUS_OK && (entry = readdir(folder));) {
        if (strncmp(entry->d_name, ".tmp-", 5) != 0)
            continue;
        char *path = file_path("%s/%s", checkpoints_folder, entry->d_name);
        status = path ? file_remove_tree(path) : STATUS_FAILED;
        free(path);
    }
    closedir(folder);
    return status;
}

static enum status set_aside(const char *checkpoints_folder, int64_t step) {
    char *from = checkpoint_path(checkpoints_folder, step);
    char *to = file_path("%s/set-aside-step-%08" PRId64, checkpoints_folder, step);
    for (int again = 1; to && file_exists(to); again++) {
        free(to);
        to = file_path("%s/set-aside-step-%08" PRId64 "-%d", checkpoints_folder, step, again);
    }
    enum status status = from && to ? file_rename(from, to) : STATUS_FAILED;
    if (status == STATUS_OK)
        log_info("%s is later than where this run goes on: it is now called %s", from, to);
    free(to);
    free(from);
    return status;
}

enum status checkpoint_set_aside_later(const char *checkpoints_folder, int64_t step) {
    int64_t *steps;
    int n_steps;
    TRY(checkpoint_list(checkpoints_folder, &steps, &n_steps));
    enum status status = STATUS_OK;
    for (int i = n_steps - 1; i >= 0 && steps[i] > step && status == STATUS_OK; i--)
        status = set_aside(checkpoints_folder, steps[i]);
    free(steps);
    return status;
}
