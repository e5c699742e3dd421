// The folder of a run: lock, resolved config (config.json), log, metrics, samples and checkpoints.
#ifndef ZERO_TRAINER_OUTPUT_RUN_FOLDER_H
#define ZERO_TRAINER_OUTPUT_RUN_FOLDER_H

#include <stdbool.h>

#include "options/config.h"
#include "zero/comm/comm.h"

struct run_folder {
    char *path, *checkpoints, *samples;
    int lock;
    size_t first_missing; // file_first_missing of the path, before it was made
    bool has_begun;       // run_folder_begin was called
};

// On all ranks: sets the paths.
void run_folder_join(struct run_folder *folder, const char *path);
// Then on rank 0. Creates the folder, locks it and removes files that a killed run left. STATUS_INVALID when
// it cannot be created, another process, which the message names, holds the lock, or its config.json is not
// that of a run.
enum status run_folder_open(struct run_folder *folder) MUST_CHECK;
// Before each write, on rank 0: checks that the path still leads to the folder that run_folder_open locked.
// STATUS_FAILED says what happened to it: removed, renamed, or replaced by another one. Then nothing may be
// written there: it may be another run's.
enum status run_folder_check(const struct run_folder *folder) MUST_CHECK;
// Collective. Checks that the path is the same folder on all ranks: rank 0 writes a file with a unique name,
// and each rank must see it. STATUS_INVALID names a rank that does not, and both locations.
enum status run_folder_meet(const struct run_folder *folder, struct comm *comm) MUST_CHECK;
// Checks that the run can create files in each folder that it will write to.
//   make   create missing folders (rank 0); otherwise missing folders are skipped
// STATUS_INVALID names the folder.
enum status run_folder_try(const struct run_folder *folder, const struct config *config, int rank,
                           bool make) MUST_CHECK;
// Writes config.json and opens log.txt. Called once everything has been checked.
enum status run_folder_begin(struct run_folder *folder, const struct config *config) MUST_CHECK;
// A folder that was made for a run that did not begin is removed.
void run_folder_close(struct run_folder *folder);

#endif
