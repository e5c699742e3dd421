// See cli/tokenize/output.h.
#include "cli/tokenize/output.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

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

char *output_shard_path(const struct split_writer *split, int index) {
    return file_path("%s/%s-%05d.bin", split->folder, split->name, index);
}

static char *unfinished_path(const struct split_writer *split, int index) {
    return file_path("%s/%s-%05d.bin" FILE_UNFINISHED, split->folder, split->name, index);
}

int output_shard_index(const char *name, const char *split, const char *suffix) {
    const size_t length = strlen(split);
    int index, end = 0;
    const bool is_shard = strncmp(name, split, length) == 0 &&
                          sscanf(name + length, "-%9d.bin%n", &index, &end) == 1 && end > 0 && index >= 0 &&
                          strcmp(name + length + (size_t)end, suffix) == 0;
    return is_shard ? index : -1;
}

int split_n_shards(const struct split_writer *split) {
    return (int)((split->n_tokens + split->shard_tokens - 1) / split->shard_tokens);
}

// ---- writing

static enum status open_shard(struct split_writer *split, int index, size_t n_tokens) {
    char *path = output_shard_path(split, index);
    enum status status =
        path ? shard_writer_continue(&split->shard, path, split->token_bytes, n_tokens) : STATUS_FAILED;
    free(path);
    split->is_open = status == STATUS_OK;
    split->shard.tokenizer = split->tokenizer;
    return status;
}

static enum status finish_shard(struct split_writer *split) {
    if (!split->is_open)
        return STATUS_OK;
    split->is_open = false;
    enum status status = shard_writer_finish(&split->shard);
    file_writer_keep(&split->shard.file);
    return status;
}

enum status split_add(struct split_writer *split, const int32_t *ids, size_t n) {
    for (size_t i = 0, now; i < n; i += now) {
        if (!split->is_open)
            TRY(open_shard(split, (int)(split->n_tokens / split->shard_tokens), 0));
        const size_t room = split->shard_tokens - split->shard.n_tokens;
        now = n - i < room ? n - i : room;
        shard_writer_add(&split->shard, ids + i, now);
        split->n_tokens += now;
        if (now == room)
            TRY(finish_shard(split));
    }
    return STATUS_OK;
}

static enum status continue_split(struct split_writer *split) {
    const size_t in_last = split->n_tokens % split->shard_tokens;
    const int last = (int)(split->n_tokens / split->shard_tokens);
    if (in_last == 0)
        return STATUS_OK;
    char *unfinished = unfinished_path(split, last);
    enum status status = unfinished ? STATUS_OK : STATUS_FAILED;
    if (unfinished && !file_exists(unfinished))
        status = FAIL(STATUS_INVALID,
                      "%s of the unfinished run is missing; restore it, or begin again with --restart",
                      unfinished);
    free(unfinished);
    return status == STATUS_OK ? open_shard(split, last, in_last) : status;
}

enum status output_continue(struct output *output) {
    TRY(continue_split(&output->train));
    return continue_split(&output->val);
}

static enum status sync_split(struct split_writer *split) {
    if (!split->is_open)
        return STATUS_OK;
    file_sync(&split->shard.file);
    return file_writer_status(&split->shard.file);
}

enum status output_sync(struct output *output) {
    TRY(sync_split(&output->train));
    return sync_split(&output->val);
}

enum status output_finish(struct output *output) {
    TRY(finish_shard(&output->train));
    return finish_shard(&output->val);
}

void output_keep(struct output *output) {
    struct split_writer *const splits[] = {&output->train, &output->val};
    for (int i = 0; i < 2; i++) {
        if (splits[i]->is_open)
            file_writer_keep(&splits[i]->shard.file);
        splits[i]->is_open = false;
    }
}

// ---- what is held out at the end

// All tokens of a split whose shards are finished and unpublished, as one array.
struct token_reader {
    const struct split_writer *split;
    struct shard shard;
    int index; // of the open shard; -1: none
};

// Reads up to n tokens from `first` on, within one shard.
static enum status read_tokens(struct token_reader *reader, uint64_t first, size_t n, int32_t *tokens,
                               size_t *n_read) {
    const size_t shard_tokens = reader->split->shard_tokens;
    const int index = (int)(first / shard_tokens);
    if (reader->index != index) {
        char *path = unfinished_path(reader->split, index);
        if (reader->index >= 0)
            shard_close(&reader->shard);
        reader->index = -1;
        enum status status = path ? shard_open(&reader->shard, path) : STATUS_FAILED;
        free(path);
        TRY(status);
        reader->index = index;
    }
    const size_t at = (size_t)(first % shard_tokens), left = reader->shard.n_tokens - at;
    *n_read = n < left ? n : left;
    return shard_read(&reader->shard, at, *n_read, tokens);
}

enum { READ_TOKENS = 1 << 16 };

// The first start of a document at or after `from`; n_tokens of the split when there is none.
static enum status find_document(struct token_reader *reader, uint64_t from, int32_t start_id,
                                 int32_t *tokens, uint64_t *at) {
    size_t n;
    for (*at = from; *at < reader->split->n_tokens; *at += n) {
        TRY(read_tokens(reader, *at, READ_TOKENS, tokens, &n));
        for (size_t i = 0; i < n; i++)
            if (tokens[i] == start_id) {
                *at += i;
                return STATUS_OK;
            }
    }
    return STATUS_OK;
}

// Where the held-out tokens begin: the next start of a document, else that of the last one, else `target`.
static enum status find_cut(struct token_reader *reader, uint64_t target, int32_t start_id, int32_t *tokens,
                            uint64_t *cut) {
    TRY(find_document(reader, target, start_id, tokens, cut));
    if (*cut < reader->split->n_tokens)
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
    struct split_writer *train = &output->train, *val = &output->val;
    const int32_t start_id = tokenizer_document_start(tokenizer);
    uint64_t n_documents = 0, n_bytes = 0; // of what is moved
    size_t n;
    for (uint64_t at = cut; at < train->n_tokens; at += n) {
        TRY(read_tokens(reader, at, READ_TOKENS, tokens, &n));
        if (at == cut && tokens[0] != start_id) { // in the middle of a document
            TRY(split_add(val, &start_id, 1));
            val->n_documents++;
        }
        for (size_t i = 0; i < n; i++) {
            n_bytes += tokenizer_text_bytes(tokenizer, tokens[i]);
            n_documents += tokens[i] == start_id;
        }
        TRY(split_add(val, tokens, n));
    }
    if (tokenizer_adds_space(tokenizer)) // one is no text
        n_bytes -= n_documents;
    val->n_bytes = n_bytes < train->n_bytes ? n_bytes : train->n_bytes;
    train->n_tokens = cut;
    train->n_bytes -= val->n_bytes;
    train->n_documents -= n_documents;
    val->n_documents += n_documents;
    return output_finish(output);
}

enum status output_hold_out(struct output *output, double held_out, const struct tokenizer *tokenizer) {
    const uint64_t n = output->train.n_tokens, target = (uint64_t)((double)n * (1 - held_out));
    struct token_reader reader = {.split = &output->train, .index = -1};
    int32_t *tokens = malloc(READ_TOKENS * sizeof *tokens);
    uint64_t cut = n;
    enum status status = tokens ? STATUS_OK : FAIL(STATUS_FAILED, "out of memory to split tokens");
    if (status == STATUS_OK)
        status =
            find_cut(&reader, target > 0 ? target : 1, tokenizer_document_start(tokenizer), tokens, &cut);
    if (status == STATUS_OK && cut < n)
        status = move_tokens(output, &reader, cut, tokenizer, tokens);
    if (reader.index >= 0)
        shard_close(&reader.shard);
    free(tokens);
    return status;
}

// ---- publishing

// Renames one shard, unless an interrupted run has done so; the last one may hold tokens that were moved.
static enum status publish_shard(struct split_writer *split, int index) {
    const uint64_t before = (uint64_t)index * split->shard_tokens, left = split->n_tokens - before;
    const size_t n_tokens = left < split->shard_tokens ? (size_t)left : split->shard_tokens;
    char *path = output_shard_path(split, index), *unfinished = path ? unfinished_path(split, index) : NULL;
    struct shard shard = {.descriptor = -1};
    enum status status = unfinished ? STATUS_OK : STATUS_FAILED;
    const bool is_published = status == STATUS_OK && !file_exists(unfinished);
    if (status == STATUS_OK)
        status = shard_open(&shard, is_published ? path : unfinished);
    const size_t found = shard.n_tokens;
    if (status == STATUS_OK)
        shard_close(&shard);
    if (status == STATUS_OK && !is_published && found > n_tokens)
        status = open_shard(split, index, n_tokens);
    if (status == STATUS_OK)
        status = finish_shard(split);
    if (status == STATUS_OK && !is_published)
        status = file_rename(unfinished, path);
    free(unfinished);
    free(path);
    return status;
}

// Removes the split's shards from `first` on, and counts them.
static enum status remove_shards(const struct split_writer *split, const char *suffix, int first,
                                 int *n_removed) {
    struct file_list names = {0};
    enum status status = file_list_folder(&names, split->folder);
    for (int i = 0; i < names.n_paths && status == STATUS_OK; i++) {
        if (output_shard_index(names.paths[i], split->name, suffix) < first)
            continue;
        char *path = file_path("%s/%s", split->folder, names.paths[i]);
        status = path ? file_remove_tree(path) : STATUS_FAILED;
        *n_removed += status == STATUS_OK;
        free(path);
    }
    file_list_free(&names);
    return status;
}

enum status output_discard(struct output *output) {
    int n_removed = 0;
    output_keep(output);
    TRY(remove_shards(&output->train, FILE_UNFINISHED, 0, &n_removed));
    return remove_shards(&output->val, FILE_UNFINISHED, 0, &n_removed);
}

static enum status write_meta(const char *path, enum status (*add_meta)(void *context, struct text *json),
                              void *context) {
    struct text json = {0};
    enum status status = add_meta(context, &json);
    if (status == STATUS_OK)
        status = text_status(&json);
    if (status == STATUS_OK)
        status = file_write_all(path, json.data, json.length);
    text_free(&json);
    return status;
}

// meta.json is removed first and written last, so that it always describes the shards next to it.
static enum status publish(struct output *output, const char *meta_path,
                           enum status (*add_meta)(void *context, struct text *json), void *context) {
    struct split_writer *const splits[] = {&output->train, &output->val};
    int n_removed = 0;
    if (unlink(meta_path) != 0 && errno != ENOENT)
        return FAIL(STATUS_FAILED, "cannot replace %s: %s", meta_path, strerror(errno));
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < split_n_shards(splits[i]); k++)
            TRY(publish_shard(splits[i], k));
        TRY(remove_shards(splits[i], "", split_n_shards(splits[i]), &n_removed));
    }
    if (n_removed > 0)
        log_info("removed %d older shard%s of %s", n_removed, n_removed == 1 ? "" : "s", output->folder);
    TRY(output_discard(output));
    TRY(write_meta(meta_path, add_meta, context));
    return file_sync_folder(output->folder);
}

enum status output_publish(struct output *output, enum status (*add_meta)(void *context, struct text *json),
                           void *context) {
    char *meta_path = file_path("%s/meta.json", output->folder);
    enum status status = meta_path ? publish(output, meta_path, add_meta, context) : STATUS_FAILED;
    free(meta_path);
    return status;
}
