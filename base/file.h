// Checked file access: reads, atomic writes (temporary name, flush, rename), folders,
// globs and locks. Every message names the path and the system's reason.
#ifndef ZERO_BASE_FILE_H
#define ZERO_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

// Reads a whole regular file into *data, which the caller frees. A NUL follows the last byte; *bytes does not
// count it. STATUS_INVALID: the file is absent, not a regular file, or larger than max_bytes.
enum status file_read(const char *path, size_t max_bytes, char **data, size_t *bytes) MUST_CHECK;
// Like file_read, for paths given by the user: pipes and devices are read to their end too.
enum status file_read_stream(const char *path, size_t max_bytes, char **data, size_t *bytes) MUST_CHECK;

// Opens a regular file, following links. Never blocks: a FIFO or a device gives STATUS_INVALID.
//   flags   as for open(2)
// A file that cannot be opened gives STATUS_INVALID when it is opened for reading, else STATUS_FAILED.
enum status file_open_regular(const char *path, int flags, int *descriptor) MUST_CHECK;
// Reads `bytes` at `offset`. Returns 0, errno, or FILE_READ_SHORT when the file ends before. Records no
// failure. Files are read and not mapped, so that one that is cut during a run gives an error and not a
// SIGBUS.
#define FILE_READ_SHORT (-1)
int file_read_at(int descriptor, uint64_t offset, size_t bytes, void *out);
// Reads at most `bytes` of the start of a regular file, by which its kind can be told. Returns how many: 0
// also where it cannot be read. Records no failure.
size_t file_read_start(const char *path, size_t bytes, void *out);
// Opens a stream that appends to a regular file; creates the file if it is absent.
enum status file_append_open(const char *path, FILE **stream) MUST_CHECK;
// Appends to a regular file, whole or not at all: what a failed write left is cut off, and the write is tried
// again for a moment.
//   descriptor   opened with O_APPEND; no other process writes the file
// STATUS_FAILED names `path`.
enum status file_append(int descriptor, const char *path, const void *data, size_t bytes) MUST_CHECK;

// An atomic write: open, file_write..., then file_commit or file_discard. Data goes to PATH.tmp-PID until the
// commit renames it to PATH; where PATH is a link to a file, to that file. PATH.tmp-PID is always a new file,
// never what a link of that name leads to. The writer remembers the first failed write, so only the commit
// needs a check.
struct file_writer {
    FILE *stream;
    char *path, *temporary_path;
    uint64_t bytes; // written so far
    int error;      // errno of the first failure
};
// STATUS_INVALID: PATH is a folder, a FIFO or a device.
enum status file_check_replaced(const char *path) MUST_CHECK;
// The same, and opens it.
enum status file_writer_open(struct file_writer *writer, const char *path) MUST_CHECK;
void file_write(struct file_writer *writer, const void *data, size_t bytes);
// Flushes to disk what was written so far. Called now and then, it keeps the commit of a large file short.
void file_sync(struct file_writer *writer);
// Flushes to disk and renames the temporary file to PATH. STATUS_FAILED: a write failed (disk full, I/O
// error).
enum status file_commit(struct file_writer *writer) MUST_CHECK;
// Removes the temporary file; no-op after a commit.
void file_discard(struct file_writer *writer);
// Writes a whole file atomically: open, write, commit.
enum status file_write_all(const char *path, const void *data, size_t bytes) MUST_CHECK;

// A disk, or the network file system in its place, may keep a process waiting for minutes. These mark a call
// that may: one that writes, flushes, renames, removes or reads at a place. Of several at the same time, the
// first is marked.
bool file_disk_begin(const char *path); // returns what file_disk_end wants
void file_disk_end(const bool *began);
// Marks what follows in a block, to its end.
#define FILE_MARK_DISK(path)                                                                                 \
    const bool disk_began __attribute__((cleanup(file_disk_end), unused)) = file_disk_begin(path)
// What the process waits for the disk with: false when nothing. Called by any thread.
//   path      [out] (bytes), cut to fit
//   since_s   [out] clock_monotonic_s
bool file_disk_waits(char *path, size_t bytes, double *since_s);

bool file_exists(const char *path);
bool file_is_same(const char *a, const char *b); // both are there, and one file or folder
bool file_is_folder(const char *path);
enum status file_make_folders(const char *path) MUST_CHECK; // mkdir -p; STATUS_INVALID when refused
// For commands that may fail after file_make_folders: how many bytes of `path` name the first folder that is
// missing now, and the removal of the folders that were made since, as far as they are empty.
size_t file_first_missing(const char *path);
void file_remove_made(const char *path, size_t first_missing);
// Checks that the folder is writable: creates the file `name` in it, writes to it and removes it. A process
// killed meanwhile leaves the file behind. STATUS_INVALID: not writable; STATUS_FAILED: disk full or I/O
// error.
enum status file_try_folder(const char *folder, const char *name) MUST_CHECK;
enum status file_remove_tree(const char *path) MUST_CHECK; // rm -rf; does not follow links
// The same for what is no longer needed: a failure is a warning, once for each path.
void file_remove_unneeded(const char *path);
enum status file_sync_folder(const char *path) MUST_CHECK; // makes renames inside the folder durable
enum status file_rename(const char *from, const char *to) MUST_CHECK;
// Formats a path into a new string, which the caller frees.
char *file_path(const char *format, ...) __attribute__((format(printf, 1, 2)));

struct file_list {
    char **paths;
    int n_paths, capacity;
};
// Appends the paths that match a glob pattern, sorted bytewise. A pattern that is itself an existing path
// matches that path. STATUS_INVALID: nothing matches.
enum status file_glob(struct file_list *list, const char *pattern) MUST_CHECK;
// Lists the names in a folder (without "." and ".."), sorted bytewise. STATUS_INVALID: cannot be listed.
enum status file_list_folder(struct file_list *list, const char *folder) MUST_CHECK;
void file_list_add(struct file_list *list, const char *path); // a copy of it
void file_list_free(struct file_list *list);

// Takes an exclusive lock (flock) on a file, creating it if absent; held until file_unlock or process exit.
// STATUS_INVALID: another process holds it (the message names that process), or it is no lock file.
enum status file_lock(const char *path, int *descriptor) MUST_CHECK;
void file_unlock(int *descriptor);
// Whether a process, possibly of another machine that shares the file system, holds the lock. False too where
// the file is absent or cannot be read. Changes nothing, and never keeps a process from locking the file.
bool file_is_locked(const char *path);

#endif
