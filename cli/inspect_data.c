// See cli/inspect_data.h.
#include "cli/inspect_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/file_kind.h"
#include "data/shard_meta.h"

#define LARGEST_JSON ((size_t)64 << 20)

// ---- JSON

// What it is, and what to do with it.
#define OUR_CONFIG "a configuration of ./train", "check it: ./train check {file}"
#define DEEPSPEED_CONFIG                                                                                     \
    "a configuration of DeepSpeed", "translate it: ./train from-deepspeed {file} --out c.json"

// What a JSON object is, by two of its members. The first that fits counts.
static const struct {
    const char *keys[2]; // the second may be NULL
    const char *is, *advice;
} objects[] = {
    {{"weight_map", NULL},
     "the index of a Hugging Face model in several files",
     "its folder is for model.init_from"},
    {{"model", "pre_tokenizer"}, "a Hugging Face tokenizer that is not supported", ""},
    {{"tokenizer", "ids"}, "the meta.json of token shards", "describe the shards: ./train inspect {folder}"},
    {{"format", "format_version"}, "the manifest of a checkpoint", "describe it: ./train inspect {folder}"},
    {{"model_type", NULL},
     "the config.json of a Hugging Face model",
     "its folder, with the weights, is for model.init_from"},
    {{"architectures", NULL},
     "the config.json of a Hugging Face model",
     "its folder, with the weights, is for model.init_from"},
    {{"tokenizer_class", NULL}, "the tokenizer_config.json of a Hugging Face model", ""},
    {{"log_history", NULL}, "the trainer_state.json of a Hugging Face trainer", ""},
    {{"eos_token_id", NULL}, "the generation_config.json of a Hugging Face model", ""},
    {{"train", "model"}, OUR_CONFIG},
    {{"train", "data"}, OUR_CONFIG},
    {{"train", "optimizer"}, OUR_CONFIG},
    {{"model", "data"}, OUR_CONFIG},
    {{"model", "optimizer"}, OUR_CONFIG},
    {{"model", "zero_optimization"}, OUR_CONFIG},
    {{"zero_optimization", NULL}, DEEPSPEED_CONFIG},
    {{"train_batch_size", NULL}, DEEPSPEED_CONFIG},
    {{"train_micro_batch_size_per_gpu", NULL}, DEEPSPEED_CONFIG},
    {{"step", "loss"}, "metrics of a run, one JSON object per line", ""},
};

static enum status print_object(const char *path, const cJSON *object, bool is_lines) {
    const char *is = is_lines ? "JSON lines, not recognized" : "JSON, not recognized",
               *advice = "to train on texts in it, write them to a text file first";
    for (size_t i = sizeof objects / sizeof *objects; i-- > 0;) {
        const char *const *keys = objects[i].keys;
        if (cJSON_HasObjectItem(object, keys[0]) && (!keys[1] || cJSON_HasObjectItem(object, keys[1])))
            is = objects[i].is, advice = objects[i].advice;
    }
    char *filled = file_kind_fill(advice, path);
    if (!filled)
        return STATUS_FAILED;
    printf("%s: %s\n%s%s%s", path, is, *filled ? "  " : "", filled, *filled ? "\n" : "");
    free(filled);
    return STATUS_OK;
}

// The first line of JSON lines, or all of a file.
static enum status read_object(const char *path, cJSON **object, bool *is_lines) {
    char *text = NULL;
    size_t bytes;
    *is_lines = false;
    if (file_read(path, LARGEST_JSON, &text, &bytes) != STATUS_OK) {
        status_clear(); // too large for any of the known ones
        return STATUS_OK;
    }
    const size_t line = strcspn(text, "\n");
    if (json_parse(text, line, path, object) == STATUS_OK)
        *is_lines = line + 1 < bytes;
    else {
        status_clear();
        if (json_parse(text, bytes, path, object) != STATUS_OK)
            status_clear();
    }
    free(text);
    return STATUS_OK;
}

enum status inspect_json(const char *path, bool *described) {
    cJSON *object = NULL;
    bool is_lines;
    TRY(read_object(path, &object, &is_lines));
    *described = cJSON_IsObject(object);
    enum status status = *described ? print_object(path, object, is_lines) : STATUS_OK;
    cJSON_Delete(object);
    return status;
}

// ---- folders of shards

struct split {
    const char *name;
    int n_shards;
    size_t n_tokens;
};

struct shard_set {
    struct split splits[2]; // training, validation
    struct tokenizer_identity tokenizer;
    bool mixed; // shards of several tokenizers
};

static enum status count_shard(struct shard_set *set, const char *path, const char *name) {
    struct shard shard;
    TRY(shard_open(&shard, path));
    struct split *split = &set->splits[strstr(name, "val") != NULL];
    split->n_shards++;
    split->n_tokens += shard.n_tokens;
    set->mixed = set->mixed || tokenizer_identity_differs(&set->tokenizer, &shard.tokenizer);
    if (shard.tokenizer.n_ids > 0)
        set->tokenizer = shard.tokenizer;
    shard_close(&shard);
    return STATUS_OK;
}

static void print_set(const struct shard_set *set, const char *folder) {
    char tokenizer[TOKENIZER_DESCRIPTION_BYTES];
    printf("%s: token shards\n", folder);
    for (int i = 0; i < 2; i++)
        if (set->splits[i].n_shards > 0)
            printf("  %s: %zu tokens in %d shard%s\n", set->splits[i].name, set->splits[i].n_tokens,
                   set->splits[i].n_shards, set->splits[i].n_shards == 1 ? "" : "s");
    printf("  tokenizer: %s\n", set->mixed ? "several; data.train needs shards of one"
                                : set->tokenizer.n_ids == 0
                                    ? "not recorded"
                                    : tokenizer_identity_describe(&set->tokenizer, tokenizer));
}

enum status inspect_shards(const char *folder, bool *described) {
    struct shard_set set = {.splits = {{.name = "training"}, {.name = "validation"}}};
    struct file_list names = {0};
    enum status status = file_list_folder(&names, folder);
    for (int i = 0; i < names.n_paths && status == STATUS_OK; i++) {
        char *path = file_path("%s/%s", folder, names.paths[i]);
        if (!path)
            status = STATUS_FAILED;
        else if (shard_is_file(path))
            status = count_shard(&set, path, names.paths[i]);
        free(path);
    }
    file_list_free(&names);
    *described = set.splits[0].n_shards + set.splits[1].n_shards > 0;
    if (status == STATUS_OK && *described)
        print_set(&set, folder);
    return status;
}
