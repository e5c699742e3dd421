// See data/shard_meta.h.
#include "data/shard_meta.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

// Whether `path` is the tokenizer that the shard records. A file that cannot be read is not.
static bool is_tokenizer_of(const struct shard *shard, const char *path) {
    struct tokenizer *tokenizer = NULL;
    if (strcmp(path, "bytes") != 0 && !file_exists(path))
        return false;
    bool is_same = tokenizer_load(path, &tokenizer) == STATUS_OK;
    if (is_same) {
        const struct tokenizer_identity found = tokenizer_identify(tokenizer, path);
        is_same = shard->tokenizer.n_ids > 0 && !tokenizer_identity_differs(&found, &shard->tokenizer);
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

enum status shard_find_tokenizer(const struct shard *shard, char **path) {
    const char *slash = strrchr(shard->path, '/');
    const int folder = slash ? (int)(slash - shard->path) + 1 : 0;
    char *beside = file_path("%.*s%s", folder, shard->path, shard->tokenizer.name),
         *meta_path = file_path("%.*smeta.json", folder, shard->path);
    cJSON *meta = NULL;
    *path = NULL;
    enum status status = beside && meta_path ? STATUS_OK : STATUS_FAILED;
    if (status == STATUS_OK && (!file_exists(meta_path) || json_read_file(meta_path, &meta) != STATUS_OK))
        status_clear();
    if (status == STATUS_OK) {
        const char *const candidates[] = {strcmp(shard->tokenizer.name, "bytes") == 0 ? "bytes" : beside,
                                          meta_string(meta, "tokenizer"),
                                          meta_string(meta, "tokenizer_path")};
        for (size_t i = 0; i < sizeof candidates / sizeof *candidates && !*path; i++)
            if (is_tokenizer_of(shard, candidates[i])) {
                *path = file_path("%s", candidates[i]);
                status = *path ? STATUS_OK : STATUS_FAILED;
            }
    }
    cJSON_Delete(meta);
    free(meta_path);
    free(beside);
    return status;
}
