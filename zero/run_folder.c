// Paths are made once, at the start.
#include "zero/run_folder.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "zero/checkpoint.h"

enum status run_folder_join(struct run_folder *folder, const char *path) {
    *folder = (struct run_folder){.path = file_path("%s", path),
                                  .checkpoints = file_path("%s/checkpoints", path),
                                  .samples = file_path("%s/samples", path),
                                  .lock = -1};
    if (!folder->path || !folder->checkpoints || !folder->samples)
        return STATUS_FAILED;
    return STATUS_OK;
}

enum status run_folder_open(struct run_folder *folder, const char *path) {
    TRY(run_folder_join(folder, path));
    TRY(file_make_folders(path));
    if (access(path, W_OK) != 0)
        return FAIL(STATUS_INVALID, "the run folder %s is not writable; choose another with run.dir", path);
    char *lock = file_path("%s/lock", path);
    if (!lock)
        return STATUS_FAILED;
    enum status status = file_lock(lock, &folder->lock);
    free(lock);
    TRY(status);
    return checkpoint_remove_stale(folder->checkpoints);
}

enum status run_folder_begin(struct run_folder *folder, const struct config *config) {
    struct text json = {0};
    char *config_path = file_path("%s/config.json", folder->path),
         *log_path = file_path("%s/log.txt", folder->path);
    config_print(config, &json);
    enum status status = config_path && log_path ? text_status(&json) : STATUS_FAILED;
    if (status == STATUS_OK)
        status = file_write_all(config_path, json.data, json.length);
    if (status == STATUS_OK)
        status = log_open_file(log_path);
    text_free(&json);
    free(config_path);
    free(log_path);
    return status;
}

void run_folder_close(struct run_folder *folder) {
    file_unlock(&folder->lock);
    free(folder->path);
    free(folder->checkpoints);
    free(folder->samples);
    *folder = (struct run_folder){.lock = -1};
}
