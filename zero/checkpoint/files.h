// Reads the data files of an open checkpoint. Files are opened when they are first read, and at most
// CHECKPOINT_OPEN_FILES stay open, so a checkpoint of thousands of ranks needs few descriptors. Used by the
// checkpoint modules only.
//
// Statuses separate damage from failure. STATUS_INVALID: a file is absent or has wrong contents.
// STATUS_FAILED: a file cannot be read (permissions, too many open files, I/O errors).
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
    uint64_t bytes, checksum; // as recorded in the manifest
    // Identity of the file when this process first opened it. Opening the file again after it was replaced or
    // altered is an error.
    uint64_t device, inode;
    int64_t modified_s, modified_ns;
    bool seen; // this process has opened the file: the identity is known
};

// A cache of open descriptors; the least recently used is closed first. Thread-safe.
struct checkpoint_files;
struct checkpoint_files *checkpoint_files_new(const char *folder);
void checkpoint_files_delete(struct checkpoint_files *files); // NULL: no-op

// Reads the whole file and compares its size and checksum with the manifest's.
//   comm   passed to comm_progress during the read, so that other ranks do not take the read for a hang.
//          NULL: no ranks wait
enum status checkpoint_files_verify(struct checkpoint_files *files, struct checkpoint_file *file,
                                    struct comm *comm) MUST_CHECK;
// Reads `bytes` from byte `offset` on.
enum status checkpoint_files_read(struct checkpoint_files *files, struct checkpoint_file *file,
                                  uint64_t offset, size_t bytes, void *out) MUST_CHECK;

// Reads a whole file and appends a NUL, which *bytes does not count. STATUS_INVALID if the file has more than
// max_bytes. Free *data.
enum status checkpoint_file_read_all(const char *path, size_t max_bytes, char **data,
                                     size_t *bytes) MUST_CHECK;
// Reads the size of a file and its last n_tail bytes; if the file is shorter, the rest of `tail` is zero.
enum status checkpoint_file_tail(const char *path, uint64_t *bytes, char *tail, size_t n_tail) MUST_CHECK;

// What a path refers to, after following symbolic links. STATUS_FAILED if it cannot be examined.
enum checkpoint_path_kind { CHECKPOINT_PATH_ABSENT, CHECKPOINT_PATH_FOLDER, CHECKPOINT_PATH_OTHER };
enum status checkpoint_path_look(const char *path, enum checkpoint_path_kind *kind) MUST_CHECK;

#endif
