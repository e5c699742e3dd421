// The folder of a run's checkpoints. Lists them, chooses the newest good one (rank 0 chooses for all), prunes
// old ones, and removes what killed writers and other runs left behind. Only the name makes a folder a
// checkpoint: step-N is one, anything else is not.
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/log.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/checkpoint/manifest.h"
#include "zero/checkpoint/ranks.h"

#define STEP_FORMAT "step-%08" PRId64
#define BEST_NAME   "best"

char *checkpoint_path(const char *checkpoints_folder, int64_t step) {
    return file_path("%s/" STEP_FORMAT, checkpoints_folder, step);
}

bool checkpoint_is_folder(const char *path) {
    enum checkpoint_path_kind kind;
    char *manifest = file_path("%s/" MANIFEST_NAME, path);
    bool known = checkpoint_path_look(manifest, &kind) == STATUS_OK;
    free(manifest);
    if (!known)
        status_clear();
    return !known || kind != CHECKPOINT_PATH_ABSENT;
}

// ---- listing checkpoints

#define MOST_DIGITS 15 // maximum digits of a step

// Returns the step in a folder's name, or -1 if the folder is not a checkpoint. Only the name that
// checkpoint_path writes counts. If step-7 counted too, it could be chosen and step-00000007 be opened.
static int64_t step_of(const char *name) {
    static const char prefix[] = "step-";
    char canonical[sizeof prefix + MOST_DIGITS + 8];
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return -1;
    const char *digits = name + sizeof prefix - 1;
    size_t length = strlen(digits);
    if (length > MOST_DIGITS || strspn(digits, "0123456789") != length)
        return -1;
    int64_t step = strtoll(digits, NULL, 10);
    snprintf(canonical, sizeof canonical, STEP_FORMAT, step);
    return strcmp(name, canonical) == 0 ? step : -1;
}

static int compare_steps(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

// Calls `visit` with each name in the folder. An absent folder has none. An error of readdir is a failure,
// not the end of the list.
static enum status visit_names(const char *folder, enum status (*visit)(void *context, const char *name),
                               void *context) {
    enum checkpoint_path_kind kind;
    TRY(checkpoint_path_look(folder, &kind));
    if (kind != CHECKPOINT_PATH_FOLDER)
        return STATUS_OK;
    DIR *stream = opendir(folder);
    if (!stream)
        return FAIL(STATUS_FAILED, "%s: cannot be listed: %s", folder, strerror(errno));
    enum status status = STATUS_OK;
    struct dirent *entry;
    while (errno = 0, status == STATUS_OK && (entry = readdir(stream)))
        status = visit(context, entry->d_name);
    if (status == STATUS_OK && errno != 0)
        status = FAIL(STATUS_FAILED, "%s: cannot be listed: %s", folder, strerror(errno));
    closedir(stream);
    return status;
}

struct step_list {
    int64_t *steps;
    int n, capacity;
};

static enum status add_listed_step(void *context, const char *name) {
    struct step_list *list = context;
    int64_t step = step_of(name);
    if (step < 0)
        return STATUS_OK;
    RESERVE(list->steps, list->n + 1, list->capacity);
    list->steps[list->n++] = step;
    return STATUS_OK;
}

enum status checkpoint_list(const char *checkpoints_folder, int64_t **steps, int *n_steps) {
    struct step_list list = {0};
    *steps = NULL;
    *n_steps = 0;
    enum status status = visit_names(checkpoints_folder, add_listed_step, &list);
    if (status != STATUS_OK) {
        free(list.steps);
        return status;
    }
    if (list.n > 0)
        qsort(list.steps, (size_t)list.n, sizeof *list.steps, compare_steps);
    *steps = list.steps;
    *n_steps = list.n;
    return STATUS_OK;
}

bool checkpoint_holds_steps(const char *path) {
    int64_t *steps;
    int n_steps;
    enum status status = checkpoint_list(path, &steps, &n_steps);
    free(steps);
    if (status != STATUS_OK)
        status_clear();
    return status != STATUS_OK || n_steps > 0;
}

// ---- choosing a checkpoint

// The checkpoint that rank 0 chose, which it broadcasts.
struct step_choice {
    int64_t step;            // -1: there is no further checkpoint to try
    int64_t n_listed;        // number of checkpoints that rank 0 has found
    char place[RANKS_PLACE]; // the folder, as rank 0 sees it
};

// Call it on the other ranks if rank 0 has found no checkpoint. Fails if this rank finds one, because it then
// looks at another folder than rank 0.
static enum status check_none_here(const char *checkpoints_folder, const struct step_choice *choice) {
    int64_t *steps;
    int n_steps;
    TRY(checkpoint_list(checkpoints_folder, &steps, &n_steps));
    int64_t newest = n_steps > 0 ? steps[n_steps - 1] : -1;
    free(steps);
    if (newest < 0)
        return STATUS_OK;
    char place[RANKS_PLACE];
    ranks_describe_place(checkpoints_folder, place);
    return FAIL(STATUS_FAILED,
                "%s holds " STEP_FORMAT
                ", but rank 0 finds no checkpoint in %s; run.dir must be a folder that all machines share",
                place, newest, choice->place);
}

bool checkpoint_is_gone(const char *path) {
    struct stat information;
    return stat(path, &information) != 0 && errno == ENOENT;
}

enum status checkpoint_fail_gone(const char *path) {
    return FAIL(STATUS_FAILED,
                "%s: the run that writes there removed each checkpoint before it could be read; raise its "
                "checkpoint.keep, or wait until the run ends",
                path);
}

// Opens a checkpoint of rank 0's list.
//   gone   [out] true if the checkpoint was removed meanwhile, which is not a failure
static enum status open_listed(struct comm *comm, const char *path, struct checkpoint **out, int *gone) {
    enum status status = checkpoint_open(comm, path, out);
    *gone = status != STATUS_OK && ranks_is_root(comm) && checkpoint_is_gone(path);
    if (status != STATUS_OK)
        TRY(ranks_broadcast(comm, gone, sizeof *gone));
    if (*gone)
        status_clear();
    return *gone ? STATUS_OK : status;
}

// Tries to open the checkpoints of rank 0's list on all ranks, newest first. Rank 0 broadcasts each choice,
// so that all ranks issue the same collectives.
//   gone   [out] true if a listed checkpoint was removed meanwhile
static enum status open_chosen(struct comm *comm, const char *checkpoints_folder, const int64_t *steps,
                               int n_steps, struct checkpoint **out, int *gone) {
    struct step_choice choice = {.n_listed = n_steps};
    ranks_describe_place(checkpoints_folder, choice.place);
    for (int n_damaged = 0;; n_damaged++) {
        choice.step = n_damaged < n_steps ? steps[n_steps - 1 - n_damaged] : -1;
        TRY(ranks_broadcast(comm, &choice, sizeof choice));
        if (choice.n_listed == 0)
            return ranks_agree(comm, ranks_is_root(comm) ? STATUS_OK
                                                         : check_none_here(checkpoints_folder, &choice));
        if (choice.step < 0)
            return FAIL(STATUS_INVALID,
                        "%s: no good checkpoint: %" PRId64
                        " found, all damaged (see the warnings above); restore one from a backup, or move "
                        "the folder away to start over",
                        checkpoints_folder, choice.n_listed);
        char *path = checkpoint_path(checkpoints_folder, choice.step);
        enum status status = open_listed(comm, path, out, gone);
        free(path);
        if (status != STATUS_INVALID)
            return status;
        if (ranks_is_root(comm))
            log_warning("damaged checkpoint: %s%s", status_message(),
                        n_damaged + 1 < choice.n_listed ? "; trying the one before it" : "");
        status_clear();
    }
}

enum status checkpoint_open_newest(struct comm *comm, const char *checkpoints_folder,
                                   struct checkpoint **out) {
    *out = NULL;
    for (int lists = 0; lists < CHECKPOINT_LISTS; lists++) {
        int64_t *steps = NULL;
        int n_steps = 0, gone = false;
        enum status status =
            ranks_is_root(comm) ? checkpoint_list(checkpoints_folder, &steps, &n_steps) : STATUS_OK;
        status = ranks_agree(comm, status);
        if (status == STATUS_OK)
            status = open_chosen(comm, checkpoints_folder, steps, n_steps, out, &gone);
        free(steps);
        if (!gone)
            return status;
    }
    return checkpoint_fail_gone(checkpoints_folder);
}

enum status checkpoint_require_none(struct comm *comm, const char *checkpoints_folder) {
    struct step_choice choice = {.step = -1};
    enum status status = STATUS_OK;
    ranks_describe_place(checkpoints_folder, choice.place);
    if (ranks_is_root(comm)) {
        int64_t *steps;
        int n_steps;
        status = checkpoint_list(checkpoints_folder, &steps, &n_steps);
        free(steps);
        if (status == STATUS_OK && n_steps > 0)
            status = FAIL(STATUS_INVALID,
                          "checkpoint.resume is never, but %s holds %d checkpoint%s; set another run.dir, or "
                          "remove the folder",
                          checkpoints_folder, n_steps, n_steps == 1 ? "" : "s");
    }
    TRY(ranks_agree(comm, status));
    TRY(ranks_broadcast(comm, &choice, sizeof choice));
    return ranks_agree(comm, ranks_is_root(comm) ? STATUS_OK : check_none_here(checkpoints_folder, &choice));
}

// ---- opening a path from the command line

// What a path names: a checkpoint folder, a run folder, or a folder of step-N folders.
enum named { NAMED_CHECKPOINT, NAMED_RUN, NAMED_STEPS };

static enum status find_kind_of_path(const char *path, const char *checkpoints, int *named) {
    enum checkpoint_path_kind kind;
    TRY(checkpoint_path_look(path, &kind));
    if (kind == CHECKPOINT_PATH_ABSENT)
        return FAIL(STATUS_INVALID, "%s: does not exist; expected a run folder or a checkpoint folder", path);
    if (checkpoint_is_folder(path)) {
        *named = NAMED_CHECKPOINT;
        return STATUS_OK;
    }
    TRY(checkpoint_path_look(checkpoints, &kind));
    // Accept the checkpoints folder itself: tab completion often stops there.
    *named = kind == CHECKPOINT_PATH_FOLDER ? NAMED_RUN : NAMED_STEPS;
    return STATUS_OK;
}

static enum status open_named(struct comm *comm, const char *path, const char *checkpoints,
                              struct checkpoint **out) {
    int named = NAMED_CHECKPOINT;
    TRY(ranks_agree(comm, ranks_is_root(comm) ? find_kind_of_path(path, checkpoints, &named) : STATUS_OK));
    TRY(ranks_broadcast(comm, &named, sizeof named));
    if (named == NAMED_CHECKPOINT)
        return checkpoint_open(comm, path, out);
    TRY(checkpoint_open_newest(comm, named == NAMED_RUN ? checkpoints : path, out));
    if (*out)
        return STATUS_OK;
    return FAIL(
        STATUS_INVALID,
        "%s: contains no checkpoint: expected a run folder (with checkpoints/step-N in it) or a checkpoint "
        "folder (with " MANIFEST_NAME " in it)",
        path);
}

enum status checkpoint_open_path(struct comm *comm, const char *path, struct checkpoint **out) {
    *out = NULL;
    char *checkpoints = file_path("%s/checkpoints", path);
    enum status status = open_named(comm, path, checkpoints, out);
    free(checkpoints);
    return status;
}

// ---- the sizes of a model

static bool peek_checkpoint(const char *folder, struct gpt_config *model) {
    struct checkpoint checkpoint = {.path = (char *)(uintptr_t)folder};
    char *path = file_path("%s/" MANIFEST_NAME, folder), *json = NULL;
    size_t length;
    bool found = checkpoint_file_read_all(path, MANIFEST_MAX_BYTES, &json, &length) == STATUS_OK &&
                 manifest_parse(&checkpoint, json, length, path) == STATUS_OK;
    *model = checkpoint.params.config;
    if (!found)
        status_clear();
    free(json);
    free(path);
    checkpoint.path = NULL; // belongs to the caller
    checkpoint_clear(&checkpoint);
    return found;
}

static enum status peek_steps(const char *checkpoints_folder, struct gpt_config *model, bool *found) {
    bool gone = true;
    for (int lists = 0; lists < CHECKPOINT_LISTS && gone; lists++) {
        int64_t *steps;
        int n_steps;
        gone = false;
        TRY(checkpoint_list(checkpoints_folder, &steps, &n_steps));
        for (int i = n_steps - 1; i >= 0 && !*found && !gone; i--) {
            char *path = checkpoint_path(checkpoints_folder, steps[i]);
            *found = peek_checkpoint(path, model);
            gone = !*found && checkpoint_is_gone(path);
            free(path);
        }
        free(steps);
    }
    return STATUS_OK;
}

enum status checkpoint_peek(const char *path, struct gpt_config *model, bool *found) {
    *found = false;
    if (checkpoint_is_folder(path)) {
        *found = peek_checkpoint(path, model);
        return STATUS_OK;
    }
    char *inside = file_path("%s/checkpoints", path);
    enum status status = peek_steps(inside, model, found);
    if (status == STATUS_OK && !*found)
        status = peek_steps(path, model, found);
    free(inside);
    return status;
}

// ---- pruning checkpoints

static void remove_step(const char *checkpoints_folder, int64_t step) {
    char *path = checkpoint_path(checkpoints_folder, step),
         *removed = file_path("%s/.tmp-removed-" STEP_FORMAT, checkpoints_folder, step);
    if (file_rename(path, removed) == STATUS_OK) {
        file_remove_unneeded(removed);
    } else {
        log_warning_once("%s; removing it is tried again with the next checkpoint", status_message());
        status_clear();
    }
    free(removed);
    free(path);
}

void checkpoint_prune(const char *checkpoints_folder, int64_t keep, int64_t keep_every, int64_t step,
                      int64_t best) {
    int64_t *steps = NULL;
    int n_steps = 0;
    if (keep <= 0)
        return;
    enum status status = checkpoint_remove_stale(checkpoints_folder); // removes leftovers of earlier calls
    if (status == STATUS_OK)
        status = checkpoint_list(checkpoints_folder, &steps, &n_steps);
    if (status != STATUS_OK) {
        log_warning_once("%s; old checkpoints stay until the next checkpoint is written", status_message());
        status_clear();
    }
    while (n_steps > 0 && steps[n_steps - 1] > step)
        n_steps--;
    for (int i = 0; i < n_steps - keep; i++)
        if (steps[i] != best && (keep_every == 0 || steps[i] % keep_every != 0))
            remove_step(checkpoints_folder, steps[i]);
    free(steps);
}

// ---- the link to the best checkpoint

void checkpoint_name_best(const char *checkpoints_folder, int64_t step) {
    char name[32];
    char *link = file_path("%s/" BEST_NAME, checkpoints_folder),
         *temporary = file_path("%s/.tmp-" BEST_NAME, checkpoints_folder),
         *checkpoint = checkpoint_path(checkpoints_folder, step < 0 ? 0 : step);
    snprintf(name, sizeof name, STEP_FORMAT, step);
    bool named;
    if (step < 0 || !file_is_folder(checkpoint)) {
        named = unlink(link) == 0 || errno == ENOENT;
    } else { // replaced atomically: a reader always finds a link
        (void)unlink(temporary);
        named = symlink(name, temporary) == 0 && rename(temporary, link) == 0;
    }
    if (!named)
        log_warning("cannot update %s/" BEST_NAME ", the link to the best checkpoint: %s", checkpoints_folder,
                    strerror(errno));
    free(checkpoint);
    free(temporary);
    free(link);
}

int64_t checkpoint_find_best(const char *checkpoints_folder) {
    char name[64];
    char *link = file_path("%s/" BEST_NAME, checkpoints_folder);
    ssize_t length = readlink(link, name, sizeof name - 1);
    free(link);
    if (length < 0)
        return -1;
    name[length] = '\0';
    return step_of(name);
}

// ---- leftovers of killed writers, and later checkpoints

// Restores the old checkpoint if a process was killed between the two renames of a replacement. Then no
// folder has the step's own name. Returns whether it restored one.
static bool restore_replaced(const char *checkpoints_folder, const char *name) {
    const char *step = name + sizeof REPLACED_PREFIX - 1;
    if (strncmp(name, REPLACED_PREFIX, sizeof REPLACED_PREFIX - 1) != 0 || step_of(step) < 0)
        return false;
    char *from = file_path("%s/%s", checkpoints_folder, name),
         *to = file_path("%s/%s", checkpoints_folder, step);
    const bool restored = checkpoint_is_gone(to) && rename(from, to) == 0;
    free(to);
    free(from);
    return restored;
}

static enum status remove_if_temporary(void *context, const char *name) {
    if (strncmp(name, ".tmp-", 5) == 0 && !restore_replaced(context, name)) {
        char *path = file_path("%s/%s", (const char *)context, name);
        file_remove_unneeded(path);
        free(path);
    }
    return STATUS_OK;
}

enum status checkpoint_remove_stale(const char *checkpoints_folder) {
    return visit_names(checkpoints_folder, remove_if_temporary, (void *)(uintptr_t)checkpoints_folder);
}

static enum status set_aside(const char *checkpoints_folder, int64_t step) {
    char *from = checkpoint_path(checkpoints_folder, step);
    char *to = file_path("%s/set-aside-" STEP_FORMAT, checkpoints_folder, step);
    for (int again = 1; file_exists(to); again++) {
        free(to);
        to = file_path("%s/set-aside-" STEP_FORMAT "-%d", checkpoints_folder, step, again);
    }
    enum status status = file_rename(from, to);
    if (status == STATUS_OK)
        log_info("%s is later than the step that this run resumes from; renamed it to %s", from, to);
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
