// See trainer/data/defaults.h. Each rank derives the same values from the same files; the ranks' configs are
// compared afterwards.
#include "trainer/data/defaults.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "data/shard.h"
#include "options/option.h"

// ---- the tokenizer and the vocabulary

// Opens the first shard of data.train. Returns false if that fails.
static bool open_first_shard(const struct config *config, struct shard *shard) {
    struct file_list paths = {0};
    bool opened = config->data.train.n > 0 &&
                  file_glob(&paths, config->data.train.list[0].files.paths[0]) == STATUS_OK &&
                  shard_open(shard, paths.paths[0]) == STATUS_OK;
    file_list_free(&paths);
    if (!opened)
        status_clear();
    return opened;
}

static void apply_tokenizer(struct config *config, bool with_file) {
    struct shard shard;
    if (!open_first_shard(config, &shard))
        return;
    char *path = NULL;
    const bool is_recorded = shard.tokenizer.n_ids > 0;
    if (is_recorded && !config_given(config, "model.vocab_size") && !config->model.init_from[0])
        config->model.vocab_size = shard.tokenizer.n_ids;
    if (with_file && !config_given(config, "data.tokenizer") && !config->data.tokenizer[0])
        path = shard_find_tokenizer(&shard);
    if (path) {
        free(config->data.tokenizer);
        config->data.tokenizer = path;
    }
    shard_close(&shard);
}

void data_defaults_vocabulary(struct config *config) {
    apply_tokenizer(config, false);
}

// ---- validation shards

static bool matches(const char *pattern) {
    struct file_list paths = {0};
    bool found = file_glob(&paths, pattern) == STATUS_OK;
    file_list_free(&paths);
    if (!found)
        status_clear();
    return found;
}

// Returns the last "train" in the path's file name; NULL if there is none.
static const char *find_word(const char *path) {
    const char *slash = strrchr(path, '/'), *found = NULL;
    for (const char *at = slash ? slash + 1 : path; (at = strstr(at, "train")); at++)
        found = at;
    return found;
}

// Returns the pattern of the validation shards that belong to a pattern of data.train; NULL if there are
// none. For a single shard (fineweb_train_000001.bin), the number may differ (fineweb_val_000000.bin).
static char *follow(const char *train) {
    const char *word = find_word(train);
    char *pattern = NULL;
    if (!word)
        return NULL;
    const int before = (int)(word - train);
    char *candidates[] = {file_path("%.*sval%s", before, train, word + strlen("train")),
                          file_path("%.*sval*.bin", before, train)};
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++)
        if (!pattern && matches(candidates[i]))
            pattern = candidates[i];
        else
            free(candidates[i]);
    return pattern;
}

static bool holds(const struct file_list *list, const char *path) {
    for (int i = 0; i < list->n_paths; i++)
        if (strcmp(list->paths[i], path) == 0)
            return true;
    return false;
}

// Adds the patterns of the validation shards of a source of data.train to `val`; nothing if there are none.
static void follow_source(const struct file_list *train, struct file_list *val) {
    for (int i = 0; i < train->n_paths; i++) {
        char *pattern = follow(train->paths[i]);
        if (pattern && !holds(val, pattern))
            file_list_add(val, pattern);
        free(pattern);
    }
}

// Sets data.val to the validation shards beside data.train. Sources keep their weights; those without
// validation shards are left out.
static void apply_val(struct config *config) {
    const struct config_sources *train = &config->data.train;
    struct config_sources val = {.list = allocate((size_t)train->n, sizeof *val.list)};
    for (int i = 0; i < train->n; i++) {
        struct config_source *source = &val.list[val.n];
        source->weight = train->list[i].weight;
        follow_source(&train->list[i].files, &source->files);
        if (source->files.n_paths > 0)
            val.n++;
        else
            file_list_free(&source->files);
    }
    config_sources_free(&config->data.val);
    config->data.val = val;
}

// Warns if the config gives options for evaluations, but there is no validation data. The config is not
// refused, because whether there are validation shards depends on the files.
static void warn_of_no_validation(const struct config *config) {
    static const char *const names[] = {"train.eval_every", "train.eval_steps", "train.eval_final_steps"};
    struct text list = {0};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct option *option = option_find(names[i]);
        if (config_given(config, names[i]) && !option_is_default(option, config) &&
            *(int64_t *)option_value(option, config) > 0)
            text_add(&list, "%s%s", list.length ? ", " : "", names[i]);
    }
    if (list.length > 0)
        log_warning("%s: there is no validation data, so these have no effect: %s; set data.val or "
                    "data.val_split",
                    config->source, list.data);
    text_free(&list);
}

void data_defaults_apply(struct config *config) {
    apply_tokenizer(config, true);
    if (!config_given(config, "data.val")) {
        apply_val(config);
        if (config->data.val.n > 0 && config->data.val_split > 0) {
            log_info("%s: data.val_split=%g has no effect, as there are validation shards beside data.train; "
                     "data.val= leaves them out",
                     config->source, config->data.val_split);
            config->data.val_split = 0;
        }
    }
    if (config->data.val.n == 0 && config->data.val_split == 0)
        warn_of_no_validation(config);
}
