// Writes the token shards and their meta.json.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/tokenize/tokenize.h"

#define UNFINISHED "tokenize.unfinished"

void output_init(struct output *output, const struct tokenize_options *options,
                 const struct tokenizer_identity *tokenizer) {
    const bool is_32 =
        tokenizer->n_ids > SHARD_MOST_IDS_16 || (options->dtype && strcmp(options->dtype, "uint32") == 0);
    const char *folder = options->out;
    const struct split_writer split = {.folder = folder,
                                       .shard_tokens = (size_t)options->shard_tokens,
                                       .token_bytes = is_32 ? sizeof(uint32_t) : sizeof(uint16_t),
                                       .tokenizer = *tokenizer};
    *output = (struct output){folder, split, split};
    output->train.name = "train";
    output->val.name = "val";
}

char *output_unfinished_path(const char *folder, const char *name) {
    return file_path("%s/" UNFINISHED "%s", folder, name);
}

// Returns the path of a shard, to be freed.
//   finished   true: in the output folder; false: in its folder tokenize.unfinished
static char *shard_path(const struct split_writer *split, int index, bool finished) {
    return file_path("%s/%s%s-%05d.bin", split->folder, finished ? "" : UNFINISHED "/", split->name, index);
}

int output_shard_index(const char *name, const char *split) {
    const size_t length = strlen(split);
    int index, end = 0;
    const bool is_shard = strncmp(name, split, length) == 0 &&
                          sscanf(name + length, "-%9d.bin%n", &index, &end) == 1 && end > 0 && index >= 0 &&
                          name[length + (size_t)end] == '\0';
    return is_shard ? index : -1;
}

static int n_shards_of(const struct split_writer *split, uint64_t n_tokens) {
    return (int)((n_tokens + split->shard_tokens - 1) / split->shard_tokens);
}

// ---- writing shards

static enum status open_shard(struct split_writer *split) {
    char *path = shard_path(split, (int)(split->counts.n_tokens / split->shard_tokens), false);
    enum status status = shard_writer_open(&split->shard, path, split->token_bytes);
    free(path);
    split->is_open = status == STATUS_OK;
    split->shard.tokenizer = split->tokenizer;
    return status;
}

static enum status finish_shard(struct split_writer *split) {
    if (!split->is_open)
        return STATUS_OK;
    split->is_open = false;
    split->counts.n_kept = split->counts.n_tokens;
    return shard_writer_commit(&split->shard);
}

enum status split_add(struct split_writer *split, const int32_t *ids, size_t n) {
    struct split_counts *counts = &split->counts;
    for (size_t i = 0, now; i < n; i += now) {
        const bool kept = counts->n_tokens < counts->n_kept;
        const size_t room = kept ? (size_t)(counts->n_kept - counts->n_tokens)
                                 : split->shard_tokens - (size_t)(counts->n_tokens % split->shard_tokens);
        now = n - i < room ? n - i : room;
        if (!kept && !split->is_open)
            TRY(open_shard(split));
        if (!kept)
            shard_writer_add(&split->shard, ids + i, now);
        counts->n_tokens += now;
        if (!kept && now == room)
            TRY(finish_shard(split));
    }
    return STATUS_OK;
}

enum status split_end(struct split_writer *split) {
    split->counts.is_ended = true;
    return finish_shard(split);
}

bool split_is_kept(const struct split_writer *split) {
    const uint64_t n_kept = split->counts.n_kept;
    bool kept = true;
    for (int i = 0; kept && i < n_shards_of(split, n_kept); i++) {
        const uint64_t left = n_kept - (uint64_t)i * split->shard_tokens;
        struct shard shard;
        char *path = shard_path(split, i, false);
        kept = shard_open(&shard, path) == STATUS_OK;
        if (kept) {
            kept = shard.n_tokens == (left < split->shard_tokens ? left : split->shard_tokens);
            shard_close(&shard);
        } else
            status_clear();
        free(path);
    }
    return kept;
}

void split_report(const struct split_writer *split) {
    const struct split_counts *counts = &split->counts;
    const int n_shards = n_shards_of(split, counts->n_tokens);
    const char *plural = n_shards == 1 ? "" : "s";
    if (counts->n_tokens > 0 && counts->n_bytes > 0)
        log_info("%s: %llu bytes, %llu tokens in %d shard%s, %.2f bytes per token", split->name,
                 (unsigned long long)counts->n_bytes, (unsigned long long)counts->n_tokens, n_shards, plural,
                 (double)counts->n_bytes / (double)counts->n_tokens);
    else if (counts->n_tokens > 0)
        log_info("%s: %llu tokens in %d shard%s", split->name, (unsigned long long)counts->n_tokens, n_shards,
                 plural);
}

void output_abandon(struct output *output, bool keep) {
    struct split_writer *const splits[] = {&output->train, &output->val};
    for (int i = 0; i < 2; i++) {
        if (splits[i]->is_open)
            shard_writer_discard(&splits[i]->shard);
        splits[i]->is_open = false;
    }
    char *folder = output_unfinished_path(output->folder, "");
    if (!keep)
        file_discard_tree(folder);
    free(folder);
}

// ---- splitting off held-out tokens, after all tokens have been written

// Reads tokens of a split that has ended, by their index in the split.
struct token_reader {
    const struct split_writer *split;
    struct shard shard;
    int index; // index of the open shard; -1: none
};

// Reads up to n tokens of the split from index `first` on; fewer if the shard that contains them ends
// before.
static enum status read_tokens(struct token_reader *reader, uint64_t first, size_t n, int32_t *tokens,
                               size_t *n_read) {
    const size_t shard_tokens = reader->split->shard_tokens;
    const int index = (int)(first / shard_tokens);
    if (reader->index != index) {
        char *path = shard_path(reader->split, index, false);
        if (reader->index >= 0)
            shard_close(&reader->shard);
        reader->index = -1;
        enum status status = shard_open(&reader->shard, path);
        free(path);
        TRY(status);
        reader->index = index;
    }
    const size_t at = (size_t)(first % shard_tokens), left = reader->shard.n_tokens - at;
    *n_read = n < left ? n : left;
    return shard_read(&reader->shard, at, *n_read, tokens);
}

enum { READ_TOKENS = 1 << 16 };

// Finds the first token from index `from` on that begins a document.
//   start_id   id of the token that begins documents
//   tokens     (READ_TOKENS) scratch
//   at         [out] its index; the split's n_tokens if there is none
static enum status find_document(struct token_reader *reader, uint64_t from, int32_t start_id,
                                 int32_t *tokens, uint64_t *at) {
    size_t n;
    for (*at = from; *at < reader->split->counts.n_tokens; *at += n) {
        TRY(read_tokens(reader, *at, READ_TOKENS, tokens, &n));
        for (size_t i = 0; i < n; i++)
            if (tokens[i] == start_id) {
                *at += i;
                return STATUS_OK;
            }
    }
    return STATUS_OK;
}

// Finds where the held-out tokens begin: at the first document that begins at index `target` or later; else
// at the last document; else (a single document) at `target`.
static enum status find_cut(struct token_reader *reader, uint64_t target, int32_t start_id, int32_t *tokens,
                            uint64_t *cut) {
    TRY(find_document(reader, target, start_id, tokens, cut));
    if (*cut < reader->split->counts.n_tokens)
        return STATUS_OK;
    *cut = target;
    for (uint64_t last = target; last > 0;) {
        size_t n;
        const uint64_t in_shard = (last - 1) % reader->split->shard_tokens + 1,
                       now = in_shard < READ_TOKENS ? in_shard : READ_TOKENS;
        last -= now;
        TRY(read_tokens(reader, last, (size_t)now, tokens, &n));
        for (size_t i = n; i-- > 0;)
            if (tokens[i] == start_id) {
                *cut = last + i > 0 ? last + i : target;
                return STATUS_OK;
            }
    }
    return STATUS_OK;
}

static enum status move_tokens(struct output *output, struct token_reader *reader, uint64_t cut,
                               const struct tokenizer *tokenizer, int32_t *tokens) {
    struct split_counts *train = &output->train.counts, *val = &output->val.counts;
    const int32_t start_id = tokenizer_document_start(tokenizer);
    uint64_t n_documents = 0, n_bytes = 0; // how many documents and bytes of text are moved
    int32_t before = start_id;
    size_t n;
    for (uint64_t at = cut; at < train->n_tokens; at += n) {
        TRY(read_tokens(reader, at, READ_TOKENS, tokens, &n));
        if (at == cut && tokens[0] != start_id) { // the cut is in a document; its rest becomes one of val
            TRY(split_add(&output->val, &start_id, 1));
            val->n_documents++;
        }
        for (size_t i = 0; i < n; i++)
            n_documents += tokens[i] == start_id;
        n_bytes += tokenizer_text_bytes(tokenizer, before, tokens, n);
        before = tokens[n - 1];
        TRY(split_add(&output->val, tokens, n));
    }
    val->n_bytes = n_bytes;
    train->n_bytes -= n_bytes;
    train->n_documents -= n_documents;
    val->n_documents += n_documents;
    TRY(split_end(&output->val));
    // Write the shard that contains the cut again, up to the cut. Its tokens are read from the old file,
    // which is still open.
    train->n_tokens = train->n_kept = cut - cut % output->train.shard_tokens;
    while (train->n_tokens < cut) {
        const uint64_t left = cut - train->n_tokens;
        TRY(read_tokens(reader, train->n_tokens, left < READ_TOKENS ? (size_t)left : READ_TOKENS, tokens,
                        &n));
        TRY(split_add(&output->train, tokens, n));
    }
    return split_end(&output->train);
}

enum status output_hold_out(struct output *output, double held_out, const struct tokenizer *tokenizer) {
    const uint64_t n = output->train.counts.n_tokens, target = (uint64_t)((double)n * (1 - held_out));
    struct token_reader reader = {.split = &output->train, .index = -1};
    int32_t *tokens = allocate(READ_TOKENS, sizeof *tokens);
    uint64_t cut = n;
    enum status status =
        find_cut(&reader, target > 0 ? target : 1, tokenizer_document_start(tokenizer), tokens, &cut);
    if (status == STATUS_OK && cut < n)
        status = move_tokens(output, &reader, cut, tokenizer, tokens);
    if (reader.index >= 0)
        shard_close(&reader.shard);
    free(tokens);
    return status;
}

// ---- meta.json

static void add_tokenizer(const struct meta *meta, struct text *json) {
    if (!meta->tokenizer) {
        text_add(json, "null,\n  \"ids\": null");
        return;
    }
    char *absolute = realpath(meta->tokenizer_path, NULL); // NULL for "bytes", which is not a file
    json_add_string(json, meta->tokenizer_path);
    text_add(json, ",\n  \"tokenizer_path\": ");
    json_add_string(json, absolute ? absolute : meta->tokenizer_path);
    text_add(json, ",\n  \"ids\": %d,\n  \"tokenizer_xxh3\": \"%016llx\"", tokenizer_n_ids(meta->tokenizer),
             (unsigned long long)tokenizer_checksum(meta->tokenizer));
    free(absolute);
}

static void add_split(const struct split_writer *split, struct text *json) {
    text_add(json, ",\n  \"%s\": {\"bytes\": %llu, \"tokens\": %llu, \"documents\": %llu, \"shards\": %d}",
             split->name, (unsigned long long)split->counts.n_bytes,
             (unsigned long long)split->counts.n_tokens, (unsigned long long)split->counts.n_documents,
             n_shards_of(split, split->counts.n_tokens));
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
    FILE *file = fopen(path, "rb");
    if (!file)
        return FAIL(STATUS_FAILED, "cannot open %s: %s", path, strerror(errno));
    XXH3_state_t *hash = XXH3_createState();
    XXH3_64bits_reset(hash);
    for (size_t n; (n = fread(block, 1, sizeof block, file)) > 0;)
        XXH3_64bits_update(hash, block, n);
    *checksum = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    const enum status status =
        ferror(file) ? FAIL(STATUS_FAILED, "cannot read %s: %s", path, strerror(errno)) : STATUS_OK;
    fclose(file);
    return status;
}

static enum status add_shards(const struct split_writer *split, bool *is_first, struct text *json) {
    for (int i = 0; i < n_shards_of(split, split->counts.n_tokens); i++) {
        char *path = shard_path(split, i, true);
        uint64_t checksum;
        enum status status = meta_checksum(path, &checksum);
        free(path);
        TRY(status);
        text_add(json, "%s\n    {\"file\": \"%s-%05d.bin\", \"xxh3\": \"%016llx\"}", *is_first ? "" : ",",
                 split->name, i, (unsigned long long)checksum);
        *is_first = false;
    }
    return STATUS_OK;
}

static enum status write_meta(const struct output *output, const struct meta *meta, const char *path) {
    struct text json = {0};
    bool is_first = true;
    text_add(&json, "{\n  \"tokenizer\": ");
    add_tokenizer(meta, &json);
    add_split(&output->train, &json);
    add_split(&output->val, &json);
    add_sources(meta, &json);
    text_add(&json, ",\n  \"files\": [");
    enum status status = add_shards(&output->train, &is_first, &json);
    if (status == STATUS_OK)
        status = add_shards(&output->val, &is_first, &json);
    text_add(&json, "\n  ]\n}\n");
    if (status == STATUS_OK)
        status = file_write_all(path, json.data, json.length);
    text_free(&json);
    return status;
}

// ---- publishing: moving the finished shards to the output folder

static enum status publish_shard(const struct split_writer *split, int index) {
    char *from = shard_path(split, index, false), *to = shard_path(split, index, true);
    enum status status = file_rename(from, to);
    free(from);
    free(to);
    return status;
}

// Removes the split's shards with an index of at least `first` from the output folder.
//   n_removed   [in,out] their number is added
static enum status remove_shards(const struct split_writer *split, int first, int *n_removed) {
    struct file_list names = {0};
    enum status status = file_list_folder(&names, split->folder);
    for (int i = 0; i < names.n_paths && status == STATUS_OK; i++) {
        if (output_shard_index(names.paths[i], split->name) < first)
            continue;
        char *path = file_path("%s/%s", split->folder, names.paths[i]);
        status = file_remove_tree(path);
        *n_removed += status == STATUS_OK;
        free(path);
    }
    file_list_free(&names);
    return status;
}

// Writes meta.json among the unfinished files first, so that a kill leaves no temporary file beside the
// shards.
static enum status publish_meta(const struct output *output, const struct meta *meta, const char *meta_path) {
    char *unfinished = output_unfinished_path(output->folder, "/meta.json");
    enum status status = write_meta(output, meta, unfinished);
    if (status == STATUS_OK)
        status = file_rename(unfinished, meta_path);
    free(unfinished);
    return status;
}

// meta.json is removed first and published last, so that it always describes the shards next to it.
static enum status publish(struct output *output, const struct meta *meta, const char *meta_path) {
    const struct split_writer *const splits[] = {&output->train, &output->val};
    int n_removed = 0;
    if (unlink(meta_path) != 0 && errno != ENOENT)
        return FAIL(STATUS_FAILED, "cannot replace %s: %s", meta_path, strerror(errno));
    for (int i = 0; i < 2; i++) {
        const int n_shards = n_shards_of(splits[i], splits[i]->counts.n_tokens);
        for (int k = 0; k < n_shards; k++)
            TRY(publish_shard(splits[i], k));
        TRY(remove_shards(splits[i], n_shards, &n_removed));
    }
    if (n_removed > 0)
        log_info("removed %d older shard%s of %s", n_removed, n_removed == 1 ? "" : "s", output->folder);
    TRY(publish_meta(output, meta, meta_path));
    output_abandon(output, false);
    return file_sync_folder(output->folder);
}

enum status output_publish(struct output *output, const struct meta *meta) {
    char *meta_path = file_path("%s/meta.json", output->folder);
    enum status status = publish(output, meta, meta_path);
    free(meta_path);
    return status;
}
