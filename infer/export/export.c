// The parts of an export that do not depend on the format: reading the weights and the tokenizer, and
// replacing the folder. Each format's writer is in a file of its own.
#include "infer/export/export.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "data/tokenizer/export.h"
#include "data/tokenizer/tokenizer.h"

#define LIVE_S   0.2  // seconds between updates of the progress line
#define REPORT_S 30.0 // seconds between messages if there is no progress line

const char *export_format_name(enum export_format format) {
    static const char *const names[N_EXPORT_FORMATS] = {"hf", "gguf"};
    return names[format];
}

// ---- reading the weights and the tokenizer

static void report_progress(struct exporter *exporter) {
    const double now = clock_monotonic_s(), interval = log_is_terminal() ? LIVE_S : REPORT_S;
    if (now - exporter->reported < interval)
        return;
    exporter->reported = now;
    struct log_field field = {.rank = 0};
    snprintf(field.text, sizeof field.text, "%.0f%% of the weights read",
             100 * (double)exporter->done / (double)exporter->total);
    if (log_is_terminal())
        log_live(&field, 1);
    else
        log_info("%s: %s", exporter->folder, field.text);
}

static enum status read_param(void *context, int index, size_t first, size_t n, float *out) {
    struct exporter *exporter = context;
    const struct param *param = &exporter->params.params[index];
    if (exporter->options->is_stopped && exporter->options->is_stopped())
        return FAIL(STATUS_STOPPED, "stopped by a signal; %s was not changed", exporter->folder);
    TRY(weights_read_span(&exporter->weights, param->unit, param->offset + first, param->offset + first + n,
                          out));
    exporter->done += n;
    report_progress(exporter);
    return STATUS_OK;
}

static enum status open_tokenizer(struct exporter *exporter) {
    const char *path = exporter->options->tokenizer;
    struct tokenizer_identity identity;
    if (path && strcmp(path, "none") == 0)
        return STATUS_OK;
    TRY(weights_load_tokenizer(&exporter->weights, path, &exporter->tokenizer, &identity));
    if (!exporter->tokenizer) {
        log_warning("%s has no tokenizer, and none is exported; name one with --tokenizer FILE",
                    exporter->path);
        return STATUS_OK;
    }
    const int n_ids = tokenizer_n_ids(exporter->tokenizer);
    if (n_ids > exporter->params.config.vocab_size)
        return FAIL(
            STATUS_INVALID,
            "the tokenizer has %d ids, and %s has a vocab_size of %d; name the model's tokenizer with "
            "--tokenizer FILE, or export without one: --tokenizer none",
            n_ids, exporter->path, exporter->params.config.vocab_size);
    return STATUS_OK;
}

// ---- the export folder

#define TEMPORARY    ".export-unfinished"
#define REPLACED     ".export-replaced"
#define FILES_LISTED 3 // maximum number of files that a message names

// True if the export folder is the folder of the weights.
static bool is_source(const struct exporter *exporter) {
    const struct checkpoint *checkpoint = exporter->weights.checkpoint;
    const char *folder = exporter->weights.folder;
    return file_is_same(exporter->path, exporter->target) ||
           (folder && file_is_same(folder, exporter->target)) ||
           (checkpoint && file_is_same(checkpoint->path, exporter->target));
}

static bool is_listed(const cJSON *files, const char *name) {
    const cJSON *item;
    cJSON_ArrayForEach(item,
                       files) if (cJSON_IsString(item) && strcmp(item->valuestring, name) == 0) return true;
    return false;
}

// Lists the files and folders in a folder that no export wrote: those that EXPORT_RECORD does not list.
static enum status list_others(const char *folder, struct file_list *others) {
    cJSON *record = NULL;
    char *path = file_path("%s/" EXPORT_RECORD, folder);
    if (file_exists(path) && json_read_file(path, &record) != STATUS_OK)
        status_clear(); // an unreadable record counts as absent
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(record, "files");
    enum status status = file_list_folder(others, folder);
    int n = 0;
    for (int i = 0; i < others->n_paths; i++) {
        char *name = others->paths[i];
        if (is_listed(files, name) || (cJSON_IsArray(files) && strcmp(name, EXPORT_RECORD) == 0))
            free(name);
        else
            others->paths[n++] = name;
    }
    others->n_paths = n;
    cJSON_Delete(record);
    free(path);
    return status;
}

static enum status check_others(const struct exporter *exporter) {
    struct file_list others = {0};
    struct text names = {0};
    enum status status = list_others(exporter->target, &others);
    for (int i = 0; i < others.n_paths && i < FILES_LISTED; i++)
        text_add(&names, "%s%s", i > 0 ? ", " : "", others.paths[i]);
    if (status == STATUS_OK && others.n_paths > 0)
        status = FAIL(STATUS_INVALID,
                      "train export: %s has files that no export wrote: %s%s; choose another folder, or add "
                      "--force, which replaces only files of the same names",
                      exporter->folder, names.data, others.n_paths > FILES_LISTED ? ", ..." : "");
    text_free(&names);
    file_list_free(&others);
    return status;
}

static enum status check_folder(const struct exporter *exporter) {
    char *replaced = file_path("%s" REPLACED, exporter->target);
    enum status status = STATUS_OK;
    if (file_exists(replaced))
        status = FAIL(STATUS_INVALID,
                      "train export: %s is a folder that a killed export was replacing; rename or remove it",
                      replaced);
    free(replaced);
    if (status != STATUS_OK || !file_exists(exporter->target))
        return status;
    if (!file_is_folder(exporter->target))
        return FAIL(STATUS_INVALID, "train export: %s is a file, expected a folder to write to",
                    exporter->folder);
    if (exporter->options->force)
        return STATUS_OK;
    if (is_source(exporter))
        return FAIL(
            STATUS_INVALID,
            "train export: %s would be written into its own folder; choose another one, or add --force",
            exporter->path);
    return check_others(exporter);
}

// Checks that exporter->folder may be written. Creates the temporary folder beside it.
static enum status make_folder(struct exporter *exporter) {
    exporter->target = realpath(exporter->folder, NULL);
    if (!exporter->target)
        exporter->target = copy_string(exporter->folder);
    for (size_t n = strlen(exporter->target); n > 1 && exporter->target[n - 1] == '/'; n--)
        exporter->target[n - 1] = '\0';
    char *temporary = file_path("%s" TEMPORARY, exporter->target);
    enum status status = check_folder(exporter);
    if (status == STATUS_OK && file_exists(temporary))
        status = file_remove_tree(temporary); // left over from a killed process
    exporter->first_missing = file_first_missing(temporary);
    if (status == STATUS_OK)
        status = file_make_folders(temporary);
    if (status == STATUS_OK)
        exporter->temporary = temporary;
    else
        free(temporary);
    return status;
}

static enum status write_record(struct exporter *exporter) {
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
        char *file = file_path("%s/%s", exporter->temporary, exporter->files.paths[i]);
        struct stat info;
        if (stat(file, &info) == 0)
            exporter->bytes += (uint64_t)info.st_size;
        free(file);
        text_add(&record, i > 0 ? ", " : "");
        json_add_string(&record, exporter->files.paths[i]);
    }
    text_add(&record, "]\n}\n");
    enum status status = file_write_all(path, record.data, record.length);
    text_free(&record);
    free(path);
    return status;
}

// With --force: moves files that no export wrote from the replaced folder to the new one, unless the new
// folder has a file of the same name.
//   all   also move files that an export wrote, because the replaced folder is that of the weights
static enum status keep_others(const struct exporter *exporter, const char *replaced, bool all) {
    struct file_list others = {0};
    enum status status = all ? file_list_folder(&others, replaced) : list_others(replaced, &others);
    for (int i = 0; i < others.n_paths && status == STATUS_OK; i++) {
        char *from = file_path("%s/%s", replaced, others.paths[i]),
             *to = file_path("%s/%s", exporter->target, others.paths[i]);
        status = file_exists(to) ? STATUS_OK : file_rename(from, to);
        free(from);
        free(to);
    }
    file_list_free(&others);
    return status;
}

static enum status replace_folder(struct exporter *exporter, const char *replaced) {
    const bool is_there = file_exists(exporter->target), of_weights = is_source(exporter);
    if (is_there)
        TRY(file_rename(exporter->target, replaced));
    enum status status = file_rename(exporter->temporary, exporter->target);
    if (status != STATUS_OK && is_there)
        rename(replaced, exporter->target);
    TRY(status);
    if (is_there && exporter->options->force)
        TRY(keep_others(exporter, replaced, of_weights));
    TRY(file_sync_folder(exporter->target));
    if (is_there)
        file_remove_unneeded(replaced);
    return STATUS_OK;
}

static enum status commit(struct exporter *exporter) {
    char *replaced = file_path("%s" REPLACED, exporter->target);
    enum status status = write_record(exporter);
    if (status == STATUS_OK)
        status = replace_folder(exporter, replaced);
    free(replaced);
    return status;
}

// ---- the export

static enum status check_type(const struct export_options *options) {
    const bool fits = options->type == VALUE_F32 || options->type == VALUE_BF16 ||
                      options->type == VALUE_F16 ||
                      (options->type == VALUE_Q8_0 && options->format == EXPORT_GGUF);
    static const char *const expected[N_EXPORT_FORMATS] = {"fp32, bf16 or fp16", "fp32, bf16, fp16 or q8_0"};
    return fits ? STATUS_OK
                : FAIL(STATUS_INVALID, "%s files cannot hold %s, expected --dtype %s",
                       export_format_name(options->format), value_type_name(options->type),
                       expected[options->format]);
}

enum status export_run(struct exporter *exporter, const char *path, const char *folder,
                       const struct export_options *options) {
    *exporter = (struct exporter){.path = path, .folder = folder, .options = options};
    TRY(check_type(options));
    TRY(weights_open(&exporter->weights, path));
    TRY(weights_choose(&exporter->weights, options->weights));
    TRY(params_init(&exporter->params, &exporter->weights.config));
    TRY(weights_bind(&exporter->weights, &exporter->params));
    TRY(open_tokenizer(exporter));
    exporter->total = exporter->params.n_weights;
    exporter->reported = clock_monotonic_s();
    exporter->source = (struct param_source){&exporter->params, path, exporter, read_param};
    TRY(make_folder(exporter));
    enum status status = options->format == EXPORT_HF ? export_huggingface(exporter) : export_gguf(exporter);
    log_live_end();
    return status == STATUS_OK ? commit(exporter) : status;
}

void export_free(struct exporter *exporter) {
    if (exporter->temporary) {
        file_discard_tree(exporter->temporary); // if this fails, the next export to the folder removes it
        file_remove_made(exporter->temporary, exporter->first_missing);
    }
    free(exporter->temporary);
    free(exporter->target);
    file_list_free(&exporter->files);
    tokenizer_delete(exporter->tokenizer);
    weights_close(&exporter->weights);
    params_free(&exporter->params);
}
