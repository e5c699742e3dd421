// Opening checkpoints and reading their spans. What is read is checked first: sizes and checksums of every
// file, each once, shared out among the ranks that open together.
#include "zero/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "zero/factors.h"
#include "zero/manifest.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "checkpoints hold little-endian floats as they are");

const char *checkpoint_kind_name(enum checkpoint_kind kind) {
    static const char *const names[N_CHECKPOINT_KINDS] = {"master", "m", "v", "factors"};
    return names[kind];
}

size_t checkpoint_kind_elements(const struct params *params, enum checkpoint_kind kind, int unit) {
    return kind == CHECKPOINT_FACTORS ? factors_of_unit(params, unit) : params->units[unit].elements;
}

static enum status hash_file(int descriptor, const char *path, uint64_t *checksum) {
    const size_t bytes = CHECKPOINT_CHUNK * sizeof(float);
    XXH3_state_t *hash = XXH3_createState();
    char *buffer = malloc(bytes);
    enum status status = STATUS_OK;
    if (!hash || !buffer) {
        status = FAIL(STATUS_FAILED, "out of memory while reading %s", path);
        goto done;
    }
    XXH3_64bits_reset(hash);
    for (off_t offset = 0;;) {
        ssize_t got = pread(descriptor, buffer, bytes, offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            status = FAIL(STATUS_FAILED, "%s: cannot read at byte %jd: %s", path, (intmax_t)offset,
                          strerror(errno));
            goto done;
        }
        if (got == 0)
            break;
        XXH3_64bits_update(hash, buffer, (size_t)got);
        offset += got;
    }
    *checksum = XXH3_64bits_digest(hash);
done:
    XXH3_freeState(hash);
    free(buffer);
    return status;
}

// The file must be what the manifest says, to the byte; read through once (`verify`) and trusted from then
// on.
static enum status open_file(const char *folder, struct checkpoint_file *file, bool verify) {
    char *path = file_path("%s/%s", folder, file->name);
    if (!path)
        return STATUS_FAILED;
    enum status status = STATUS_OK;
    struct stat information;
    uint64_t checksum = 0;
    file->descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (file->descriptor < 0 || fstat(file->descriptor, &information) != 0)
        status = FAIL(errno == EMFILE || errno == ENFILE || errno == EIO ? STATUS_FAILED : STATUS_INVALID,
                      "%s: cannot be opened: %s; the checkpoint is not whole", path, strerror(errno));
    else if (!S_ISREG(information.st_mode))
        status = FAIL(STATUS_INVALID, "%s: is not a file; the checkpoint is not whole", path);
    else if ((uint64_t)information.st_size != file->bytes)
        status =
            FAIL(STATUS_INVALID, "%s: has %jd bytes, its manifest says %" PRIu64 ": it was torn or altered",
                 path, (intmax_t)information.st_size, file->bytes);
    else if (verify)
        status = hash_file(file->descriptor, path, &checksum);
    if (status == STATUS_OK && verify && checksum != file->checksum)
        status = FAIL(STATUS_INVALID,
                      "%s: has checksum %016" PRIx64 ", its manifest says %016" PRIx64
                      ": it was altered since it was written",
                      path, checksum, file->checksum);
    free(path);
    return status;
}

static enum status read_manifest(struct checkpoint *checkpoint) {
    char *path = file_path("%s/" MANIFEST_NAME, checkpoint->path);
    if (!path)
        return STATUS_FAILED;
    char *json = NULL;
    size_t length;
    enum status status = file_read(path, MANIFEST_MAX_BYTES, &json, &length);
    if (status == STATUS_OK)
        status = manifest_parse(checkpoint, json, length, path);
    free(json);
    free(path);
    return status;
}

static enum status open_files(struct checkpoint *checkpoint, int rank, int world) {
    TRY(read_manifest(checkpoint));
    for (int i = 0; i < checkpoint->n_files; i++)
        TRY(open_file(checkpoint->path, &checkpoint->files[i], i % world == rank));
    return STATUS_OK;
}

enum status checkpoint_open(struct comm *comm, const char *folder, struct checkpoint **out) {
    *out = NULL;
    struct checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    if (checkpoint)
        checkpoint->path = strdup(folder);
    enum status status = STATUS_OK;
    if (!checkpoint || !checkpoint->path)
        status = FAIL(STATUS_FAILED, "out of memory while opening %s", folder);
    else
        status = open_files(checkpoint, comm ? comm->rank : 0, comm ? comm->world : 1);
    if (comm)
        status = comm_agree(comm, status);
    if (status == STATUS_OK)
        *out = checkpoint;
    else
        checkpoint_close(checkpoint);
    return status;
}

void checkpoint_close(struct checkpoint *checkpoint) {
    if (!checkpoint)
        return;
    for (int i = 0; i < checkpoint->n_files; i++) {
        if (checkpoint->files[i].descriptor >= 0)
            close(checkpoint->files[i].descriptor);
        free(checkpoint->files[i].name);
    }
    free(checkpoint->files);
    free(checkpoint->spans);
    free(checkpoint->tokenizer);
    free(checkpoint->optimizer);
    free(checkpoint->version);
    params_free(&checkpoint->params);
    config_free(&checkpoint->config);
    free(checkpoint->path);
    free(checkpoint);
}

enum status checkpoint_check_model(const struct checkpoint *checkpoint, const struct params *params) {
    const struct gpt_config *has = &checkpoint->params.config, *wanted = &params->config;
    if (memcmp(has, wanted, sizeof *has) == 0)
        return STATUS_OK;
    return FAIL(
        STATUS_INVALID,
        "%s is a checkpoint of another model: it has n_layer %d, n_head %d, n_embd %d, vocab_size %d, "
        "n_positions %d; this run has n_layer %d, n_head %d, n_embd %d, vocab_size %d, n_positions %d",
        checkpoint->path, has->n_layer, has->n_head, has->n_embd, has->vocab_size, has->n_positions,
        wanted->n_layer, wanted->n_head, wanted->n_embd, wanted->vocab_size, wanted->n_positions);
}

static enum status read_bytes(const struct checkpoint *checkpoint, const struct checkpoint_file *file,
                              uint64_t offset, size_t bytes, void *out) {
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(file->descriptor, (char *)out + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return FAIL(STATUS_FAILED, "%s/%s: cannot read at byte %" PRIu64 ": %s", checkpoint->path,
                        file->name, offset + done,
                        got < 0 ? strerror(errno) : "it became shorter while it was read");
        done += (size_t)got;
    }
    return STATUS_OK;
}

enum status checkpoint_read_span(const struct checkpoint *checkpoint, enum checkpoint_kind kind, int unit,
                                 size_t begin, size_t end, float *out) {
    if (kind == CHECKPOINT_FACTORS ? !checkpoint->has_factors : (int)kind >= checkpoint->n_kinds)
        return FAIL(STATUS_INVALID, "%s holds no \"%s\": it was written by optimizer.type %s",
                    checkpoint->path, checkpoint_kind_name(kind), checkpoint->optimizer);
    for (int i = 0; i < checkpoint->n_spans && begin < end; i++) {
        const struct checkpoint_span *span = &checkpoint->spans[i];
        if (span->kind != kind || span->unit != unit || span->end <= begin || span->begin > begin)
            continue;
        size_t n = (span->end < end ? span->end : end) - begin;
        TRY(read_bytes(checkpoint, &checkpoint->files[span->file],
                       span->offset + (begin - span->begin) * sizeof *out, n * sizeof *out, out));
        begin += n;
        out += n;
    }
    if (begin < end)
        return FAIL(STATUS_FAILED, "%s holds no elements %zu to %zu of unit %d", checkpoint->path, begin, end,
                    unit);
    return STATUS_OK;
}
