// A run's folder: its lock, resolved config, log, metrics and checkpoints.
#ifndef ZERO_ZERO_RUN_FOLDER_H
#define ZERO_ZERO_RUN_FOLDER_H

#include "configs/config.h"

struct run_folder {
    char *path, *checkpoints, *samples;
    int lock;
};

// Makes the folder, takes its lock and removes what a killed writer left. STATUS_INVALID when it cannot be
// made or another process runs in it (which one is named).
enum status run_folder_open(struct run_folder *folder, const char *path) MUST_CHECK;
// The paths alone: for ranks other than the one that opened it.
enum status run_folder_join(struct run_folder *folder, const char *path) MUST_CHECK;
// Writes config.json and opens log.txt: for a run that really begins.
enum status run_folder_begin(struct run_folder *folder, const struct config *config) MUST_CHECK;
void run_folder_close(struct run_folder *folder);

#endif
