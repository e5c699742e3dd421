// See zero/checkpoint/files.h.
#include "zero/checkpoint/files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/file.h"

#define READ_BYTES ((size_t)4 << 20) // bytes read at a time to compute a file's checksum

struct slot {
    const struct checkpoint_file *file; // the open file; NULL: the slot is free
    int descriptor;
    uint64_t used; // checkpoint_files.clock at the last use
};

struct checkpoint_files {
    char *folder;
    pthread_mutex_t lock; // guards the members below; held while a file is read
    struct slot slots[CHECKPOINT_OPEN_FILES];
    uint64_t clock; // number of uses of slots so far
};

// ---- one file

static bool is_absent(int error) {
    return error == ENOENT || error == ENOTDIR;
}

static enum status cannot_open(const char *path, int error) {
    const char *name = strrchr(path, '/');
    if (is_absent(error)) {
        char *folder = copy_bytes(path, name ? (size_t)(name - path) : 0);
        const bool is_pruned = folder[0] && !file_exists(folder);
        free(folder);
        return is_pruned ? FAIL(STATUS_FAILED,
                                "%s: its run pruned the checkpoint while it was being read; run "
                                "the command again",
                                path)
                         : FAIL(STATUS_INVALID, "%s: is absent: %s; the checkpoint is incomplete", path,
                                strerror(error));
    }
    return FAIL(STATUS_FAILED,
                "%s: cannot be opened: %s; the checkpoint may be good, but cannot be verified%s", path,
                strerror(error),
                error == EMFILE || error == ENFILE ? " (raise the limit of open files: ulimit -n)" : "");
}

static void empty_slot(struct slot *slot) {
    if (slot->file)
        close(slot->descriptor);
    *slot = (struct slot){0};
}

// Closes the least recently used file. Returns false if none is open.
static bool close_oldest(struct checkpoint_files *files) {
    struct slot *oldest = NULL;
    for (int i = 0; i < CHECKPOINT_OPEN_FILES; i++)
        if (files->slots[i].file && (!oldest || files->slots[i].used < oldest->used))
            oldest = &files->slots[i];
    if (oldest)
        empty_slot(oldest);
    return oldest != NULL;
}

// Opens a file. If the process has too many open files, closes cached ones (of `files`, which may be NULL)
// and tries again. O_NONBLOCK is for the case that the path is a FIFO: opening it must not wait for a
// writer.
static int open_descriptor(struct checkpoint_files *files, const char *path) {
    int descriptor;
    do
        descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    while (descriptor < 0 && (errno == EMFILE || errno == ENFILE) && files && close_oldest(files));
    return descriptor;
}

static enum status open_regular(struct checkpoint_files *files, const char *path, int *descriptor,
                                struct stat *information) {
    *descriptor = open_descriptor(files, path);
    if (*descriptor < 0)
        return cannot_open(path, errno);
    enum status status = STATUS_OK;
    if (fstat(*descriptor, information) != 0)
        status = FAIL(STATUS_FAILED, "%s: cannot be examined: %s", path, strerror(errno));
    else if (!S_ISREG(information->st_mode))
        status = FAIL(STATUS_INVALID, "%s: is not a regular file; the checkpoint is incomplete", path);
    if (status != STATUS_OK)
        close(*descriptor);
    return status;
}

// Reads `bytes` bytes from `offset` on, or fewer at the end of the file.
//   got   [out] number of bytes read
static enum status read_at(int descriptor, const char *path, uint64_t offset, void *out, size_t bytes,
                           size_t *got) {
    for (*got = 0; *got < bytes;) {
        ssize_t n = pread(descriptor, (char *)out + *got, bytes - *got, (off_t)(offset + *got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return FAIL(STATUS_FAILED, "%s: cannot read at byte %" PRIu64 ": %s", path, offset + *got,
                        strerror(errno));
        if (n == 0)
            break;
        *got += (size_t)n;
    }
    return STATUS_OK;
}

enum status checkpoint_file_read_all(const char *path, size_t max_bytes, char **data, size_t *bytes) {
    int descriptor;
    struct stat information;
    *data = NULL;
    TRY(open_regular(NULL, path, &descriptor, &information));
    size_t size = (size_t)information.st_size;
    enum status status = STATUS_OK;
    if (size > max_bytes)
        status = FAIL(STATUS_INVALID, "%s has %zu bytes, expected at most %zu", path, size, max_bytes);
    else {
        *data = allocate(size + 1, 1);
        status = read_at(descriptor, path, 0, *data, size, bytes);
    }
    close(descriptor);
    if (status != STATUS_OK) {
        free(*data);
        *data = NULL;
    }
    return status;
}

enum status checkpoint_file_tail(const char *path, uint64_t *bytes, char *tail, size_t n_tail) {
    int descriptor;
    struct stat information;
    size_t got;
    memset(tail, 0, n_tail);
    TRY(open_regular(NULL, path, &descriptor, &information));
    *bytes = (uint64_t)information.st_size;
    enum status status = read_at(descriptor, path, *bytes > n_tail ? *bytes - n_tail : 0, tail, n_tail, &got);
    close(descriptor);
    return status;
}

enum status checkpoint_path_look(const char *path, enum checkpoint_path_kind *kind) {
    struct stat information;
    *kind = CHECKPOINT_PATH_ABSENT;
    if (stat(path, &information) == 0)
        *kind = S_ISDIR(information.st_mode) ? CHECKPOINT_PATH_FOLDER : CHECKPOINT_PATH_OTHER;
    else if (!is_absent(errno))
        return FAIL(STATUS_FAILED, "%s: cannot be examined: %s", path, strerror(errno));
    return STATUS_OK;
}

// ---- the cache of descriptors

struct checkpoint_files *checkpoint_files_new(const char *folder) {
    struct checkpoint_files *files = allocate(1, sizeof *files);
    files->folder = copy_string(folder);
    pthread_mutex_init(&files->lock, NULL);
    return files;
}

void checkpoint_files_delete(struct checkpoint_files *files) {
    if (!files)
        return;
    for (int i = 0; i < CHECKPOINT_OPEN_FILES; i++)
        empty_slot(&files->slots[i]);
    pthread_mutex_destroy(&files->lock);
    free(files->folder);
    free(files);
}

// Returns a free slot, or the least recently used one.
static struct slot *oldest_slot(struct checkpoint_files *files) {
    struct slot *oldest = &files->slots[0];
    for (int i = 1; i < CHECKPOINT_OPEN_FILES; i++)
        if (files->slots[i].used < oldest->used)
            oldest = &files->slots[i];
    return oldest;
}

static enum status check_identity(const char *path, struct checkpoint_file *file, const struct stat *found) {
    if ((uint64_t)found->st_size != file->bytes)
        return FAIL(STATUS_INVALID,
                    "%s: has %jd bytes, its manifest says %" PRIu64 ": it was truncated or altered", path,
                    (intmax_t)found->st_size, file->bytes);
    if (file->seen &&
        (file->device != found->st_dev || file->inode != found->st_ino ||
         file->modified_s != found->st_mtim.tv_sec || file->modified_ns != found->st_mtim.tv_nsec))
        return FAIL(STATUS_FAILED, "%s: was replaced or altered while it was in use; run the command again",
                    path);
    file->seen = true;
    file->device = found->st_dev;
    file->inode = found->st_ino;
    file->modified_s = found->st_mtim.tv_sec;
    file->modified_ns = found->st_mtim.tv_nsec;
    return STATUS_OK;
}

static enum status open_in_slot(struct checkpoint_files *files, struct checkpoint_file *file,
                                const char *path, struct slot **out) {
    struct stat found;
    int descriptor;
    TRY(open_regular(files, path, &descriptor, &found));
    enum status status = check_identity(path, file, &found);
    if (status != STATUS_OK) {
        close(descriptor);
        return status;
    }
    *out = oldest_slot(files);
    empty_slot(*out);
    **out = (struct slot){file, descriptor, 0};
    return STATUS_OK;
}

// Finds the slot of a file; opens the file if no slot has it. The caller holds the lock. The slot is valid
// until the lock is released.
static enum status find_slot(struct checkpoint_files *files, struct checkpoint_file *file, const char *path,
                             struct slot **out) {
    *out = NULL;
    for (int i = 0; i < CHECKPOINT_OPEN_FILES && !*out; i++)
        if (files->slots[i].file == file)
            *out = &files->slots[i];
    if (!*out)
        TRY(open_in_slot(files, file, path, out));
    (*out)->used = ++files->clock;
    return STATUS_OK;
}

static enum status hash_file(struct comm *comm, int descriptor, const char *path, uint64_t *checksum) {
    XXH3_state_t *hash = XXH3_createState();
    char *buffer = allocate(READ_BYTES, 1);
    enum status status = STATUS_OK;
    size_t got = READ_BYTES;
    XXH3_64bits_reset(hash);
    for (uint64_t offset = 0; status == STATUS_OK && got == READ_BYTES; offset += got) {
        status = read_at(descriptor, path, offset, buffer, READ_BYTES, &got);
        XXH3_64bits_update(hash, buffer, got);
        if (comm)
            comm_progress(comm);
    }
    *checksum = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    free(buffer);
    return status;
}

static enum status verify_locked(struct checkpoint_files *files, struct checkpoint_file *file,
                                 struct comm *comm, const char *path) {
    struct slot *slot;
    uint64_t checksum = 0;
    TRY(find_slot(files, file, path, &slot));
    TRY(hash_file(comm, slot->descriptor, path, &checksum));
    if (checksum != file->checksum)
        return FAIL(STATUS_INVALID,
                    "%s: has checksum %016" PRIx64 ", its manifest says %016" PRIx64
                    ": it was altered since it was written",
                    path, checksum, file->checksum);
    return STATUS_OK;
}

enum status checkpoint_files_verify(struct checkpoint_files *files, struct checkpoint_file *file,
                                    struct comm *comm) {
    char *path = file_path("%s/%s", files->folder, file->name);
    pthread_mutex_lock(&files->lock);
    enum status status = verify_locked(files, file, comm, path);
    pthread_mutex_unlock(&files->lock);
    free(path);
    return status;
}

static enum status read_locked(struct checkpoint_files *files, struct checkpoint_file *file, const char *path,
                               uint64_t offset, size_t bytes, void *out) {
    struct slot *slot;
    size_t got;
    TRY(find_slot(files, file, path, &slot));
    TRY(read_at(slot->descriptor, path, offset, out, bytes, &got));
    return got == bytes
               ? STATUS_OK
               : FAIL(STATUS_FAILED,
                      "%s: cannot read at byte %" PRIu64 ": the file became shorter while it was read", path,
                      offset + got);
}

enum status checkpoint_files_read(struct checkpoint_files *files, struct checkpoint_file *file,
                                  uint64_t offset, size_t bytes, void *out) {
    char *path = file_path("%s/%s", files->folder, file->name);
    pthread_mutex_lock(&files->lock);
    enum status status = read_locked(files, file, path, offset, bytes, out);
    pthread_mutex_unlock(&files->lock);
    free(path);
    return status;
}
