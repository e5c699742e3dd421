// Checked file access: reads, atomic writes (temporary name, flush, rename), folders, globs and locks. Every
// message names the path and the system's reason.
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

// Opens a regular file, following links. Never blocks.
//   flags   as for open(2)
// STATUS_INVALID: the path is a folder, FIFO, socket or device, or cannot be opened for reading.
// STATUS_FAILED: it cannot be opened for writing.
enum status file_open_regular(const char *path, int flags, int *descriptor) MUST_CHECK;
// Reads `bytes` at `offset`. Returns 0, errno, or FILE_READ_SHORT when the file ends earlier. Records no
// failure. Files are read, not memory-mapped: a file truncated during a run then gives an error instead of a
// SIGBUS.
#define FILE_READ_SHORT (-1)
int file_read_at(int descriptor, uint64_t offset, size_t bytes, void *out);
// Reads at most `bytes` from the start of a regular file, to recognize its kind. Returns the number of bytes
// read; 0 if the file cannot be read. Records no failure.
size_t file_read_start(const char *path, size_t bytes, void *out);
// Opens a stream that appends to a regular file; creates the file if it is absent.
enum status file_append_open(const char *path, FILE **stream) MUST_CHECK;
// Appends `data` to a regular file. If a write fails, truncates the file to its old size and tries again, up
// to three times, at intervals of 0.1 s.
//   descriptor   opened with O_APPEND; no other process writes the file
//   path         for the message
// STATUS_FAILED: all tries failed.
enum status file_append(int descriptor, const char *path, const void *data, size_t bytes) MUST_CHECK;

// An atomic write: file_writer_open, file_write for each part, then file_commit or file_discard. Data goes to
// PATH.tmp-PID until the commit renames it to PATH. If PATH is a symbolic link to a file, the file it points
// to is replaced. PATH.tmp-PID is always a new file: a symbolic link of that name is not followed. The writer
// remembers the first failed write, so only the commit needs a check.
struct file_writer {
    FILE *stream;
    char *path; // PATH, or the file that it links to
    char *temporary_path;
    uint64_t bytes; // written so far
    int error;      // errno of the first failure
};
// Checks that PATH may be replaced: it is absent or a regular file. STATUS_INVALID: it is a folder, FIFO,
// socket or device.
enum status file_check_replaced(const char *path) MUST_CHECK;
// Checks PATH as file_check_replaced does, and opens the writer.
enum status file_writer_open(struct file_writer *writer, const char *path) MUST_CHECK;
void file_write(struct file_writer *writer, const void *data, size_t bytes);
// Flushes to disk what was written so far. Calling it now and then keeps the commit of a large file short.
void file_sync(struct file_writer *writer);
// Flushes to disk and renames the temporary file to PATH. STATUS_FAILED: a write failed (disk full, I/O
// error), and the temporary file was removed.
enum status file_commit(struct file_writer *writer) MUST_CHECK;
// Removes the temporary file; no-op after a commit.
void file_discard(struct file_writer *writer);
// Writes a whole file atomically, by file_writer_open, file_write and file_commit.
enum status file_write_all(const char *path, const void *data, size_t bytes) MUST_CHECK;

// A disk or network file system may block a process for minutes. These functions mark the start and end of a
// call that may block: a write, flush, rename, removal or read at `path`. So hang detection can tell waiting
// for a disk from hanging. If several calls run at the same time, only the first is marked.
bool file_disk_begin(const char *path); // returns what file_disk_end needs: whether this call is marked
void file_disk_end(const bool *began);
// Marks a call at `path` from here to the end of the enclosing C block.
#define FILE_MARK_DISK(path)                                                                                 \
    const bool disk_began __attribute__((cleanup(file_disk_end), unused)) = file_disk_begin(path)
// Reports the marked call, in which the process is waiting. Returns false if there is none. Thread-safe.
//   path      [out] the path of the call, truncated to the buffer of `bytes` bytes
//   since_s   [out] when the call began, by clock_monotonic_s
bool file_disk_waits(char *path, size_t bytes, double *since_s);

bool file_exists(const char *path);
bool file_is_same(const char *a, const char *b); // true if both exist and are one file or folder
bool file_is_folder(const char *path);
enum status file_make_folders(const char *path) MUST_CHECK; // mkdir -p; STATUS_INVALID if it fails
// For commands that remove the folders they made if they fail. Before file_make_folders, file_first_missing
// returns the length of the prefix of `path` that names the first missing folder; if none is missing, the
// length of `path` + 1. After a failure, file_remove_made removes that folder and those below it on `path`,
// if they are empty.
size_t file_first_missing(const char *path);
void file_remove_made(const char *path, size_t first_missing);
// Checks that the folder is writable: creates the file `name` in it, writes to it and removes it. A process
// killed meanwhile leaves the file behind.
// STATUS_INVALID: the folder is not writable. STATUS_FAILED: disk full or I/O error.
enum status file_try_folder(const char *folder, const char *name) MUST_CHECK;
enum status file_remove_tree(const char *path) MUST_CHECK; // rm -rf; does not follow links
// Like file_remove_tree, for cleanup: ignores its own failure. A failure recorded before the call stays.
void file_discard_tree(const char *path);
// Like file_remove_tree, for files that are no longer needed: if it fails, logs a warning, once per path.
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
// Appends the names in a folder (without "." and ".."), sorted bytewise. STATUS_INVALID: the folder cannot be
// opened.
enum status file_list_folder(struct file_list *list, const char *folder) MUST_CHECK;
void file_list_add(struct file_list *list, const char *path); // copies the path
void file_list_free(struct file_list *list);

// Takes an exclusive lock (flock) on a file, creating it if absent; held until file_unlock or process exit.
// STATUS_INVALID: another process holds the lock (the message has its process id), the file is not a lock
// file, or it cannot be opened for writing. STATUS_FAILED: the file system cannot lock the file.
enum status file_lock(const char *path, int *descriptor) MUST_CHECK;
void file_unlock(int *descriptor);
// Whether a process holds the lock, possibly one on another machine that shares the file system. False if the
// file is absent or cannot be read. Holds a shared lock for an instant; file_lock waits for that.
bool file_is_locked(const char *path);

#endif
