// Folders, globs and lists of paths, declared in base/file.h.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/log.h"

bool file_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

bool file_is_same(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool file_is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

enum status file_make_folders(const char *path) {
    char *partial = copy_string(path);
    enum status status = STATUS_OK;
    for (char *end = partial + (*partial == '/'); status == STATUS_OK; end++) {
        if (*end != '/' && *end != '\0')
            continue;
        bool last = *end == '\0';
        *end = '\0';
        // An existing folder is fine. mkdir then reports EEXIST, or on some systems EROFS or EACCES.
        int error = mkdir(partial, 0777) != 0 ? errno : 0;
        if (error == EEXIST && !file_is_folder(partial))
            status = FAIL(
                STATUS_INVALID,
                "cannot create the folder %s: a file or a broken link has that name; move it away or choose "
                "another folder",
                partial);
        else if (error && !file_is_folder(partial))
            status = FAIL(STATUS_INVALID, "cannot create the folder %s: %s", partial, strerror(error));
        if (last)
            break;
        *end = '/';
    }
    free(partial);
    return status;
}

size_t file_first_missing(const char *path) {
    for (size_t end = strcspn(path, "/");; end += 1 + strcspn(path + end + 1, "/")) {
        char *partial = copy_bytes(path, end);
        const bool exists = end == 0 || file_exists(partial);
        free(partial);
        if (!exists || path[end] == '\0')
            return exists ? end + 1 : end;
    }
}

void file_remove_made(const char *path, size_t first_missing) {
    char *made = copy_string(path);
    for (size_t end = strlen(made); end >= first_missing && end > 0; end--)
        if (path[end] == '/' || path[end] == '\0') {
            made[end] = '\0';
            rmdir(made);
        }
    free(made);
}

// Creates a file, writes to it and removes it. Writes a byte, because a full disk still accepts empty files.
// Returns 0 or errno.
static int try_file(const char *path) {
    unlink(path); // a file left by a killed process
    int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (descriptor < 0)
        return errno;
    int error = write(descriptor, "", 1) != 1 ? errno : 0;
    if (close(descriptor) != 0 && !error)
        error = errno;
    if (unlink(path) != 0 && !error)
        error = errno;
    return error;
}

enum status file_try_folder(const char *folder, const char *name) {
    char *path = file_path("%s/%s", folder, name);
    int error = try_file(path);
    free(path);
    if (!error)
        return STATUS_OK;
    bool broken = error == ENOSPC || error == EDQUOT || error == EIO;
    return FAIL(broken ? STATUS_FAILED : STATUS_INVALID, "cannot write files in the folder %s: %s", folder,
                strerror(error));
}

static enum status remove_at(int parent, const char *name, const char *path);

static enum status remove_entries(int folder, const char *path) {
    DIR *stream = fdopendir(folder);
    if (!stream) {
        close(folder);
        return FAIL(STATUS_FAILED, "cannot list %s: %s", path, strerror(errno));
    }
    enum status status = STATUS_OK;
    struct dirent *entry;
    while (status == STATUS_OK && (entry = readdir(stream)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            status = remove_at(dirfd(stream), entry->d_name, path);
    closedir(stream);
    return status;
}

static enum status remove_at(int parent, const char *name, const char *path) {
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT)
        return STATUS_OK;
    if (errno != EISDIR && errno != EPERM)
        return FAIL(STATUS_FAILED, "cannot remove %s in %s: %s", name, path, strerror(errno));
    int folder = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0 && errno == ENOENT) // another process removed it meanwhile
        return STATUS_OK;
    if (folder < 0)
        return FAIL(STATUS_FAILED, "cannot remove %s in %s: %s", name, path, strerror(errno));
    TRY(remove_entries(folder, path));
    if (unlinkat(parent, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
        return FAIL(STATUS_FAILED, "cannot remove %s in %s: %s", name, path, strerror(errno));
    return STATUS_OK;
}

enum status file_remove_tree(const char *path) {
    FILE_MARK_DISK(path);
    return remove_at(AT_FDCWD, path, path);
}

void file_discard_tree(const char *path) {
    const bool has_failed = status_message()[0] != '\0';
    if (file_remove_tree(path) != STATUS_OK && !has_failed)
        status_clear();
}

void file_remove_unneeded(const char *path) {
    if (file_remove_tree(path) == STATUS_OK)
        return;
    log_warning_once("%s; it is no longer needed, so you can remove it", status_message());
    status_clear();
}

enum status file_sync_folder(const char *path) {
    int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0)
        return FAIL(STATUS_FAILED, "cannot open the folder %s: %s", path, strerror(errno));
    // Some file systems cannot fsync a folder and report EINVAL; nothing more can be done there.
    FILE_MARK_DISK(path);
    int error = fsync(descriptor) != 0 && errno != EINVAL ? errno : 0;
    close(descriptor);
    return error ? FAIL(STATUS_FAILED, "cannot flush the folder %s: %s", path, strerror(error)) : STATUS_OK;
}

enum status file_rename(const char *from, const char *to) {
    FILE_MARK_DISK(from);
    if (rename(from, to) != 0)
        return FAIL(STATUS_FAILED, "cannot rename %s to %s: %s", from, to, strerror(errno));
    return STATUS_OK;
}

void file_list_add(struct file_list *list, const char *path) {
    RESERVE(list->paths, list->n_paths + 1, list->capacity);
    list->paths[list->n_paths++] = copy_string(path);
}

static int by_bytes(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

enum status file_glob(struct file_list *list, const char *pattern) {
    if (file_exists(pattern)) { // a path that exists is not a pattern, even if it has wildcards
        file_list_add(list, pattern);
        return STATUS_OK;
    }
    glob_t found = {0};
    int result = glob(pattern, GLOB_NOSORT, NULL, &found);
    enum status status = STATUS_OK;
    int first = list->n_paths;
    if (result != 0)
        status = FAIL(STATUS_INVALID, "no file matches %s", pattern);
    for (size_t i = 0; status == STATUS_OK && i < found.gl_pathc; i++)
        file_list_add(list, found.gl_pathv[i]);
    globfree(&found);
    if (status == STATUS_OK)
        qsort(list->paths + first, (size_t)(list->n_paths - first), sizeof *list->paths, by_bytes);
    return status;
}

enum status file_list_folder(struct file_list *list, const char *folder) {
    DIR *stream = opendir(folder);
    if (!stream)
        return FAIL(STATUS_INVALID, "cannot list the folder %s: %s", folder, strerror(errno));
    int first = list->n_paths;
    struct dirent *entry;
    while ((entry = readdir(stream)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            file_list_add(list, entry->d_name);
    closedir(stream);
    if (list->n_paths > first)
        qsort(list->paths + first, (size_t)(list->n_paths - first), sizeof *list->paths, by_bytes);
    return STATUS_OK;
}

void file_list_free(struct file_list *list) {
    for (int i = 0; i < list->n_paths; i++)
        free(list->paths[i]);
    free(list->paths);
    *list = (struct file_list){0};
}
