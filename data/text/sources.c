// Finds the files of a corpus. The start of each file is checked before any file is read, so that a file
// that is not text is refused at once and not after hours.
#include "data/text/sources.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "data/corpus.h"
#include "data/text/input.h"

#define DEEPEST 64 // maximum levels of subfolders

static bool ends_with(const char *name, size_t length, const char *suffix) {
    const size_t n = strlen(suffix);
    return length > n && strncasecmp(name + length - n, suffix, n) == 0;
}

enum text_format text_format_of(const char *path) {
    static const char *const packed[] = {".gz", ".zst", ".zstd"}, *const json[] = {".jsonl", ".ndjson",
                                                                                   ".json"};
    size_t length = strlen(path);
    for (size_t i = 0; i < sizeof packed / sizeof *packed; i++)
        if (ends_with(path, length, packed[i])) {
            length -= strlen(packed[i]);
            break;
        }
    for (size_t i = 0; i < sizeof json / sizeof *json; i++)
        if (ends_with(path, length, json[i]))
            return TEXT_JSON_LINES;
    return TEXT_PLAIN;
}

static enum status look_at(struct text_source *source, const char *path, const struct stat *info) {
    struct text_input *input;
    TRY(text_input_open(path, &input));
    source->mark_bytes = text_input_mark_bytes(input);
    source->bytes = (uint64_t)info->st_size - source->mark_bytes;
    source->modified_ns = info->st_mtim.tv_sec * INT64_C(1000000000) + info->st_mtim.tv_nsec;
    source->is_sized = source->format == TEXT_PLAIN && !text_input_is_packed(input);
    text_input_close(input);
    return STATUS_OK;
}

static enum status add(struct text_sources *sources, const char *path, bool json_lines) {
    struct stat info = {0};
    struct text_source source = {.format = json_lines ? TEXT_JSON_LINES : text_format_of(path)};
    const bool is_stdin = strcmp(path, "-") == 0;
    if (!is_stdin && stat(path, &info) != 0)
        return FAIL(STATUS_INVALID, "cannot open %s: %s", path, strerror(errno));
    if (!is_stdin && S_ISREG(info.st_mode))
        TRY(look_at(&source, path, &info));
    for (int i = 0; is_stdin && i < sources->n; i++)
        if (strcmp(sources->list[i].path, "-") == 0)
            return FAIL(STATUS_INVALID, "- is given twice, but standard input can be read only once");
    RESERVE(sources->list, sources->n + 1, sources->capacity);
    source.path = copy_string(path);
    sources->list[sources->n++] = source;
    return STATUS_OK;
}

static enum status add_folder(struct text_sources *sources, const char *folder, bool json_lines, int depth);

static enum status add_entry(struct text_sources *sources, const char *path, bool json_lines, int depth) {
    struct stat info, link;
    if (stat(path, &info) != 0)
        return FAIL(STATUS_INVALID, "cannot open %s: %s", path, strerror(errno));
    if (S_ISREG(info.st_mode))
        return add(sources, path, json_lines);
    if (!S_ISDIR(info.st_mode) || lstat(path, &link) != 0 || S_ISLNK(link.st_mode))
        return STATUS_OK;
    if (depth == DEEPEST)
        return FAIL(STATUS_INVALID, "%s is more than %d folders deep", path, DEEPEST);
    return add_folder(sources, path, json_lines, depth + 1);
}

static enum status add_folder(struct text_sources *sources, const char *folder, bool json_lines, int depth) {
    struct file_list names = {0};
    const size_t length = strlen(folder);
    enum status status = file_list_folder(&names, folder);
    for (int i = 0; i < names.n_paths && status == STATUS_OK; i++) {
        if (names.paths[i][0] == '.')
            continue;
        char *path =
            file_path("%s%s%s", folder, length && folder[length - 1] == '/' ? "" : "/", names.paths[i]);
        status = add_entry(sources, path, json_lines, depth);
        free(path);
    }
    file_list_free(&names);
    return status;
}

enum status text_sources_find(const char *const *paths, int n_paths, bool json_lines,
                              struct text_sources *sources) {
    *sources = (struct text_sources){0};
    enum status status = STATUS_OK;
    for (int i = 0; i < n_paths && status == STATUS_OK; i++) {
        const int before = sources->n;
        if (!file_is_folder(paths[i]))
            status = add(sources, paths[i], json_lines);
        else if ((status = add_folder(sources, paths[i], json_lines, 0)) == STATUS_OK && sources->n == before)
            status = FAIL(STATUS_INVALID, "the folder %s holds no files", paths[i]);
    }
    if (status != STATUS_OK)
        text_sources_free(sources);
    return status;
}

void text_sources_free(struct text_sources *sources) {
    for (int i = 0; i < sources->n; i++)
        free(sources->list[i].path);
    free(sources->list);
    *sources = (struct text_sources){0};
}

// ---- splitting off held-out text

struct text_file {
    const char *path;
    int descriptor;
    uint64_t first; // offset in the file at which the text begins
};

static enum status read_file(void *context, uint64_t offset, size_t n, char *out) {
    const struct text_file *file = context;
    const int error = file_read_at(file->descriptor, file->first + offset, n, out);
    return error ? FAIL(STATUS_FAILED, "cannot read %s: %s", file->path,
                        error == FILE_READ_SHORT ? "it was truncated while in use" : strerror(error))
                 : STATUS_OK;
}

static enum status split_point(const struct text_source *source, uint64_t wanted, bool documents,
                               uint64_t *point) {
    struct text_file file = {.path = source->path, .first = source->mark_bytes};
    TRY(file_open_regular(source->path, O_RDONLY, &file.descriptor));
    enum status status =
        corpus_split_point(&(struct corpus_bytes){read_file, &file, source->bytes}, wanted, documents, point);
    close(file.descriptor);
    return status;
}

bool text_sources_are_sized(const struct text_sources *sources) {
    for (int i = 0; i < sources->n; i++)
        if (!sources->list[i].is_sized)
            return false;
    return true;
}

enum status text_sources_split(const struct text_sources *sources, double held_out, bool documents,
                               struct text_split *split) {
    uint64_t bytes = 0, point = 0;
    *split = (struct text_split){-1, 0};
    if (held_out == 0 || !text_sources_are_sized(sources))
        return STATUS_OK;
    for (int i = 0; i < sources->n; i++)
        bytes += sources->list[i].bytes;
    uint64_t wanted = (uint64_t)((double)bytes * (1 - held_out));
    for (int i = 0; i < sources->n; i++) {
        const struct text_source *source = &sources->list[i];
        TRY(split_point(source, wanted, documents, &point));
        if (point < source->bytes) {
            *split = (struct text_split){i, point};
            return STATUS_OK;
        }
        wanted -= wanted < point ? wanted : point;
    }
    return STATUS_OK;
}
