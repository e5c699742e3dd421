// Opens checkpoints and reads their values. A checkpoint is verified completely when it is opened. Rank 0
// reads the manifest and broadcasts it. Then each of the ranks that open it together verifies the sizes and
// checksums of some of the data files.
#include "zero/checkpoint/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "zero/checkpoint/files.h"
#include "zero/checkpoint/manifest.h"
#include "zero/checkpoint/ranks.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "checkpoints are written as little-endian floats without conversion");

// ---- the manifest

struct manifest_text {
    char *json;
    uint64_t length;
    char place[RANKS_PLACE]; // where rank 0 read it
};

static enum status read_manifest(struct checkpoint *checkpoint, struct manifest_text *text) {
    char *path = file_path("%s/" MANIFEST_NAME, checkpoint->path);
    size_t length = 0;
    ranks_describe_place(checkpoint->path, text->place);
    enum status status = checkpoint_file_read_all(path, MANIFEST_MAX_BYTES, &text->json, &length);
    text->length = length;
    if (status == STATUS_OK)
        status = manifest_parse(checkpoint, text->json, length, path);
    free(path);
    return status;
}

// Broadcasts the manifest that rank 0 has read.
static enum status broadcast_manifest(struct comm *comm, struct manifest_text *text) {
    TRY(ranks_broadcast(comm, &text->length, sizeof text->length));
    TRY(ranks_broadcast(comm, text->place, sizeof text->place));
    if (!text->json)
        text->json = allocate(text->length + 1, 1);
    return ranks_broadcast(comm, text->json, text->length);
}

// Checks that the manifest on this rank's file system is the one that rank 0 has read. It compares the size
// and the seal (a checksum of all text before it), so each rank reads 40 bytes instead of the whole manifest.
static enum status compare_manifest(const struct checkpoint *checkpoint, const struct manifest_text *text) {
    char place[RANKS_PLACE], tail[MANIFEST_SEAL_BYTES];
    uint64_t bytes = 0;
    enum checkpoint_path_kind kind;
    char *path = file_path("%s/" MANIFEST_NAME, checkpoint->path);
    ranks_describe_place(checkpoint->path, place);
    enum status status = checkpoint_path_look(path, &kind);
    if (status == STATUS_OK && kind == CHECKPOINT_PATH_ABSENT)
        status = FAIL(STATUS_FAILED,
                      "there is no " MANIFEST_NAME " in %s, but rank 0 reads one of %" PRIu64
                      " bytes in %s; run.dir must be a folder that all machines share",
                      place, text->length, text->place);
    if (status == STATUS_OK)
        status = checkpoint_file_tail(path, &bytes, tail, sizeof tail);
    if (status == STATUS_OK &&
        (bytes != text->length || memcmp(tail, text->json + bytes - sizeof tail, sizeof tail)))
        status = FAIL(STATUS_FAILED,
                      "the " MANIFEST_NAME " in %s (%" PRIu64
                      " bytes) is not the one that rank 0 reads in %s (%" PRIu64
                      " bytes); run.dir must be a folder that all machines share",
                      place, bytes, text->place, text->length);
    free(path);
    return status == STATUS_OK ? STATUS_OK : STATUS_FAILED; // not damage: rank 0 could read it
}

static enum status check_manifest(struct checkpoint *checkpoint, const struct manifest_text *text) {
    TRY(compare_manifest(checkpoint, text));
    return manifest_parse(checkpoint, text->json, text->length, text->place);
}

// Reads the manifest on rank 0, and compares it with what the other ranks find. Every rank issues the same
// collectives, whatever its file system holds.
static enum status open_manifest(struct comm *comm, struct checkpoint *checkpoint,
                                 struct manifest_text *text) {
    TRY(ranks_agree(comm, ranks_is_root(comm) ? read_manifest(checkpoint, text) : STATUS_OK));
    if (!comm || comm->world == 1)
        return STATUS_OK;
    TRY(broadcast_manifest(comm, text));
    return ranks_agree(comm, ranks_is_root(comm) ? STATUS_OK : check_manifest(checkpoint, text));
}

// ---- opening

// Verifies every world-th file, beginning with the file whose index is this rank.
static enum status verify_files(struct checkpoint *checkpoint, struct comm *comm) {
    for (int i = comm ? comm->rank : 0; i < checkpoint->n_files; i += comm ? comm->world : 1)
        TRY(checkpoint_files_verify(checkpoint->open, &checkpoint->files[i], comm));
    return STATUS_OK;
}

// Resolves the link RUN/checkpoints/best once. All files are then read from the same checkpoint, even if
// the run moves the link meanwhile.
static char *follow_link(const char *folder) {
    char name[64];
    const ssize_t length = readlink(folder, name, sizeof name);
    const char *slash = strrchr(folder, '/');
    if (length <= 0 || length == (ssize_t)sizeof name || memchr(name, '/', (size_t)length))
        return copy_string(folder);
    return file_path("%.*s%.*s", slash ? (int)(slash + 1 - folder) : 0, folder, (int)length, name);
}

enum status checkpoint_open(struct comm *comm, const char *folder, struct checkpoint **out) {
    struct checkpoint *checkpoint = allocate(1, sizeof *checkpoint);
    struct manifest_text text = {0};
    *out = NULL;
    checkpoint->path = follow_link(folder);
    checkpoint->open = checkpoint_files_new(checkpoint->path);
    enum status status = open_manifest(comm, checkpoint, &text);
    if (status == STATUS_OK)
        status = ranks_agree(comm, verify_files(checkpoint, comm));
    free(text.json);
    if (status == STATUS_OK)
        *out = checkpoint;
    else
        checkpoint_close(checkpoint);
    return status;
}

uint64_t checkpoint_bytes(const struct checkpoint *checkpoint) {
    uint64_t total = 0;
    for (int i = 0; i < checkpoint->n_files; i++)
        total += checkpoint->files[i].bytes;
    return total;
}

void checkpoint_clear(struct checkpoint *checkpoint) {
    checkpoint_files_delete(checkpoint->open);
    for (int i = 0; i < checkpoint->n_files; i++)
        free(checkpoint->files[i].name);
    free(checkpoint->files);
    checkpoint_layout_free(&checkpoint->layout);
    free(checkpoint->tokenizer);
    free(checkpoint->optimizer);
    free(checkpoint->device);
    free(checkpoint->fingerprint);
    free(checkpoint->n_moments);
    free(checkpoint->version);
    run_state_free(&checkpoint->run);
    params_free(&checkpoint->params);
    config_free(&checkpoint->config);
    free(checkpoint->path);
    *checkpoint = (struct checkpoint){0};
}

void checkpoint_close(struct checkpoint *checkpoint) {
    if (!checkpoint)
        return;
    checkpoint_clear(checkpoint);
    free(checkpoint);
}

enum status checkpoint_check_model(const struct checkpoint *checkpoint, const struct params *params) {
    const struct gpt_config *has = &checkpoint->params.config, *wanted = &params->config;
    const char *difference = gpt_config_difference(has, wanted);
    if (!difference)
        return STATUS_OK;
    if (has->family != FAMILY_GPT2 || wanted->family != FAMILY_GPT2)
        return FAIL(STATUS_INVALID, "%s is a checkpoint of another model: its %s differs from this run's",
                    checkpoint->path, difference);
    return FAIL(
        STATUS_INVALID,
        "%s is a checkpoint of another model: it has n_layer %d, n_head %d, n_embd %d, vocab_size %d, "
        "n_positions %d; this run has n_layer %d, n_head %d, n_embd %d, vocab_size %d, n_positions %d",
        checkpoint->path, has->n_layer, has->n_head, has->n_embd, has->vocab_size, has->n_positions,
        wanted->n_layer, wanted->n_head, wanted->n_embd, wanted->vocab_size, wanted->n_positions);
}

// ---- reading

enum status checkpoint_read_span(const struct checkpoint *checkpoint, enum checkpoint_kind kind, int unit,
                                 size_t begin, size_t end, float *out) {
    if (kind == CHECKPOINT_AVERAGE && !checkpoint->kinds.has_average)
        return FAIL(STATUS_INVALID, "%s has no average of the weights", checkpoint->path);
    if (!checkpoint_layout_holds(&checkpoint->layout, (int)kind))
        return FAIL(STATUS_INVALID, "%s holds no \"%s\": it was written by optimizer.type %s",
                    checkpoint->path, checkpoint_kind_name(kind), checkpoint->optimizer);
    while (begin < end) {
        struct checkpoint_span span;
        if (!checkpoint_layout_find(&checkpoint->layout, kind, unit, begin, &span))
            return FAIL(STATUS_FAILED, "%s holds no elements %zu to %zu of unit %d", checkpoint->path, begin,
                        end, unit);
        size_t n = (span.end < end ? span.end : end) - begin;
        if (span.file < 0)
            memset(out, 0, n * sizeof *out);
        else
            TRY(checkpoint_files_read(checkpoint->open, &checkpoint->files[span.file], span.offset,
                                      n * sizeof *out, out));
        begin += n;
        out += n;
    }
    return STATUS_OK;
}

static enum status read_source(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                               float *out) {
    return checkpoint_read_span(context, kind, unit, begin, end, out);
}

struct checkpoint_source checkpoint_source_of(const struct checkpoint *checkpoint) {
    return (struct checkpoint_source){.context = (void *)(uintptr_t)checkpoint,
                                      .read = read_source,
                                      .has_average = checkpoint->kinds.has_average};
}
