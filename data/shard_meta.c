// See data/shard_meta.h.
#include "data/shard_meta.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
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

char *shard_find_tokenizer(const struct shard *shard) {
    const char *slash = strrchr(shard->path, '/'), *name = shard->tokenizer.name;
    const int folder = slash ? (int)(slash - shard->path) + 1 : 0;
    char *meta_path = file_path("%.*smeta.json", folder, shard->path),
         *beside = file_path("%.*s%s", folder, shard->path, name), *path = NULL;
    cJSON *meta = NULL;
    if (file_exists(meta_path) && json_read_file(meta_path, &meta) != STATUS_OK)
        status_clear();
    const char *const candidates[] = {strcmp(name, "bytes") == 0 ? "bytes" : beside,
                                      meta_string(meta, "tokenizer"), meta_string(meta, "tokenizer_path")};
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates && shard->tokenizer.n_ids > 0 && !path; i++)
        if (is_tokenizer(candidates[i], &shard->tokenizer))
            path = copy_string(candidates[i]);
    cJSON_Delete(meta);
    free(beside);
    free(meta_path);
    return path;
}
