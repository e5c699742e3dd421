// The data files of a checkpoint that is open for reading. Files are opened when they are read, and at most
// CHECKPOINT_OPEN_FILES stay open, so that checkpoints of thousands of ranks need few descriptors. Statuses
// separate damage from failure: STATUS_INVALID for a file that is absent or has wrong contents, STATUS_FAILED
// for one that cannot be read (permissions, too many open files, I/O errors). Used by the checkpoint modules
// only.
#ifndef ZERO_ZERO_CHECKPOINT_FILES_H
#define ZERO_ZERO_CHECKPOINT_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "zero/comm/comm.h"

#define CHECKPOINT_OPEN_FILES 8

struct checkpoint_file {
    char *name;
    uint64_t bytes, checksum; // as the manifest has them
    // Identity of the file when this process first opened it: a replaced file is an error when it is
    // reopened.
    uint64_t device, inode;
    int64_t modified_s, modified_ns;
    bool seen;
};

// A cache of open descriptors, least recently used out first. Thread-safe.
struct checkpoint_files;
enum status checkpoint_files_new(const char *folder, struct checkpoint_files **out) MUST_CHECK;
void checkpoint_files_delete(struct checkpoint_files *files); // NULL is fine

// Reads the whole file and compares its size and checksum with the manifest's. comm: ranks that wait
// meanwhile see that this one is at work; NULL: none do.
enum status checkpoint_files_verify(struct checkpoint_files *files, struct checkpoint_file *file,
                                    struct comm *comm) MUST_CHECK;
enum status checkpoint_files_read(struct checkpoint_files *files, struct checkpoint_file *file,
                                  uint64_t offset, size_t bytes, void *out) MUST_CHECK;

// A small file, whole, with a NUL after it. Free *data.
enum status checkpoint_file_read_all(const char *path, size_t max_bytes, char **data,
                                     size_t *bytes) MUST_CHECK;
// The size of a file and its last n_tail bytes (fewer where the file is shorter: the rest is zero).
enum status checkpoint_file_tail(const char *path, uint64_t *bytes, char *tail, size_t n_tail) MUST_CHECK;

// What a path refers to, symbolic links followed. STATUS_FAILED when it cannot be examined.
enum checkpoint_path_kind { CHECKPOINT_PATH_ABSENT, CHECKPOINT_PATH_FOLDER, CHECKPOINT_PATH_OTHER };
enum status checkpoint_path_look(const char *path, enum checkpoint_path_kind *kind) MUST_CHECK;

#endif
