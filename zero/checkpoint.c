// Writing checkpoints and reading their spans. A rank's file goes through one bounce buffer, a chunk at a
// time, and is hashed on the way; nothing becomes visible under its real name before all of it is on the
// disk.
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
#include "base/log.h"
#include "zero/manifest.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "checkpoints hold little-endian floats as they are");

static const char *program_version = "unknown";

void checkpoint_set_version(const char *version) {
    program_version = version;
}

const char *checkpoint_kind_name(enum checkpoint_kind kind) {
    static const char *const names[N_CHECKPOINT_KINDS] = {"master", "m", "v"};
    return names[kind];
}

// ---- writing

static enum status write_span(const struct checkpoint_contents *contents, struct file_writer *writer,
                              XXH3_state_t *hash, float *chunk, const struct checkpoint_span *span) {
    for (size_t begin = span->begin; begin < span->end; begin += CHECKPOINT_CHUNK) {
        size_t end = span->end - begin > CHECKPOINT_CHUNK ? begin + CHECKPOINT_CHUNK : span->end;
        size_t bytes = (end - begin) * sizeof *chunk;
        TRY(contents->source.read(contents->source.context, span->kind, span->unit, begin, end, chunk));
        XXH3_64bits_update(hash, chunk, bytes);
        file_write(writer, chunk, bytes);
        if (writer->error)
            return STATUS_OK; // a full disk: file_commit tells of it
    }
    return STATUS_OK;
}

static enum status write_rank_file(const char *path, const struct checkpoint_contents *contents,
                                   const struct checkpoint_span *spans, int n_spans,
                                   struct checkpoint_file *file) {
    struct file_writer writer;
    TRY(file_writer_open(&writer, path));
    XXH3_state_t *hash = XXH3_createState();
    float *chunk = malloc(CHECKPOINT_CHUNK * sizeof *chunk);
    enum status status = STATUS_OK;
    if (!hash || !chunk) {
        status = FAIL(STATUS_FAILED, "out of memory while writing %s", path);
        goto done;
    }
    XXH3_64bits_reset(hash);
    for (int i = 0; i < n_spans && !writer.error; i++)
        TRY_GOTO(write_span(contents, &writer, hash, chunk, &spans[i]), done);
    file->bytes = writer.bytes;
    file->checksum = XXH3_64bits_digest(hash);
    status = file_commit(&writer);
done:
    file_discard(&writer);
    XXH3_freeState(hash);
    free(chunk);
    return status;
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

// What tokenizer_save wrote is read back for its checksum: it is small.
static enum status write_tokenizer(const char *path, const struct tokenizer *tokenizer,
                                   struct checkpoint_file *file) {
    TRY(tokenizer_save(tokenizer, path));
    char *data;
    size_t bytes;
    TRY(file_read(path, (size_t)1 << 30, &data, &bytes));
    file->bytes = bytes;
    file->checksum = XXH3_64bits(data, bytes);
    free(data);
    return STATUS_OK;
}

// The spans of one rank that owns everything, in file order.
static struct checkpoint_span *spans_new(const struct params *params, int n_kinds, int *n_spans) {
    struct checkpoint_span *spans = calloc((size_t)params->n_units * (size_t)n_kinds, sizeof *spans);
    uint64_t offset = 0;
    int n = 0;
    for (int unit = 0; spans && unit < params->n_units; unit++) {
        for (int kind = 0; kind < n_kinds; kind++) {
            spans[n++] = (struct checkpoint_span){.unit = unit,
                                                  .kind = (enum checkpoint_kind)kind,
                                                  .end = params->units[unit].elements,
                                                  .offset = offset};
            offset += params->units[unit].elements * sizeof(float);
        }
    }
    *n_spans = n;
    return spans;
}

static enum status write_file_in(const char *folder, const char *name, const struct text *text) {
    char *path = file_path("%s/%s", folder, name);
    if (!path)
        return STATUS_FAILED;
    enum status status = file_write_all(path, text->data, text->length);
    free(path);
    return status;
}

// Everything into the temporary folder, on the disk when this returns.
static enum status fill_folder(const char *folder, const struct checkpoint_contents *contents) {
    struct checkpoint_file files[2] = {{.name = (char[]){"rank-00000.bin"}},
                                       {.name = (char[]){TOKENIZER_NAME}}};
    int n_files = 1, n_spans = 0;
    const char *tokenizer = NULL;
    struct text manifest = {0};
    enum status status = STATUS_OK;
    struct checkpoint_span *spans = spans_new(contents->params, contents->n_kinds, &n_spans);
    char *rank_path = file_path("%s/%s", folder, files[0].name);
    char *tokenizer_path = file_path("%s/%s", folder, TOKENIZER_NAME);
    if (!spans || !rank_path || !tokenizer_path) {
        status = FAIL(STATUS_FAILED, "out of memory while writing %s", folder);
        goto done;
    }
    TRY_GOTO(write_rank_file(rank_path, contents, spans, n_spans, &files[0]), done);
    if (contents->tokenizer && strcmp(tokenizer_kind(contents->tokenizer), "bytes") == 0)
        tokenizer = "bytes";
    else if (contents->tokenizer) {
        tokenizer = TOKENIZER_NAME;
        TRY_GOTO(write_tokenizer(tokenizer_path, contents->tokenizer, &files[n_files++]), done);
    }
    TRY_GOTO(manifest_print(contents, program_version, tokenizer, files, n_files, spans, n_spans, &manifest),
             done);
    TRY_GOTO(write_file_in(folder, MANIFEST_NAME, &manifest), done);
    status = file_sync_folder(folder);
done:
    text_free(&manifest);
    free(tokenizer_path);
    free(rank_path);
    free(spans);
    return status;
}

// Gives the finished folder its name; one that has the name already steps aside first and is removed last.
static enum status publish(const char *folder, const char *temporary, const char *replaced,
                           const char *final) {
    bool exists = file_exists(final);
    if (exists) {
        TRY(file_remove_tree(replaced));
        TRY(file_rename(final, replaced));
    }
    enum status status = file_rename(temporary, final);
    if (status != STATUS_OK) {
        if (exists && file_rename(replaced, final) != STATUS_OK)
            log_warning("the checkpoint %s is now called %s", final, replaced);
        return status;
    }
    TRY(file_sync_folder(folder));
    return exists ? file_remove_tree(replaced) : STATUS_OK;
}

enum status checkpoint_write(const char *checkpoints_folder, const struct checkpoint_contents *contents) {
    TRY(file_make_folders(checkpoints_folder));
    char *final = checkpoint_path(checkpoints_folder, contents->step);
    char *temporary = file_path("%s/.tmp-step-%08" PRId64, checkpoints_folder, contents->step);
    char *replaced = file_path("%s/.tmp-replaced-step-%08" PRId64, checkpoints_folder, contents->step);
    enum status status = final && temporary && replaced ? STATUS_OK : STATUS_FAILED;
    if (status == STATUS_OK)
        status = file_remove_tree(temporary);
    if (status == STATUS_OK && mkdir(temporary, 0777) != 0)
        status = FAIL(STATUS_FAILED, "cannot make the folder %s: %s", temporary, strerror(errno));
    if (status == STATUS_OK)
        status = fill_folder(temporary, contents);
    if (status == STATUS_OK)
        status = publish(checkpoints_folder, temporary, replaced, final);
    if (status != STATUS_OK && temporary && file_remove_tree(temporary) != STATUS_OK)
        log_warning("%s is left over from a checkpoint that could not be written", temporary);
    free(replaced);
    free(temporary);
    free(final);
    return status;
}

// ---- reading

// The file must be what the manifest says, to the byte; read through once here and trusted from then on.
static enum status open_file(const char *folder, struct checkpoint_file *file) {
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
    else
        status = hash_file(file->descriptor, path, &checksum);
    if (status == STATUS_OK && checksum != file->checksum)
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

enum status checkpoint_open(const char *folder, struct checkpoint **out) {
    *out = NULL;
    struct checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    if (checkpoint)
        checkpoint->path = strdup(folder);
    enum status status = STATUS_OK;
    if (!checkpoint || !checkpoint->path) {
        status = FAIL(STATUS_FAILED, "out of memory while opening %s", folder);
        goto failed;
    }
    TRY_GOTO(read_manifest(checkpoint), failed);
    for (int i = 0; i < checkpoint->n_files; i++)
        TRY_GOTO(open_file(folder, &checkpoint->files[i]), failed);
    *out = checkpoint;
    return STATUS_OK;
failed:
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
    if ((int)kind >= checkpoint->n_kinds)
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
