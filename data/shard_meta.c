// See data/shard_meta.h.
#include "data/shard_meta.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

// Whether `path` is the expected tokenizer. A file that cannot be read is not.
static bool is_tokenizer(const char *path, const struct tokenizer_identity *expected) {
    struct tokenizer *tokenizer = NULL;
    if (strcmp(path, "bytes") != 0 && !file_exists(path))
        return false;
    bool is_same = tokenizer_load(path, &tokenizer) == STATUS_OK;
    if (is_same) {
        const struct tokenizer_identity found = tokenizer_identify(tokenizer, path);
        is_same = found.n_ids == expected->n_ids && found.checksum == expected->checksum;
    } else
        status_clear();
    tokenizer_delete(tokenizer);
    return is_same;
}

// The string of a member of meta.json, or "" when there is none.
static const char *meta_string(const cJSON *meta, const char *key) {
    const char *value = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(meta, key));
    return value ? value : "";
}

// Tries the candidates in their order.
static enum status choose(const cJSON *meta, const struct tokenizer_identity *expected, const char *folder,
                          char **path) {
    char *beside = file_path("%s%s", folder, expected->name);
    if (!beside)
        return STATUS_FAILED;
    const char *const candidates[] = {strcmp(expected->name, "bytes") == 0 ? "bytes" : beside,
                                      meta_string(meta, "tokenizer"), meta_string(meta, "tokenizer_path")};
    enum status status = STATUS_OK;
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates && !*path && status == STATUS_OK; i++)
        if (is_tokenizer(candidates[i], expected)) {
            *path = file_path("%s", candidates[i]);
            status = *path ? STATUS_OK : STATUS_FAILED;
        }
    free(beside);
    return status;
}

enum status shard_find_tokenizer(const struct shard *shard, char **path) {
    const char *slash = strrchr(shard->path, '/');
    char *folder = file_path("%.*s", slash ? (int)(slash - shard->path) + 1 : 0, shard->path),
         *meta_path = folder ? file_path("%smeta.json", folder) : NULL;
    cJSON *meta = NULL;
    *path = NULL;
    enum status status = meta_path ? STATUS_OK : STATUS_FAILED;
    if (status == STATUS_OK && file_exists(meta_path) && json_read_file(meta_path, &meta) != STATUS_OK)
        status_clear();
    if (status == STATUS_OK && shard->tokenizer.n_ids > 0)
        status = choose(meta, &shard->tokenizer, folder, path);
    cJSON_Delete(meta);
    free(meta_path);
    free(folder);
    return status;
}
