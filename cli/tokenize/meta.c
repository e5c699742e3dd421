// See cli/tokenize/meta.h.
#include "cli/tokenize/meta.h"

#include <stdlib.h>

#include "base/json.h"
#include "data/text/input.h"

static void add_tokenizer(const struct meta *meta, struct text *json) {
    if (!meta->tokenizer) {
        text_add(json, "null,\n  \"ids\": null");
        return;
    }
    char *absolute = realpath(meta->tokenizer_path, NULL); // NULL for "bytes"
    json_add_string(json, meta->tokenizer_path);
    text_add(json, ",\n  \"tokenizer_path\": ");
    json_add_string(json, absolute ? absolute : meta->tokenizer_path);
    text_add(json, ",\n  \"ids\": %d,\n  \"tokenizer_xxh3\": \"%016llx\"", tokenizer_n_ids(meta->tokenizer),
             (unsigned long long)tokenizer_checksum(meta->tokenizer));
    free(absolute);
}

static void add_split(const struct split_writer *split, struct text *json) {
    text_add(json, ",\n  \"%s\": {\"bytes\": %llu, \"tokens\": %llu, \"documents\": %llu, \"shards\": %d}",
             split->name, (unsigned long long)split->n_bytes, (unsigned long long)split->n_tokens,
             (unsigned long long)split->n_documents, split_n_shards(split));
}

static void add_sources(const struct meta *meta, struct text *json) {
    text_add(json, ",\n  \"sources\": [");
    for (int i = 0; i < meta->n_sources; i++) {
        const struct source_counts *counts = &meta->sources[i];
        text_add(json, "%s\n    {\"path\": ", i ? "," : "");
        json_add_string(json, meta->paths[i]);
        text_add(json,
                 ", \"bytes\": %llu, \"xxh3\": \"%016llx\", \"documents\": %llu, \"text_bytes\": %llu, "
                 "\"tokens\": %llu}",
                 (unsigned long long)counts->bytes, (unsigned long long)counts->checksum,
                 (unsigned long long)counts->documents, (unsigned long long)counts->text_bytes,
                 (unsigned long long)counts->tokens);
    }
    text_add(json, "\n  ]");
}

enum status meta_checksum(const char *path, uint64_t *checksum) {
    static char block[1 << 18];
    struct text_input *input;
    TRY(text_input_open(path, NULL, &input));
    enum status status = STATUS_OK;
    for (size_t n = 1; n > 0 && status == STATUS_OK;)
        status = text_input_read(input, block, sizeof block, &n);
    *checksum = text_input_checksum(input);
    text_input_close(input);
    return status;
}

static enum status add_shards(const struct split_writer *split, bool *is_first, struct text *json) {
    for (int i = 0; i < split_n_shards(split); i++) {
        char *path = output_shard_path(split, i);
        uint64_t checksum;
        enum status status = path ? meta_checksum(path, &checksum) : STATUS_FAILED;
        free(path);
        TRY(status);
        text_add(json, "%s\n    {\"file\": \"%s-%05d.bin\", \"xxh3\": \"%016llx\"}", *is_first ? "" : ",",
                 split->name, i, (unsigned long long)checksum);
        *is_first = false;
    }
    return STATUS_OK;
}

enum status meta_add(void *context, struct text *json) {
    const struct meta *meta = context;
    bool is_first = true;
    text_add(json, "{\n  \"tokenizer\": ");
    add_tokenizer(meta, json);
    add_split(&meta->output->train, json);
    add_split(&meta->output->val, json);
    add_sources(meta, json);
    text_add(json, ",\n  \"files\": [");
    TRY(add_shards(&meta->output->train, &is_first, json));
    TRY(add_shards(&meta->output->val, &is_first, json));
    text_add(json, "\n  ]\n}\n");
    return STATUS_OK;
}

bool meta_is_file(const char *path) {
    cJSON *json = NULL;
    const bool is_ours = json_read_file(path, &json) == STATUS_OK &&
                         cJSON_GetObjectItemCaseSensitive(json, "ids") &&
                         cJSON_GetObjectItemCaseSensitive(json, "tokenizer");
    cJSON_Delete(json);
    if (!is_ours)
        status_clear();
    return is_ours;
}
