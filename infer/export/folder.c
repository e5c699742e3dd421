// The folder of an export: what may be overwritten, and files that appear together. New files are written to
// a folder below it, ".export-PID", and renamed when all are complete; the record is the last one.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "infer/export/internal.h"

#define TEMPORARY    ".export-"
#define FILES_LISTED 3 // in messages

const char *export_format_name(enum export_format format) {
    static const char *const names[N_EXPORT_FORMATS] = {"hf", "gguf"};
    return names[format];
}

// ---- what is there

static bool is_listed(const cJSON *files, const char *name) {
    const cJSON *item;
    cJSON_ArrayForEach(item, files) {
        if (cJSON_IsString(item) && strcmp(item->valuestring, name) == 0)
            return true;
    }
    return false;
}

// The record of an earlier export in the folder; NULL when there is none, or it cannot be understood.
static cJSON *read_record(const char *folder) {
    cJSON *record = NULL;
    char *path = file_path("%s/" EXPORT_RECORD, folder);
    if (path && file_exists(path) && json_read_file(path, &record) == STATUS_OK &&
        !cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(record, "files"))) {
        cJSON_Delete(record);
        record = NULL;
    }
    if (!record)
        status_clear();
    free(path);
    return record;
}

// What a process that was killed left behind.
static enum status remove_stale(const char *folder, const char *name) {
    const long process = atol(name + strlen(TEMPORARY));
    if (process <= 0 || kill((pid_t)process, 0) == 0 || errno != ESRCH)
        return STATUS_OK;
    char *path = file_path("%s/%s", folder, name);
    enum status status = path ? file_remove_tree(path) : STATUS_FAILED;
    free(path);
    return status;
}

// Names the files that no export wrote.
static enum status list_others(const char *folder, const cJSON *files, struct text *others, int *n_others) {
    struct file_list names = {0};
    enum status status = file_list_folder(&names, folder);
    for (int i = 0; i < names.n_paths && status == STATUS_OK; i++) {
        const char *name = names.paths[i];
        if (strncmp(name, TEMPORARY, strlen(TEMPORARY)) == 0)
            status = remove_stale(folder, name);
        else if (!files || !(is_listed(files, name) || strcmp(name, EXPORT_RECORD) == 0))
            if ((*n_others)++ < FILES_LISTED)
                text_add(others, "%s%s", *n_others > 1 ? ", " : "", name);
    }
    file_list_free(&names);
    return status == STATUS_OK ? text_status(others) : status;
}

static enum status check_others(const char *folder) {
    struct text others = {0};
    int n_others = 0;
    cJSON *record = read_record(folder);
    enum status status =
        list_others(folder, cJSON_GetObjectItemCaseSensitive(record, "files"), &others, &n_others);
    if (status == STATUS_OK && n_others > 0)
        status = FAIL(STATUS_INVALID,
                      "train export: %s has files that no export wrote: %s%s; choose another folder, or add "
                      "--force, which replaces only files of the same names",
                      folder, others.data, n_others > FILES_LISTED ? ", ..." : "");
    cJSON_Delete(record);
    text_free(&others);
    return status;
}

static bool is_same(const char *a, const char *b) {
    struct stat x, y;
    return a && stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

// Whether the folder is that of the weights.
static bool is_source(const struct exporter *exporter) {
    const struct checkpoint *checkpoint = exporter->weights.checkpoint;
    return is_same(exporter->path, exporter->folder) || is_same(exporter->weights.folder, exporter->folder) ||
           is_same(checkpoint ? checkpoint->path : NULL, exporter->folder);
}

static enum status check_folder(const struct exporter *exporter) {
    if (!file_exists(exporter->folder) || exporter->options->force)
        return STATUS_OK;
    if (!file_is_folder(exporter->folder))
        return FAIL(STATUS_INVALID, "train export: %s is a file, expected a folder to write to",
                    exporter->folder);
    if (is_source(exporter))
        return FAIL(
            STATUS_INVALID,
            "train export: %s would be written into its own folder; choose another one, or add --force",
            exporter->path);
    return check_others(exporter->folder);
}

enum status export_make_folder(struct exporter *exporter) {
    TRY(check_folder(exporter));
    exporter->made_folder = !file_exists(exporter->folder);
    exporter->temporary = file_path("%s/" TEMPORARY "%ld", exporter->folder, (long)getpid());
    if (!exporter->temporary)
        return STATUS_FAILED;
    return file_make_folders(exporter->temporary);
}

void export_remove_temporary(struct exporter *exporter) {
    if (exporter->temporary && file_remove_tree(exporter->temporary) == STATUS_OK && exporter->made_folder)
        rmdir(exporter->folder); // refused when an export has succeeded, as the folder is not empty then
    free(exporter->temporary);
    exporter->temporary = NULL;
}

// ---- new files

char *export_new_file(struct exporter *exporter, const char *name) {
    char **grown =
        realloc(exporter->files.paths, ((size_t)exporter->files.n_paths + 1) * sizeof *exporter->files.paths);
    if (grown)
        exporter->files.paths = grown;
    char *copy = grown ? file_path("%s", name) : NULL;
    if (!copy) {
        (void)FAIL(STATUS_FAILED, "out of memory for the name %s", name);
        return NULL;
    }
    exporter->files.paths[exporter->files.n_paths++] = copy;
    return file_path("%s/%s", exporter->temporary, name);
}

enum status export_write_text(struct exporter *exporter, const char *name, struct text *text) {
    char *path = export_new_file(exporter, name);
    enum status status = path ? text_status(text) : STATUS_FAILED;
    if (status == STATUS_OK)
        status = file_write_all(path, text->data, text->length);
    free(path);
    return status;
}

// ---- the end

static bool is_written(const struct exporter *exporter, const char *name) {
    for (int i = 0; i < exporter->files.n_paths; i++)
        if (strcmp(exporter->files.paths[i], name) == 0)
            return true;
    return false;
}

// A file of this export, or one that an earlier export listed.
static void remove_file(const struct exporter *exporter, const char *name) {
    char *path = strchr(name, '/') ? NULL : file_path("%s/%s", exporter->folder, name);
    if (path)
        unlink(path); // one that stays is in nobody's way
    free(path);
}

// The files of the earlier export that this one does not replace, unless they are its source; and its record.
static void remove_earlier(const struct exporter *exporter) {
    cJSON *record = read_record(exporter->folder);
    const bool keeps_files = is_source(exporter);
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(record, "files")) {
        if (cJSON_IsString(item) && !keeps_files && !is_written(exporter, item->valuestring))
            remove_file(exporter, item->valuestring);
    }
    if (record)
        remove_file(exporter, EXPORT_RECORD);
    cJSON_Delete(record);
}

static enum status move_file(struct exporter *exporter, const char *name) {
    char *from = file_path("%s/%s", exporter->temporary, name),
         *to = file_path("%s/%s", exporter->folder, name);
    struct stat info;
    enum status status = from && to ? file_rename(from, to) : STATUS_FAILED;
    if (status == STATUS_OK && stat(to, &info) == 0)
        exporter->bytes += (uint64_t)info.st_size;
    free(from);
    free(to);
    return status;
}

static enum status write_record(const struct exporter *exporter) {
    struct text record = {0};
    char *path = file_path("%s/" EXPORT_RECORD, exporter->temporary);
    text_add(&record, "{\n  \"program\": \"zero.c\",\n  \"format\": \"%s\",\n  \"dtype\": \"%s\",\n",
             export_format_name(exporter->options->format), value_type_name(exporter->options->type));
    if (exporter->weights.checkpoint)
        text_add(&record, "  \"step\": %lld,\n  \"tokens\": %lld,\n",
                 (long long)exporter->weights.checkpoint->step,
                 (long long)exporter->weights.checkpoint->tokens);
    text_add(&record, "  \"files\": [");
    for (int i = 0; i < exporter->files.n_paths; i++) {
        text_add(&record, i > 0 ? ", " : "");
        json_add_string(&record, exporter->files.paths[i]);
    }
    text_add(&record, "]\n}\n");
    enum status status = path ? text_status(&record) : STATUS_FAILED;
    if (status == STATUS_OK)
        status = file_write_all(path, record.data, record.length);
    text_free(&record);
    free(path);
    return status;
}

enum status export_commit(struct exporter *exporter) {
    TRY(write_record(exporter));
    remove_earlier(exporter);
    for (int i = 0; i < exporter->files.n_paths; i++)
        TRY(move_file(exporter, exporter->files.paths[i]));
    TRY(file_sync_folder(exporter->folder));
    TRY(move_file(exporter, EXPORT_RECORD));
    return file_sync_folder(exporter->folder);
}
