// ./train inspect PATH: recognizes a file or folder and describes its contents.
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file_kind.h"
#include "base/gguf.h"
#include "base/output.h"
#include "base/text.h"
#include "cli/commands.h"
#include "data/shard.h"
#include "data/tokenizer/export.h"
#include "data/tokenizer/tokenizer.h"
#include "infer/foreign_weights.h"
#include "infer/weights.h"
#include "model/formats/safetensors.h"
#include "zero/checkpoint/checkpoint.h"

#define SHOWN_TOKENS 16   // maximum number of tokens that are printed of a shard
#define READ_TOKENS  8192 // maximum number of tokens that one call of shard_read reads

// ---- token shards

static enum status find_range(struct shard *shard, uint32_t *lowest, uint32_t *highest) {
    int32_t tokens[READ_TOKENS];
    *lowest = UINT32_MAX, *highest = 0;
    for (size_t first = 0, n; first < shard->n_tokens; first += n) {
        n = shard->n_tokens - first < READ_TOKENS ? shard->n_tokens - first : READ_TOKENS;
        TRY(shard_read(shard, first, n, tokens));
        for (size_t i = 0; i < n; i++) {
            const uint32_t token = (uint32_t)tokens[i];
            *lowest = token < *lowest ? token : *lowest;
            *highest = token > *highest ? token : *highest;
        }
    }
    return STATUS_OK;
}

static enum status describe_shard(struct shard *shard) {
    size_t n = shard->n_tokens < SHOWN_TOKENS ? shard->n_tokens : SHOWN_TOKENS;
    int32_t shown[SHOWN_TOKENS];
    uint32_t lowest, highest;
    char tokenizer[TOKENIZER_DESCRIPTION_BYTES];
    TRY(find_range(shard, &lowest, &highest));
    TRY(shard_read(shard, 0, n, shown));
    output_print("%s: token shard, %zu token%s%s", shard->path, shard->n_tokens,
                 shard->n_tokens == 1 ? "" : "s",
                 shard->token_bytes == sizeof(uint32_t) ? " of 4 bytes" : "");
    if (shard->n_tokens > 0)
        output_print(", ids from %u to %u", (unsigned)lowest, (unsigned)highest);
    output_print("\n");
    if (shard->tokenizer.n_ids > 0)
        output_print("  tokenizer: %s\n", tokenizer_identity_describe(&shard->tokenizer, tokenizer));
    output_print("  begins:");
    for (size_t i = 0; i < n; i++)
        output_print(" %u", (unsigned)shown[i]);
    output_print("\n");
    return STATUS_OK;
}

static enum status inspect_shard(const char *path) {
    struct shard shard;
    TRY(shard_open(&shard, path));
    enum status status = describe_shard(&shard);
    shard_close(&shard);
    return status;
}

struct split {
    const char *name;
    int n_shards;
    size_t n_tokens;
};

struct shard_set {
    struct split splits[2]; // 0: training, 1: validation
    struct tokenizer_identity tokenizer;
    bool mixed; // the shards were made by different tokenizers
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
    output_print("%s: token shards\n", folder);
    for (int i = 0; i < 2; i++)
        if (set->splits[i].n_shards > 0)
            output_print("  %s: %zu tokens in %d shard%s\n", set->splits[i].name, set->splits[i].n_tokens,
                         set->splits[i].n_shards, set->splits[i].n_shards == 1 ? "" : "s");
    output_print("  tokenizer: %s\n", set->mixed ? "several; all shards of data.train must have the same one"
                                      : set->tokenizer.n_ids == 0
                                          ? "not recorded"
                                          : tokenizer_identity_describe(&set->tokenizer, tokenizer));
}

// Prints the size of the training and the validation split of a folder of token shards, and their tokenizer.
//   described   [out] false: the folder has no shards, and nothing was printed
static enum status inspect_shards(const char *folder, bool *described) {
    struct shard_set set = {.splits = {{.name = "training"}, {.name = "validation"}}};
    struct file_list names = {0};
    enum status status = file_list_folder(&names, folder);
    for (int i = 0; i < names.n_paths && status == STATUS_OK; i++) {
        char *path = file_path("%s/%s", folder, names.paths[i]);
        if (shard_is_file(path))
            status = count_shard(&set, path, names.paths[i]);
        free(path);
    }
    file_list_free(&names);
    *described = set.splits[0].n_shards + set.splits[1].n_shards > 0;
    if (status == STATUS_OK && *described)
        print_set(&set, folder);
    return status;
}

// ---- tensors and tokenizers

static void print_shape(const int64_t *shape, int n_dims) {
    output_print("(");
    for (int d = 0; d < n_dims; d++)
        output_print("%s%lld", d ? ", " : "", (long long)shape[d]);
    output_print(")\n");
}

static enum status inspect_safetensors(const char *path) {
    struct safetensors file;
    TRY(safetensors_open(&file, path));
    size_t elements = 0;
    for (int i = 0; i < file.n_tensors; i++)
        elements += file.tensors[i].elements;
    output_print("%s: safetensors, %d tensor%s, %zu element%s\n", path, file.n_tensors,
                 file.n_tensors == 1 ? "" : "s", elements, elements == 1 ? "" : "s");
    for (int i = 0; i < file.n_tensors; i++) {
        const struct safetensor *tensor = &file.tensors[i];
        output_print("  %-44s %-5s ", tensor->name, tensor->dtype);
        print_shape(tensor->shape, tensor->n_dims);
    }
    safetensors_close(&file);
    return STATUS_OK;
}

static enum status inspect_gguf(const char *path) {
    struct gguf_file file;
    struct gguf_string architecture = {"", 0};
    uint64_t elements = 0;
    char type[16];
    TRY(gguf_open(&file, path));
    for (int i = 0; i < file.n_tensors; i++)
        elements += file.tensors[i].elements;
    enum status status = gguf_get_string(&file, "general.architecture", &architecture, NULL);
    output_print("%s: GGUF, architecture %.*s, %d tensor%s, %llu element%s\n", path, (int)architecture.n,
                 architecture.bytes, file.n_tensors, file.n_tensors == 1 ? "" : "s",
                 (unsigned long long)elements, elements == 1 ? "" : "s");
    for (int i = 0; i < file.n_tensors; i++) {
        const struct gguf_tensor *tensor = &file.tensors[i];
        output_print("  %-44s %-5s ", tensor->name, gguf_type_name(tensor->type, type));
        print_shape(tensor->shape, tensor->n_dims);
    }
    gguf_close(&file);
    return status;
}

static enum status inspect_tokenizer(const char *path) {
    struct tokenizer *tokenizer;
    TRY(tokenizer_load(path, &tokenizer));
    size_t longest = 0;
    int n_control = 0;
    for (int32_t id = 0; id < tokenizer_n_ids(tokenizer); id++) {
        const size_t n = tokenizer_text_bytes(tokenizer, id, &id, 1);
        longest = n > longest ? n : longest;
        n_control += tokenizer_type(tokenizer, id) == TOKEN_CONTROL;
    }
    output_print("%s: %s tokenizer, %d ids (end-of-text is %d), longest token %zu bytes\n", path,
                 tokenizer_kind(tokenizer), tokenizer_n_ids(tokenizer), tokenizer_end_of_text(tokenizer),
                 longest);
    if (n_control > 1 || tokenizer_rules(tokenizer).pattern != TOKEN_PATTERN_GPT2) {
        output_print("  pattern: %s, %d control tokens", tokenizer_gguf_pre(tokenizer), n_control);
        if (tokenizer_has_bos(tokenizer))
            output_print(", documents begin with %d", tokenizer_document_start(tokenizer));
        output_print("\n");
    }
    tokenizer_delete(tokenizer);
    return STATUS_OK;
}

// ---- checkpoints

// Prints the sources of data.train, if it is a mixture.
static void print_sources(const struct identity *train) {
    uint64_t shard = 0;
    for (uint32_t i = 0; i < train->n_sources; shard += train->sources[i++].n_shards)
        output_print("  source %u: %.4g %% of sequences, from %s%s\n", i + 1, 100 * train->sources[i].share,
                     train->entries[shard / train->shards_per_entry].name,
                     train->sources[i].n_shards > 1 ? ", ..." : "");
}

static enum status inspect_checkpoint(const char *path) {
    struct checkpoint *checkpoint;
    char bytes[32], weights[32];
    TRY(checkpoint_open(NULL, path, &checkpoint));
    const struct gpt_config *model = &checkpoint->params.config;
    output_print("%s: checkpoint, verified (all checksums match)\n", path);
    output_print("  step %lld, %lld tokens, %s, optimizer %s, %d rank%s, %s, written by zero.c %s\n",
                 (long long)checkpoint->step, (long long)checkpoint->tokens, dtype_name(checkpoint->compute),
                 checkpoint->optimizer, checkpoint->world, checkpoint->world == 1 ? "" : "s",
                 text_bytes(bytes, sizeof bytes, (double)checkpoint_bytes(checkpoint)), checkpoint->version);
    output_print("  model: %s parameters, n_layer %d, n_head %d, n_embd %d, vocab_size %d, n_positions %d\n",
                 text_count(weights, sizeof weights, (double)checkpoint->params.n_weights), model->n_layer,
                 model->n_head, model->n_embd, model->vocab_size, model->n_positions);
    output_print("  tokenizer: %s\n", checkpoint->tokenizer ? checkpoint->tokenizer : "none");
    print_sources(&checkpoint->run.data.train);
    if (checkpoint->run.best.sequences > 0)
        output_print("  lowest validation loss so far: %.4f at step %lld (%lld sequences of data.val)\n",
                     checkpoint->run.best.loss, (long long)checkpoint->run.best.step,
                     (long long)checkpoint->run.best.sequences);
    for (int i = 0; i < checkpoint->run.n_changes; i++) {
        const struct run_change *change = &checkpoint->run.changes[i];
        output_print("  changed after step %lld: %s from %s to %s\n", (long long)change->step, change->option,
                     change->was, change->is);
    }
    checkpoint_close(checkpoint);
    return STATUS_OK;
}

// Describes one of a run's checkpoints. If the run removed it after it was listed, prints a note instead.
static enum status inspect_listed(const char *path) {
    enum status status = inspect_checkpoint(path);
    if (status == STATUS_OK || !checkpoint_is_gone(path))
        return status;
    status_clear();
    printf("%s: removed meanwhile by the run\n", path);
    return STATUS_OK;
}

static enum status inspect_run(const char *path, const char *checkpoints) {
    int64_t *steps = NULL;
    int n_steps = 0;
    TRY(checkpoint_list(checkpoints, &steps, &n_steps));
    output_print("%s: %s%d checkpoint%s\n", path, checkpoints == path ? "" : "run, ", n_steps,
                 n_steps == 1 ? "" : "s");
    if (checkpoint_find_best(checkpoints) >= 0)
        output_print("  best by validation loss: step %lld, %s/best\n",
                     (long long)checkpoint_find_best(checkpoints), checkpoints);
    enum status status = STATUS_OK;
    for (int i = 0; i < n_steps && status == STATUS_OK; i++) {
        char *one = checkpoint_path(checkpoints, steps[i]);
        status = inspect_listed(one);
        free(one);
    }
    free(steps);
    return status;
}

// ---- files and folders

// Describes all safetensors files of a Hugging Face model.
static enum status inspect_tensors(const char *folder) {
    char *pattern = file_path("%s/model*.safetensors", folder);
    struct file_list parts = {0};
    enum status status = file_glob(&parts, pattern);
    for (int i = 0; i < parts.n_paths && status == STATUS_OK; i++)
        status = inspect_safetensors(parts.paths[i]);
    file_list_free(&parts);
    free(pattern);
    return status;
}

static bool has_file(const char *folder, const char *name) {
    char *path = file_path("%s/%s", folder, name);
    const bool has = file_exists(path);
    free(path);
    return has;
}

// Describes a folder of token shards, or one with a tokenizer. Refuses all others.
static enum status inspect_other_folder(const char *path) {
    bool described;
    int next = 0;
    // First of all: otherwise, a tokenizer beside such weights would be described, and they would be
    // ignored.
    TRY(foreign_weights_refuse(path));
    TRY(inspect_shards(path, &described));
    if (described)
        return STATUS_OK;
    char *file = tokenizer_next_file(path, &next);
    enum status status = file ? inspect_tokenizer(file) : weights_refuse(path);
    free(file);
    return status;
}

static enum status inspect_folder(const char *path) {
    if (checkpoint_is_folder(path))
        return inspect_checkpoint(path);
    char *checkpoints = file_path("%s/checkpoints", path), *gguf = file_path("%s/model.gguf", path);
    enum checkpoint_path_kind kind;
    enum status status = checkpoint_path_look(checkpoints, &kind);
    if (status == STATUS_OK)
        status = kind == CHECKPOINT_PATH_FOLDER                   ? inspect_run(path, checkpoints)
                 : checkpoint_holds_steps(path)                   ? inspect_run(path, path)
                 : has_file(path, "model.safetensors")            ? inspect_tensors(path)
                 : has_file(path, "model.safetensors.index.json") ? inspect_tensors(path)
                 : has_file(path, "pytorch_model.bin")            ? weights_refuse(path)
                 : file_exists(gguf)                              ? inspect_gguf(gguf)
                                                                  : inspect_other_folder(path);
    free(checkpoints);
    free(gguf);
    return status;
}

#define EXPECTED "a token shard, a safetensors file, a GGUF model or a tokenizer"

static enum status inspect_file(const char *path) {
    int descriptor;
    TRY(file_open_regular(path, O_RDONLY, &descriptor));
    close(descriptor);
    const enum file_kind kind = file_kind_of_path(path);
    if (kind == FILE_KIND_SHARD)
        return inspect_shard(path);
    if (kind == FILE_KIND_SAFETENSORS)
        return inspect_safetensors(path);
    if (kind == FILE_KIND_GGUF)
        return inspect_gguf(path);
    if (kind == FILE_KIND_TEXT && tokenizer_is_file(path))
        return inspect_tokenizer(path);
    if (kind == FILE_KIND_PYTORCH)
        TRY(foreign_weights_refuse(path));
    if (kind != FILE_KIND_UNKNOWN)
        return file_kind_refuse(kind, path, "", EXPECTED);
    return FAIL(STATUS_INVALID,
                "%s is not recognized, expected " EXPECTED
                "; if it holds token ids without a header, as nanoGPT's train.bin does: "
                "./train tokenize --raw %s --out DIR",
                path, path);
}

static enum status run_inspect(int n_args, char **args) {
    const char *path;
    int n_paths;
    TRY(args_parse("inspect", NULL, 0, n_args, args, &path, 1, &n_paths));
    if (n_paths == 0)
        return FAIL(STATUS_INVALID, "train inspect: expected a file or folder; see: train help inspect");
    return !file_exists(path)     ? weights_refuse(path)
           : file_is_folder(path) ? inspect_folder(path)
                                  : inspect_file(path);
}

const struct command command_inspect = {
    .name = "inspect",
    .synopsis = "FILE_OR_FOLDER",
    .examples = "What a checkpoint, a shard or a folder of weights holds.\n"
                "./train inspect runs/quickstart\n",
    .summary = "describe a token shard, tokenizer, safetensors file, GGUF model, checkpoint or run",
    .run = run_inspect,
};
