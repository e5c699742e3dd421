// A run's folder: its lock, resolved config, log, metrics and checkpoints.
#ifndef ZERO_TRAINER_RUN_FOLDER_H
#define ZERO_TRAINER_RUN_FOLDER_H

#include <stdbool.h>

#include "configs/config.h"
#include "zero/comm/comm.h"

struct run_folder {
    char *path, *checkpoints, *samples;
    int lock;
};

// Makes the folder, takes its lock and removes what a killed writer left. STATUS_INVALID when it cannot be
// made or another process runs in it (which one is named).
enum status run_folder_open(struct run_folder *folder, const char *path) MUST_CHECK;
// The paths alone: for ranks other than the one that opened it.
enum status run_folder_join(struct run_folder *folder, const char *path) MUST_CHECK;
// Whether the ranks that have opened and joined the folder all mean the same one: rank 0 writes a file there
// under a name that no other run has, and each rank must find it. STATUS_INVALID names the rank that does
// not, and both places. All ranks call it.
enum status run_folder_meet(const struct run_folder *folder, struct comm *comm) MUST_CHECK;
// Tries the folders that the run will write to, by making files in them. The opener makes those that are
// absent
// (`make`); other ranks try what they see. STATUS_INVALID names the folder.
enum status run_folder_try(const struct run_folder *folder, const struct config *config, int rank,
                           bool make) MUST_CHECK;
// Writes config.json and opens log.txt: for a run that really begins.
enum status run_folder_begin(struct run_folder *folder, const struct config *config) MUST_CHECK;
void run_folder_close(struct run_folder *folder);

#endif
