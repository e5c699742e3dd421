// Writes checkpoints. Each rank writes its file through one bounce buffer, a chunk at a time, and hashes it
// as it writes. The checkpoint gets its final name only after all ranks have flushed their files to disk.
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/log.h"
#include "data/tokenizer/export.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/checkpoint/layout.h"
#include "zero/checkpoint/manifest.h"

// Bytes written between two flushes to disk. Other ranks wait for this rank's file. Flushing it all at once
// could take so long that they take it for a hang.
#define SYNC_BYTES ((uint64_t)256 << 20)

static const char *program_version = "unknown";

void checkpoint_set_version(const char *version) {
    program_version = version;
}

const char *checkpoint_version(void) {
    return program_version;
}

// A checkpoint being written.
struct writing {
    const struct checkpoint_contents *contents;
    const char *folder; // the folder of all checkpoints
    char *final, *temporary, *replaced;
    struct checkpoint_layout layout;
    struct checkpoint_file *files; // (world + 3) one per rank, then up to three of the tokenizer
    char (*names)[32];             // (world + 1) names of the ranks' files
    bool is_disk;                  // a failure in this phase is a disk error, so the phase is tried again
};

// ---- one rank's file

// Returns the smallest magnitude, as fp32 bits, that rounds to infinity in the dtype of a kind: 65520 for
// fp16. Master weights must be finite in the compute dtype: an infinite weight spoils the next step as a NaN
// does.
static uint32_t infinity_bits(const struct checkpoint_contents *contents, enum checkpoint_kind kind) {
    enum dtype type = kind == CHECKPOINT_MASTER ? contents->compute : DTYPE_F32;
    return type == DTYPE_F16    ? UINT32_C(0x477ff000)
           : type == DTYPE_BF16 ? UINT32_C(0x7f7f8000)
                                : UINT32_C(0x7f800000);
}

// True if all magnitudes, as fp32 bits, are below `infinity`. The addition makes any other magnitude carry
// into the sign bit. Additions and ORs vectorize on every instruction set.
static bool is_all_finite(const float *values, size_t n, uint32_t infinity) {
    uint32_t carries = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        carries |= (bits & UINT32_C(0x7fffffff)) + (UINT32_C(0x80000000) - infinity);
    }
    return carries >> 31 == 0;
}

// Returns the name of the tensor at an element of a unit; padding belongs to the tensor before it.
static const char *tensor_name(const struct params *params, int unit, size_t element) {
    const struct param_unit *u = &params->units[unit];
    int i = u->first_param + u->n_params - 1;
    while (i > u->first_param && params->params[i].offset > element)
        i--;
    return params->params[i].name;
}

// Fails because a value is not finite. Such a checkpoint would become the newest, and pruning would then
// remove good checkpoints.
static enum status refuse_values(const struct writing *writing, const struct checkpoint_span *span,
                                 size_t begin, const float *values) {
    const struct checkpoint_contents *contents = writing->contents;
    size_t i = 0;
    while (is_all_finite(&values[i], 1, infinity_bits(contents, span->kind)))
        i++;
    char before[80] = "there is no earlier checkpoint";
    int64_t *steps;
    int n_steps;
    if (checkpoint_list(writing->folder, &steps, &n_steps) == STATUS_OK && n_steps > 0)
        snprintf(before, sizeof before, "the last good checkpoint is step %" PRId64, steps[n_steps - 1]);
    free(steps);
    return FAIL(STATUS_FAILED,
                "no checkpoint of step %" PRId64 " was written: %s would hold %g in \"%s\" (unit %d, %s, "
                "element %zu), which is not finite as %s; the run has "
                "diverged, lower optimizer.lr or use a dynamic fp16.loss_scale; %s",
                contents->step, writing->files[contents->comm->rank].name, (double)values[i],
                checkpoint_kind_name(span->kind), span->unit,
                tensor_name(contents->params, span->unit, begin + i), begin + i,
                dtype_name(span->kind == CHECKPOINT_MASTER ? contents->compute : DTYPE_F32), before);
}

static enum status write_span(const struct writing *writing, struct file_writer *writer, XXH3_state_t *hash,
                              float *chunk, const struct checkpoint_span *span) {
    const struct checkpoint_source *source = &writing->contents->source;
    for (size_t begin = span->begin; begin < span->end; begin += CHECKPOINT_CHUNK) {
        size_t end = span->end - begin > CHECKPOINT_CHUNK ? begin + CHECKPOINT_CHUNK : span->end;
        size_t bytes = (end - begin) * sizeof *chunk;
        TRY(source->read(source->context, span->kind, span->unit, begin, end, chunk));
        if (!is_all_finite(chunk, end - begin, infinity_bits(writing->contents, span->kind)))
            return refuse_values(writing, span, begin, chunk);
        XXH3_64bits_update(hash, chunk, bytes);
        file_write(writer, chunk, bytes);
        if (writer->bytes / SYNC_BYTES != (writer->bytes - bytes) / SYNC_BYTES)
            file_sync(writer);
        if (writer->error)
            return STATUS_OK; // for example, the disk is full: file_commit reports it
    }
    return STATUS_OK;
}

static enum status write_rank_file(const char *path, struct writing *writing, int rank,
                                   struct checkpoint_file *file) {
    struct file_writer writer;
    TRY(file_writer_open(&writer, path));
    XXH3_state_t *hash = XXH3_createState();
    float *chunk = allocate(CHECKPOINT_CHUNK, sizeof *chunk);
    struct checkpoint_layout_cursor cursor = {0};
    struct checkpoint_span span;
    enum status status = STATUS_OK;
    XXH3_64bits_reset(hash);
    while (status == STATUS_OK && !writer.error &&
           checkpoint_layout_next(&writing->layout, rank, &cursor, &span))
        status = write_span(writing, &writer, hash, chunk, &span);
    file->bytes = writer.bytes;
    file->checksum = XXH3_64bits_digest(hash);
    writing->is_disk = status == STATUS_OK; // else the values cannot be read, or are not finite
    if (status == STATUS_OK)
        status = file_commit(&writer);
    file_discard(&writer);
    XXH3_freeState(hash);
    free(chunk);
    return status;
}

// ---- files that rank 0 adds

static enum status write_file_in(const char *folder, const char *name, const struct text *text) {
    char *path = file_path("%s/%s", folder, name);
    enum status status = file_write_all(path, text->data, text->length);
    free(path);
    return status;
}

// Writes the tokenizer, and reads the small file back for its checksum.
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

// Writes `text` to a file of the folder, describes the file in *file, and frees the text.
static enum status write_listed(const char *folder, char *name, struct text *text,
                                struct checkpoint_file *file) {
    *file = (struct checkpoint_file){
        .name = name, .bytes = text->length, .checksum = XXH3_64bits(text->data, text->length)};
    enum status status = write_file_in(folder, name, text);
    text_free(text);
    return status;
}

// Writes the other files that tokenizer_load reads, if this tokenizer needs them: the tokens that end
// generation, and the chat template. Appends the files to `files`.
static enum status write_beside(const char *folder, const struct tokenizer *tokenizer,
                                struct checkpoint_file *files, int *n_files) {
    const char *chat_template = tokenizer_chat_template(tokenizer);
    struct text text = {0};
    if (tokenizer_needs_ends(tokenizer)) {
        text_add(&text, "{\"eos_token_id\": ");
        tokenizer_add_ends(tokenizer, &text);
        text_add(&text, "}\n");
        TRY(write_listed(folder, TOKENIZER_ENDS_NAME, &text, &files[(*n_files)++]));
    }
    if (!chat_template)
        return STATUS_OK;
    text_add(&text, "{\"chat_template\": %s}\n", chat_template);
    return write_listed(folder, TOKENIZER_SETTINGS_NAME, &text, &files[(*n_files)++]);
}

static enum status finish_folder(struct writing *writing) {
    const struct checkpoint_contents *contents = writing->contents;
    int n_files = contents->comm->world;
    const char *tokenizer = NULL;
    struct text manifest = {0};
    const char *name = contents->tokenizer ? tokenizer_file_name(contents->tokenizer) : "";
    char *tokenizer_path = file_path("%s/%s", writing->temporary, name);
    enum status status = STATUS_OK;
    if (contents->tokenizer && strcmp(tokenizer_kind(contents->tokenizer), "bytes") == 0)
        tokenizer = "bytes";
    else if (contents->tokenizer) {
        tokenizer = name;
        status = write_tokenizer(tokenizer_path, contents->tokenizer, &writing->files[n_files++]);
        if (status == STATUS_OK)
            status = write_beside(writing->temporary, contents->tokenizer, writing->files, &n_files);
    }
    if (status == STATUS_OK) {
        manifest_print(contents, program_version, tokenizer, writing->files, n_files, &manifest);
        status = write_file_in(writing->temporary, MANIFEST_NAME, &manifest);
    }
    if (status == STATUS_OK)
        status = file_sync_folder(writing->temporary);
    text_free(&manifest);
    free(tokenizer_path);
    return status;
}

// Renames the finished folder to its final name. An existing checkpoint of that name is renamed first.
static enum status publish(struct writing *writing) {
    const char *final = writing->final, *replaced = writing->replaced;
    bool exists = file_exists(final);
    if (exists) {
        TRY(file_remove_tree(replaced));
        TRY(file_rename(final, replaced));
    }
    enum status status = file_rename(writing->temporary, final);
    if (status != STATUS_OK && exists && file_rename(replaced, final) != STATUS_OK)
        log_warning("the checkpoint %s could not be restored to its name; it is now %s", final, replaced);
    return status;
}

static enum status sync_name(struct writing *writing) {
    return file_sync_folder(writing->folder);
}

// ---- all ranks together

static void writing_init(struct writing *writing, const char *folder,
                         const struct checkpoint_contents *contents) {
    int world = contents->comm->world;
    *writing = (struct writing){
        .contents = contents,
        .folder = folder,
        .final = checkpoint_path(folder, contents->step),
        .temporary = file_path("%s/.tmp-step-%08" PRId64, folder, contents->step),
        .replaced = file_path("%s/" REPLACED_PREFIX "step-%08" PRId64, folder, contents->step),
        .files = allocate((size_t)world + 3, sizeof *writing->files),
        .names = allocate((size_t)world + 1, sizeof *writing->names)};
    for (int rank = 0; rank <= world; rank++) {
        snprintf(writing->names[rank], sizeof *writing->names, MANIFEST_RANK_FILE, rank);
        writing->files[rank].name = writing->names[rank];
    }
    if (contents->tokenizer)
        writing->files[world].name = (char *)(uintptr_t)tokenizer_file_name(contents->tokenizer);
    checkpoint_layout_init(&writing->layout, contents->params, contents->partition, &contents->kinds);
}

static void writing_free(struct writing *writing) {
    free(writing->final);
    free(writing->temporary);
    free(writing->replaced);
    checkpoint_layout_free(&writing->layout);
    free(writing->files);
    free(writing->names);
}

static enum status make_folder(struct writing *writing) {
    // Do not create the parents: if a run's folder was removed, it must not come back.
    if (mkdir(writing->folder, 0777) != 0 && errno != EEXIST)
        return FAIL(STATUS_FAILED, "cannot create the folder %s: %s", writing->folder, strerror(errno));
    TRY(file_remove_tree(writing->temporary));
    if (mkdir(writing->temporary, 0777) != 0)
        return FAIL(STATUS_FAILED, "cannot create the folder %s: %s", writing->temporary, strerror(errno));
    return STATUS_OK;
}

static enum status write_own_file(struct writing *writing) {
    int rank = writing->contents->comm->rank;
    if (!file_is_folder(writing->temporary))
        return FAIL(STATUS_FAILED,
                    "%s was created by rank 0, but does not exist on this rank: run.dir must be in a file "
                    "system that all machines share",
                    writing->temporary);
    char *path = file_path("%s/%s", writing->temporary, writing->files[rank].name);
    enum status status = write_rank_file(path, writing, rank, &writing->files[rank]);
    free(path);
    return status;
}

// What a rank reports about its file.
struct written {
    int64_t step;
    uint64_t bytes, checksum;
};

// Checks that the folder that rank 0 is about to publish has the rank's file, with the size that the rank
// reported.
static enum status check_written(struct writing *writing, int rank, const struct written *written) {
    const struct checkpoint_contents *contents = writing->contents;
    struct stat found;
    char seen[64];
    if (written->step != contents->step)
        return FAIL(STATUS_FAILED,
                    "rank %d writes a checkpoint of step %" PRId64 ", but rank 0 one of step %" PRId64, rank,
                    written->step, contents->step);
    if (written->bytes != writing->layout.file_bytes[rank])
        return FAIL(STATUS_FAILED, "rank %d wrote %" PRIu64 " bytes of a checkpoint, expected %" PRIu64, rank,
                    written->bytes, writing->layout.file_bytes[rank]);
    char *path = file_path("%s/%s", writing->temporary, writing->names[rank]);
    bool there = stat(path, &found) == 0;
    if (there)
        snprintf(seen, sizeof seen, "a file of %jd bytes", (intmax_t)found.st_size);
    else
        snprintf(seen, sizeof seen, "none (%s)", strerror(errno));
    enum status status = STATUS_OK;
    if (!there || !S_ISREG(found.st_mode) || (uint64_t)found.st_size != written->bytes)
        status = FAIL(STATUS_FAILED,
                      "%s: rank %d has written %" PRIu64
                      " bytes, but rank 0 finds %s; run.dir must be a folder that all machines share",
                      path, rank, written->bytes, seen);
    free(path);
    return status;
}

// Gathers the size and checksum of every rank's file on rank 0, for the manifest.
static enum status gather_files(struct writing *writing) {
    struct comm *comm = writing->contents->comm;
    const struct checkpoint_file *own = &writing->files[comm->rank];
    struct written mine = {writing->contents->step, own->bytes, own->checksum},
                   *all = allocate((size_t)comm->world, sizeof mine);
    enum status status = comm_gather(comm, &mine, sizeof mine, all);
    for (int rank = 0; rank < comm->world && status == STATUS_OK && comm->rank == 0; rank++) {
        writing->files[rank].bytes = all[rank].bytes;
        writing->files[rank].checksum = all[rank].checksum;
        status = check_written(writing, rank, &all[rank]);
    }
    free(all);
    return comm_agree(comm, status);
}

// Runs one phase of writing. If the disk fails, tries the phase once more: some failures are brief, but
// would end the run.
static enum status attempt(struct writing *writing, enum status (*act)(struct writing *writing)) {
    const struct timespec nap = {.tv_nsec = 500000000};
    writing->is_disk = true;
    const enum status status = act(writing);
    if (status != STATUS_FAILED || !writing->is_disk || !file_is_folder(writing->folder))
        return status;
    log_warning("%s; trying once more", status_message());
    status_clear();
    nanosleep(&nap, NULL);
    return act(writing);
}

static enum status finish(struct writing *writing) {
    TRY(attempt(writing, finish_folder));
    TRY(attempt(writing, publish));
    TRY(attempt(writing, sync_name));
    file_remove_unneeded(writing->replaced);
    return STATUS_OK;
}

static enum status write_together(struct writing *writing) {
    struct comm *comm = writing->contents->comm;
    bool first = comm->rank == 0;
    TRY(comm_agree(comm, first ? attempt(writing, make_folder) : STATUS_OK));
    TRY(comm_agree(comm, attempt(writing, write_own_file)));
    TRY(gather_files(writing));
    return comm_agree(comm, first ? finish(writing) : STATUS_OK);
}

enum status checkpoint_write(const char *checkpoints_folder, const struct checkpoint_contents *contents) {
    struct writing writing;
    struct comm *comm = contents->comm;
    writing_init(&writing, checkpoints_folder, contents);
    enum status status = write_together(&writing);
    if (status != STATUS_OK && comm->rank == 0 && file_remove_tree(writing.temporary) != STATUS_OK)
        log_warning("%s, left by the failed checkpoint, could not be removed", writing.temporary);
    writing_free(&writing);
    return status;
}
