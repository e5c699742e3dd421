// Ranks on other machines see the folder through a shared file system.
#include "trainer/output/run_folder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/overwrite.h"
#include "options/print.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/checkpoint/ranks.h"

#define MEETING_SECONDS 2
#define MEETING_PREFIX  ".meeting-"
#define PROBE_PREFIX    ".tmp-probe-"

void run_folder_join(struct run_folder *folder, const char *path) {
    *folder = (struct run_folder){.path = file_path("%s", path),
                                  .checkpoints = file_path("%s/checkpoints", path),
                                  .samples = file_path("%s/samples", path),
                                  .lock = -1};
}

// True for the name of a file that only a killed run leaves in its folder: a file of run_folder_meet or
// run_folder_try, or a temporary file (*.tmp-*) that was to replace one of the run's files.
static bool is_leftover(const char *name) {
    static const char *const written[] = {"config.json", "metrics.jsonl", "events.out.tfevents.",
                                          "profile.json", "trace.json"};
    const char *temporary = strstr(name, ".tmp-");
    bool is_ours = false;
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        is_ours = is_ours || strncmp(name, written[i], strlen(written[i])) == 0;
    return strncmp(name, MEETING_PREFIX, sizeof MEETING_PREFIX - 1) == 0 ||
           strncmp(name, PROBE_PREFIX, sizeof PROBE_PREFIX - 1) == 0 || (is_ours && temporary);
}

// Removes leftover files (is_leftover) from a folder. Nothing reads them, so a failure is only a warning.
static void remove_leftovers(const char *path) {
    struct file_list names = {0};
    if (file_list_folder(&names, path) != STATUS_OK)
        status_clear();
    for (int i = 0; i < names.n_paths; i++)
        if (is_leftover(names.paths[i])) {
            char *file = file_path("%s/%s", path, names.paths[i]);
            file_remove_unneeded(file);
            free(file);
        }
    file_list_free(&names);
}

static bool is_resolved_config(const char *path) {
    static const char *const sections[] = {"model",     "data",       "zero_optimization",
                                           "scheduler", "checkpoint", "run"};
    cJSON *json = NULL;
    bool is_resolved = json_read_file(path, &json) == STATUS_OK;
    for (size_t i = 0; i < sizeof sections / sizeof *sections && is_resolved; i++)
        is_resolved = cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(json, sections[i]));
    status_clear();
    cJSON_Delete(json);
    return is_resolved;
}

static bool is_metrics(const char *path) {
    return overwrite_has_words(path, "\"step\"");
}

// Checks the files that a run replaces when it starts: config.json, which may be the user's or a Hugging Face
// model's, and metrics.jsonl if the folder has no run.
static enum status check_replaced(const char *folder) {
    const struct overwrite config = {.writer = "run.dir",
                                     .is_kind = is_resolved_config,
                                     .kind = "the configuration of a run",
                                     .instead = "choose another folder with run.dir"};
    struct overwrite metrics = config;
    metrics.is_kind = is_metrics;
    metrics.kind = "the metrics of a run";
    char *config_path = file_path("%s/config.json", folder),
         *metrics_path = file_path("%s/metrics.jsonl", folder);
    enum status status = overwrite_check(&config, config_path);
    if (status == STATUS_OK && !file_exists(config_path))
        status = overwrite_check(&metrics, metrics_path);
    free(config_path);
    free(metrics_path);
    return status;
}

// Finds the folder in which the locked file is now.
//   lock    descriptor of the file
//   place   [out] path of the folder; "": not known
static void find_moved(int lock, char *place, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", lock);
    const ssize_t length = readlink(link, place, size - 1);
    place[length > 0 ? length : 0] = '\0';
    char *name = strrchr(place, '/');
    *(name ? name : place) = '\0';
}

// Compares device and inode of the lock file, because a folder recreated at the same path has another lock
// file.
enum status run_folder_check(const struct run_folder *folder) {
    struct stat held, found;
    char moved[1024] = "", *path = file_path("%s/lock", folder->path);
    const bool is_there = stat(path, &found) == 0;
    const bool is_known = is_there || errno == ENOENT || errno == ENOTDIR || errno == ESTALE;
    free(path);
    if (!is_known) // the folder cannot be examined now; the next write reports why
        return STATUS_OK;
    if (fstat(folder->lock, &held) != 0)
        held = (struct stat){0};
    if (is_there && held.st_dev == found.st_dev && held.st_ino == found.st_ino)
        return STATUS_OK;
    if (held.st_nlink > 0)
        find_moved(folder->lock, moved, sizeof moved);
    const char *other = is_there ? ", and another one has its place" : "";
    if (moved[0])
        return FAIL(
            STATUS_FAILED,
            "the run folder %s was renamed to %s while the run wrote to it%s; nothing more is written "
            "there. To go on from its last checkpoint, if it has one, start the run with run.dir=%s",
            folder->path, moved, other, moved);
    return FAIL(STATUS_FAILED,
                "the run folder %s, or its lock, was removed while the run wrote to it%s; nothing more is "
                "written there. Start the run again%s",
                folder->path, other, is_there ? ", with another run.dir" : "");
}

enum status run_folder_open(struct run_folder *folder) {
    const char *path = folder->path;
    TRY(check_replaced(path));
    folder->first_missing = file_first_missing(path);
    TRY(file_make_folders(path));
    if (access(path, W_OK) != 0)
        return FAIL(STATUS_INVALID, "the run folder %s is not writable; choose another with run.dir", path);
    char *lock = file_path("%s/lock", path);
    enum status status = file_lock(lock, &folder->lock);
    free(lock);
    TRY(status);
    TRY(run_folder_check(folder));
    remove_leftovers(path);
    remove_leftovers(folder->samples);
    return checkpoint_remove_stale(folder->checkpoints);
}

// What rank 0 sends to all ranks, for run_folder_meet.
struct meeting_place {
    char name[64];            // name of the file that each rank must find
    char folder[RANKS_PLACE]; // rank 0's folder, for the message
};

// Waits up to MEETING_SECONDS for the file of rank 0. A network file system may show files of other machines
// with a delay.
static enum status find_meeting_file(const char *folder, const struct meeting_place *of_rank_0) {
    const struct timespec nap = {.tv_nsec = 20000000};
    char here[RANKS_PLACE];
    char *path = file_path("%s/%s", folder, of_rank_0->name);
    double until = clock_monotonic_s() + MEETING_SECONDS;
    bool found = file_exists(path);
    while (!found && clock_monotonic_s() < until) {
        nanosleep(&nap, NULL);
        found = file_exists(path);
    }
    free(path);
    if (found)
        return STATUS_OK;
    ranks_describe_place(folder, here);
    return FAIL(
        STATUS_INVALID,
        "run.dir is %s on this rank and %s on rank 0, which are different folders: a file that rank 0 "
        "wrote is missing. run.dir must be on a file system that all machines share, at the same path",
        here, of_rank_0->folder);
}

enum status run_folder_meet(const struct run_folder *folder, struct comm *comm) {
    struct meeting_place place = {0};
    char *path = NULL;
    enum status status = STATUS_OK;
    if (comm->world == 1)
        return STATUS_OK;
    if (comm->rank == 0) {
        ranks_describe_place(folder->path, place.folder);
        snprintf(place.name, sizeof place.name, MEETING_PREFIX "%ld-%016llx", (long)getpid(),
                 (unsigned long long)(clock_wall_s() * 1e9));
        path = file_path("%s/%s", folder->path, place.name);
        status = file_write_all(path, "", 0);
    }
    status = comm_agree(comm, status);
    if (status == STATUS_OK)
        status = comm_broadcast(comm, &place, sizeof place, 0);
    if (status == STATUS_OK)
        status = comm_agree(comm, find_meeting_file(folder->path, &place));
    if (path)
        unlink(path);
    free(path);
    return status;
}

static enum status try_folder(const char *path, int rank, bool make) {
    char name[32];
    if (make)
        TRY(file_make_folders(path));
    else if (!file_is_folder(path))
        return STATUS_OK;
    // If the run is killed here, the next one removes the file (run_folder_open).
    snprintf(name, sizeof name, PROBE_PREFIX "%d", rank);
    return file_try_folder(path, name);
}

enum status run_folder_try(const struct run_folder *folder, const struct config *config, int rank,
                           bool make) {
    TRY(try_folder(folder->path, rank, make));
    TRY(try_folder(folder->checkpoints, rank, make));
    return config->train.sample_every > 0 ? try_folder(folder->samples, rank, make) : STATUS_OK;
}

enum status run_folder_begin(struct run_folder *folder, const struct config *config) {
    struct text json = {0};
    folder->has_begun = true;
    char *config_path = file_path("%s/config.json", folder->path),
         *log_path = file_path("%s/log.txt", folder->path);
    config_print(config, &json);
    enum status status = file_write_all(config_path, json.data, json.length);
    if (status == STATUS_OK)
        status = log_open_file(log_path);
    text_free(&json);
    free(config_path);
    free(log_path);
    return status;
}

static void remove_made(const struct run_folder *folder) {
    char *lock = file_path("%s/lock", folder->path);
    unlink(lock);
    rmdir(folder->samples);
    rmdir(folder->checkpoints);
    file_remove_made(folder->path, folder->first_missing);
    free(lock);
}

void run_folder_close(struct run_folder *folder) {
    if (folder->lock >= 0 && !folder->has_begun && folder->first_missing <= strlen(folder->path))
        remove_made(folder);
    file_unlock(&folder->lock);
    free(folder->path);
    free(folder->checkpoints);
    free(folder->samples);
    *folder = (struct run_folder){.lock = -1};
}
