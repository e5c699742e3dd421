// Files, checked: whole reads, memory maps, atomic writes (temporary name, flush, rename), folders, globs,
// locks. Every message names the path and what the system said.
#ifndef ZERO_BASE_FILE_H
#define ZERO_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

// A read-only map of a whole file; `data` is NULL for an empty file.
struct file_map {
    const uint8_t *data;
    size_t bytes;
};
enum status file_map_open(struct file_map *map,
                          const char *path) MUST_CHECK; // STATUS_INVALID: absent, not a regular file
void file_map_close(struct file_map *map);

// The whole of a regular file, with a NUL after its last byte (not counted). Free with free(). STATUS_INVALID
// when it is absent, not a regular file, or larger than max_bytes.
enum status file_read(const char *path, size_t max_bytes, char **data, size_t *bytes) MUST_CHECK;
// The same for input that the user names: pipes and devices are read to their end, too.
enum status file_read_stream(const char *path, size_t max_bytes, char **data, size_t *bytes) MUST_CHECK;

// Opens a regular file (after links) without ever waiting: a FIFO or a device in its place is refused with
// STATUS_INVALID. flags: as of open(2). Absent input is STATUS_INVALID; a file that cannot be written is
// STATUS_FAILED.
enum status file_open_regular(const char *path, int flags, int *descriptor) MUST_CHECK;
// A stream that appends to a regular file, made if absent.
enum status file_append_open(const char *path, FILE **stream) MUST_CHECK;

// Writes to PATH.tmp-PID; file_commit flushes to disk and renames it over PATH; file_discard removes it (and
// does nothing after a commit). STATUS_INVALID where PATH is a FIFO or a device. A failed
// write is remembered, so that only the commit needs checking.
struct file_writer {
    FILE *stream;
    char *path, *temporary_path;
    uint64_t bytes;
    int error; // errno of the first failure
};
enum status file_writer_open(struct file_writer *writer, const char *path) MUST_CHECK;
void file_write(struct file_writer *writer, const void *data, size_t bytes);
// Flushes to disk what was written so far, so that the commit of a large file does not take minutes at once.
void file_sync(struct file_writer *writer);
enum status file_commit(struct file_writer *writer) MUST_CHECK; // STATUS_FAILED: disk full and the like
// The first half of file_commit: all is on disk under the temporary name. For several files that must become
// visible together or not at all: finish each, then commit each, which only renames.
enum status file_finish(struct file_writer *writer) MUST_CHECK;
void file_discard(struct file_writer *writer);
enum status file_write_all(const char *path, const void *data, size_t bytes) MUST_CHECK;

bool file_exists(const char *path);
bool file_is_folder(const char *path);
enum status file_make_folders(const char *path) MUST_CHECK; // mkdir -p; STATUS_INVALID when not permitted
// Whether files can be made in a folder, by making one and removing it: NAME, which a killed process may
// leave. STATUS_INVALID where they cannot, STATUS_FAILED where the disk is full or broken.
enum status file_try_folder(const char *folder, const char *name) MUST_CHECK;
enum status file_remove_tree(const char *path) MUST_CHECK; // rm -r; absent is fine; follows no links
enum status file_sync_folder(const char *path) MUST_CHECK; // makes renames inside it durable
enum status file_rename(const char *from, const char *to) MUST_CHECK;
// DIR/NAME in a fresh string, formatted; NULL when out of memory (then a failure is recorded).
char *file_path(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Paths that match a glob pattern (or the path itself when it has no wildcard), sorted bytewise.
// STATUS_INVALID when nothing matches.
struct file_list {
    char **paths;
    int n_paths;
};
enum status file_glob(struct file_list *list, const char *pattern) MUST_CHECK;       // adds to the list
enum status file_list_folder(struct file_list *list, const char *folder) MUST_CHECK; // names, sorted
void file_list_free(struct file_list *list);

// An exclusive lock held through an open file until file_unlock or the end of the process. STATUS_INVALID
// when another process holds it: the message names that process.
enum status file_lock(const char *path, int *descriptor) MUST_CHECK;
void file_unlock(int *descriptor);

#endif
