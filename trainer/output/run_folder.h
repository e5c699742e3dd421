// The folder of a run: lock, resolved config (config.json), log, metrics, samples and checkpoints.
#ifndef ZERO_TRAINER_OUTPUT_RUN_FOLDER_H
#define ZERO_TRAINER_OUTPUT_RUN_FOLDER_H

#include <stdbool.h>

#include "options/config.h"
#include "zero/comm/comm.h"

struct run_folder {
    char *path, *checkpoints, *samples;
    int lock;             // descriptor of PATH/lock, which rank 0 locks; -1: not open
    size_t first_missing; // file_first_missing(path) before the folder was created (base/file.h)
    bool has_begun;       // true: run_folder_begin has been called
};

// Sets the paths in `folder`. Called on all ranks.
void run_folder_join(struct run_folder *folder, const char *path);
// Creates the folder, locks it, and removes files that a killed run left. Called on rank 0 after
// run_folder_join. STATUS_INVALID: the folder cannot be created, another process holds the lock (the message
// names it), or a file that the run would replace, such as config.json, is not a run's.
enum status run_folder_open(struct run_folder *folder) MUST_CHECK;
// Called before each write, on rank 0: checks that the path still leads to the folder that run_folder_open
// locked. STATUS_FAILED: the folder was removed, renamed or replaced; the message says which. Write nothing
// there then: it may be another run's folder.
enum status run_folder_check(const struct run_folder *folder) MUST_CHECK;
// Checks that the path is the same folder on all ranks: rank 0 writes a file with a unique name, and each
// rank must see it. Collective. STATUS_INVALID: a rank does not see it; the message names the rank and both
// locations.
enum status run_folder_meet(const struct run_folder *folder, struct comm *comm) MUST_CHECK;
// Checks that the run can create files in each folder that it will write to.
//   make   true: create missing folders (on rank 0). false: skip them
// STATUS_INVALID: it cannot; the message names the folder.
enum status run_folder_try(const struct run_folder *folder, const struct config *config, int rank,
                           bool make) MUST_CHECK;
// Writes config.json and opens log.txt. Call it when all checks have passed.
enum status run_folder_begin(struct run_folder *folder, const struct config *config) MUST_CHECK;
// Unlocks the folder. Removes it if it was created for a run that did not begin.
void run_folder_close(struct run_folder *folder);

#endif
