// Files, through POSIX calls. A file that cannot be opened for reading is STATUS_INVALID, because the user
// named it; so is a path that is not a regular file. A failed read or write, or a file that cannot be opened
// for writing, is STATUS_FAILED, because the environment caused it.
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"

static enum status refuse_kind(const char *path, mode_t mode) {
    const char *kind = S_ISDIR(mode)    ? "a folder"
                       : S_ISFIFO(mode) ? "a FIFO"
                       : S_ISSOCK(mode) ? "a socket"
                                        : "a device";
    return FAIL(STATUS_INVALID, "%s is %s, expected a%s file", path, kind, S_ISDIR(mode) ? "" : " regular");
}

// Opens a regular file. O_NONBLOCK has no effect on regular files; without it, opening a FIFO would block
// until its other end is opened.
//   shown   the path in messages; for a temporary file it is the final path, because the user knows that one
static enum status open_shown(const char *path, const char *shown, int flags, int *descriptor) {
    const bool reads = (flags & O_ACCMODE) == O_RDONLY;
    struct stat info;
    *descriptor = open(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
    const int error = errno;
    if (*descriptor < 0 && stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return refuse_kind(shown, info.st_mode);
    if (*descriptor < 0)
        return FAIL(reads ? STATUS_INVALID : STATUS_FAILED, "cannot %s %s: %s", reads ? "open" : "write",
                    shown, strerror(error));
    enum status status = STATUS_OK;
    if (fstat(*descriptor, &info) != 0)
        status = FAIL(STATUS_FAILED, "cannot stat %s: %s", shown, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = refuse_kind(shown, info.st_mode);
    if (status != STATUS_OK) {
        close(*descriptor);
        *descriptor = -1;
    }
    return status;
}

enum status file_open_regular(const char *path, int flags, int *descriptor) {
    return open_shown(path, path, flags, descriptor);
}

static enum status open_regular(const char *path, int *descriptor, size_t *bytes) {
    struct stat info = {0};
    TRY(file_open_regular(path, O_RDONLY, descriptor));
    if (fstat(*descriptor, &info) != 0) {
        close(*descriptor);
        return FAIL(STATUS_FAILED, "cannot stat %s: %s", path, strerror(errno));
    }
    *bytes = (size_t)info.st_size;
    return STATUS_OK;
}

static enum status open_stream(const char *path, const char *shown, const char *mode, int flags,
                               FILE **stream) {
    int descriptor;
    TRY(open_shown(path, shown, flags, &descriptor));
    *stream = fdopen(descriptor, mode);
    if (*stream)
        return STATUS_OK;
    close(descriptor);
    return FAIL(STATUS_FAILED, "out of memory: cannot write %s", shown);
}

enum status file_append_open(const char *path, FILE **stream) {
    *stream = NULL;
    return open_stream(path, path, "a", O_WRONLY | O_CREAT | O_APPEND, stream);
}

// Writes all bytes. Returns 0 or errno.
static int write_all(int descriptor, const char *data, size_t bytes) {
    while (bytes > 0) {
        const ssize_t n = write(descriptor, data, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : EIO;
        data += n;
        bytes -= (size_t)n;
    }
    return 0;
}

enum status file_append(int descriptor, const char *path, const void *data, size_t bytes) {
    const struct timespec nap = {.tv_nsec = 100000000};
    FILE_MARK_DISK(path);
    const off_t end = lseek(descriptor, 0, SEEK_END);
    int error = write_all(descriptor, data, bytes);
    for (int again = 0; error != 0 && ftruncate(descriptor, end) == 0 && again < 3; again++) {
        nanosleep(&nap, NULL);
        error = write_all(descriptor, data, bytes);
    }
    return error == 0 ? STATUS_OK : FAIL(STATUS_FAILED, "cannot write %s: %s", path, strerror(error));
}

int file_read_at(int descriptor, uint64_t offset, size_t bytes, void *out) {
    FILE_MARK_DISK("a file that it reads");
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(descriptor, (char *)out + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return errno;
        if (got == 0)
            return FILE_READ_SHORT;
        done += (size_t)got;
    }
    return 0;
}

size_t file_read_start(const char *path, size_t bytes, void *out) {
    int descriptor;
    if (file_open_regular(path, O_RDONLY, &descriptor) != STATUS_OK) {
        status_clear();
        return 0;
    }
    const ssize_t n = pread(descriptor, out, bytes, 0);
    close(descriptor);
    return n > 0 ? (size_t)n : 0;
}

// Reads until end of file, because pipes and files in /proc report no size.
//   expected   size of the file in bytes, for the first buffer; 0: unknown
static enum status read_all(int descriptor, const char *path, size_t expected, size_t max_bytes, char **data,
                            size_t *bytes) {
    size_t capacity = expected + 1 > 4096 ? expected + 1 : 4096, length = 0;
    char *buffer = allocate(capacity + 1, 1);
    while (true) {
        ssize_t got = read(descriptor, buffer + length, capacity - length);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            free(buffer);
            return FAIL(STATUS_FAILED, "cannot read %s: %s", path, strerror(errno));
        }
        length += (size_t)got;
        if (length > max_bytes) {
            free(buffer);
            return FAIL(STATUS_INVALID, "%s is too large, expected at most %zu bytes", path, max_bytes);
        }
        if (got == 0) {
            buffer[length] = '\0';
            *data = buffer;
            *bytes = length;
            return STATUS_OK;
        }
        if (length == capacity) {
            capacity *= 2;
            buffer = reallocate(buffer, capacity + 1, 1);
        }
    }
}

enum status file_read_stream(const char *path, size_t max_bytes, char **data, size_t *bytes) {
    struct stat info;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return FAIL(STATUS_INVALID, "cannot open %s: %s", path, strerror(errno));
    enum status status = STATUS_OK;
    if (fstat(descriptor, &info) == 0 && S_ISDIR(info.st_mode))
        status = refuse_kind(path, info.st_mode);
    else
        status = read_all(descriptor, path, 0, max_bytes, data, bytes);
    close(descriptor);
    return status;
}

enum status file_read(const char *path, size_t max_bytes, char **data, size_t *bytes) {
    int descriptor;
    size_t expected = 0;
    TRY(open_regular(path, &descriptor, &expected));
    enum status status = STATUS_OK;
    if (expected > max_bytes)
        status = FAIL(STATUS_INVALID, "%s has %zu bytes, expected at most %zu", path, expected, max_bytes);
    else
        status = read_all(descriptor, path, expected, max_bytes, data, bytes);
    close(descriptor);
    return status;
}

// ---- waiting for the disk

static pthread_mutex_t disk_lock = PTHREAD_MUTEX_INITIALIZER;
// The path of the marked call; "": no call is marked. A copy, because the caller may free its path before the
// mark ends.
static char disk_path[1024];
static double disk_since_s; // when the marked call began, by clock_monotonic_s

bool file_disk_begin(const char *path) {
    pthread_mutex_lock(&disk_lock);
    const bool is_first = !disk_path[0];
    if (is_first) {
        snprintf(disk_path, sizeof disk_path, "%s", path);
        disk_since_s = clock_monotonic_s();
    }
    pthread_mutex_unlock(&disk_lock);
    return is_first;
}

void file_disk_end(const bool *began) {
    pthread_mutex_lock(&disk_lock);
    if (*began)
        disk_path[0] = '\0';
    pthread_mutex_unlock(&disk_lock);
}

bool file_disk_waits(char *path, size_t bytes, double *since_s) {
    pthread_mutex_lock(&disk_lock);
    const bool waits = disk_path[0] != '\0';
    if (waits)
        snprintf(path, bytes, "%s", disk_path);
    *since_s = disk_since_s;
    pthread_mutex_unlock(&disk_lock);
    return waits;
}

// ---- writing

enum status file_check_replaced(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0 || S_ISREG(info.st_mode))
        return STATUS_OK;
    return refuse_kind(path, info.st_mode);
}

// Returns the file that `path` points to if it is a symbolic link (/dev/stdout), because rename(2) would
// replace the link itself. Otherwise returns a copy of `path`. The caller frees the string.
static char *follow_links(const char *path) {
    struct stat info;
    char *target = lstat(path, &info) == 0 && S_ISLNK(info.st_mode) ? realpath(path, NULL) : NULL;
    return target ? target : copy_string(path);
}

enum status file_writer_open(struct file_writer *writer, const char *path) {
    *writer = (struct file_writer){.path = follow_links(path)};
    writer->temporary_path = file_path("%s.tmp-%ld", writer->path, (long)getpid());
    enum status status = file_check_replaced(path);
    if (status == STATUS_OK) {
        unlink(writer->temporary_path); // a file left by a killed process, or another user's link
        status = open_stream(writer->temporary_path, path, "wb", O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW,
                             &writer->stream);
    }
    if (status != STATUS_OK)
        file_discard(writer);
    return status;
}

void file_write(struct file_writer *writer, const void *data, size_t bytes) {
    if (writer->error || bytes == 0)
        return;
    FILE_MARK_DISK(writer->path);
    errno = 0;
    if (fwrite(data, 1, bytes, writer->stream) != bytes)
        writer->error = errno ? errno : EIO;
    else
        writer->bytes += bytes;
}

void file_sync(struct file_writer *writer) {
    FILE_MARK_DISK(writer->path);
    if (!writer->error && (fflush(writer->stream) != 0 || fdatasync(fileno(writer->stream)) != 0))
        writer->error = errno;
}

enum status file_commit(struct file_writer *writer) {
    FILE_MARK_DISK(writer->path);
    if (!writer->error && (fflush(writer->stream) != 0 || fsync(fileno(writer->stream)) != 0))
        writer->error = errno;
    if (fclose(writer->stream) != 0 && !writer->error)
        writer->error = errno;
    writer->stream = NULL;
    if (!writer->error && rename(writer->temporary_path, writer->path) != 0)
        writer->error = errno;
    enum status status =
        writer->error ? FAIL(STATUS_FAILED, "cannot write %s: %s", writer->path, strerror(writer->error))
                      : STATUS_OK;
    if (status == STATUS_OK) { // the file has its final name, so file_discard must not remove it
        free(writer->temporary_path);
        writer->temporary_path = NULL;
    }
    file_discard(writer);
    return status;
}

void file_discard(struct file_writer *writer) {
    if (writer->stream)
        fclose(writer->stream);
    if (writer->temporary_path)
        unlink(writer->temporary_path);
    free(writer->temporary_path);
    free(writer->path);
    *writer = (struct file_writer){0};
}

enum status file_write_all(const char *path, const void *data, size_t bytes) {
    struct file_writer writer;
    TRY(file_writer_open(&writer, path));
    file_write(&writer, data, bytes);
    return file_commit(&writer);
}

char *file_path(const char *format, ...) {
    struct text path = {0};
    va_list arguments;
    va_start(arguments, format);
    text_vadd(&path, format, arguments);
    va_end(arguments);
    return path.data;
}

// ---- locks

// Takes an exclusive lock. Returns 0 or errno. If the lock is held, tries again for 0.1 s, because another
// process in file_is_locked holds it only for an instant.
static int lock_exclusively(int descriptor) {
    const struct timespec nap = {.tv_nsec = 10000000};
    for (int tries = 0; flock(descriptor, LOCK_EX | LOCK_NB) != 0; tries++) {
        if (errno != EWOULDBLOCK || tries == 10)
            return errno;
        nanosleep(&nap, NULL);
    }
    return 0;
}

enum status file_lock(const char *path, int *descriptor) {
    enum status opened = file_open_regular(path, O_RDWR | O_CREAT, descriptor);
    // STATUS_FAILED becomes STATUS_INVALID, because the user named a folder that is not writable.
    if (opened != STATUS_OK)
        return STATUS_INVALID;
    char owner[32] = {0};
    const int error = lock_exclusively(*descriptor);
    const ssize_t n = pread(*descriptor, owner, sizeof owner - 1, 0);
    if (error == 0 && n > 0 && strspn(owner, "0123456789\n") < (size_t)n) {
        file_unlock(descriptor);
        return FAIL(STATUS_INVALID, "%s exists and is not a lock file of this program; move it away", path);
    }
    if (error != 0) {
        file_unlock(descriptor);
        if (error != EWOULDBLOCK)
            return FAIL(STATUS_FAILED, "cannot lock %s: %s", path, strerror(error));
        owner[n > 0 ? strcspn(owner, "\n") : 0] = '\0';
        return FAIL(STATUS_INVALID, "the lock %s is held by process %s: the folder is in use", path,
                    owner[0] ? owner : "(unknown)");
    }
    int length = snprintf(owner, sizeof owner, "%ld\n", (long)getpid());
    // A failure is ignored: the process id is only for the message above, and the lock works without it.
    const bool is_written =
        ftruncate(*descriptor, 0) == 0 && pwrite(*descriptor, owner, (size_t)length, 0) == length;
    (void)is_written;
    return STATUS_OK;
}

bool file_is_locked(const char *path) {
    const int descriptor = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (descriptor < 0)
        return false;
    const bool is_locked = flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(descriptor);
    return is_locked;
}

void file_unlock(int *descriptor) {
    if (*descriptor >= 0)
        close(*descriptor);
    *descriptor = -1;
}
