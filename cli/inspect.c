// ./train inspect PATH: recognizes a file or folder, and describes its contents.
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/gguf.h"
#include "base/text.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/inspect_data.h"
#include "data/file_kind.h"
#include "data/shard.h"
#include "data/tokenizer.h"
#include "data/tokenizer_export.h"
#include "infer/weights_refuse.h"
#include "model/formats/safetensors.h"
#include "zero/checkpoint/checkpoint.h"

#define SHOWN_TOKENS 16
#define READ_TOKENS  8192

#define LONGEST_CHARACTER 4 // bytes in UTF-8
#define EXPECTED          "a token shard, a safetensors file, a GGUF model, a tokenizer, JSON or text"

static const char *tokenizer_path = NULL;
static const struct arg flags[] = {
    {"--tokenizer", ARG_STRING, &tokenizer_path, 0, 0, "also print a shard's first tokens as text"},
};

// ---- shards

static enum status show_tokens(const int32_t *tokens, size_t n) {
    struct tokenizer *tokenizer = NULL;
    if (tokenizer_path)
        TRY(tokenizer_load(tokenizer_path, &tokenizer));
    printf("  begins:");
    for (size_t i = 0; i < n; i++)
        printf(" %u", (unsigned)tokens[i]);
    printf("\n");
    if (tokenizer) {
        printf("  as text: ");
        for (size_t i = 0; i < n; i++) {
            size_t n_bytes;
            const char *bytes = tokenizer_bytes(tokenizer, tokens[i], &n_bytes);
            fwrite(bytes ? bytes : "?", 1, bytes ? n_bytes : 1, stdout);
        }
        printf("\n");
    }
    tokenizer_delete(tokenizer);
    return STATUS_OK;
}

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
    printf("%s: token shard, %zu token%s%s", shard->path, shard->n_tokens, shard->n_tokens == 1 ? "" : "s",
           shard->token_bytes == sizeof(uint32_t) ? " of 4 bytes" : "");
    if (shard->n_tokens > 0)
        printf(", ids from %u to %u", (unsigned)lowest, (unsigned)highest);
    printf("\n");
    if (shard->tokenizer.n_ids > 0)
        printf("  tokenizer: %s\n", tokenizer_identity_describe(&shard->tokenizer, tokenizer));
    return show_tokens(shown, n);
}

static enum status inspect_shard(const char *path) {
    struct shard shard;
    TRY(shard_open(&shard, path));
    enum status status = describe_shard(&shard);
    shard_close(&shard);
    return status;
}

// ---- tensors and tokenizers

static void print_shape(const int64_t *shape, int n_dims) {
    printf("(");
    for (int d = 0; d < n_dims; d++)
        printf("%s%lld", d ? ", " : "", (long long)shape[d]);
    printf(")\n");
}

static enum status inspect_safetensors(const char *path) {
    struct safetensors file;
    TRY(safetensors_open(&file, path));
    size_t elements = 0;
    for (int i = 0; i < file.n_tensors; i++)
        elements += file.tensors[i].elements;
    printf("%s: safetensors, %d tensor%s, %zu element%s\n", path, file.n_tensors,
           file.n_tensors == 1 ? "" : "s", elements, elements == 1 ? "" : "s");
    for (int i = 0; i < file.n_tensors; i++) {
        const struct safetensor *tensor = &file.tensors[i];
        printf("  %-44s %-5s ", tensor->name, tensor->dtype);
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
    printf("%s: GGUF, architecture %.*s, %d tensor%s, %llu element%s\n", path, (int)architecture.n,
           architecture.bytes, file.n_tensors, file.n_tensors == 1 ? "" : "s", (unsigned long long)elements,
           elements == 1 ? "" : "s");
    for (int i = 0; i < file.n_tensors; i++) {
        const struct gguf_tensor *tensor = &file.tensors[i];
        printf("  %-44s %-5s ", tensor->name, gguf_type_name(tensor->type, type));
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
        const size_t n = tokenizer_text_bytes(tokenizer, id);
        longest = n > longest ? n : longest;
        n_control += tokenizer_type(tokenizer, id) == TOKEN_CONTROL;
    }
    printf("%s: %s tokenizer, %d ids (end-of-text is %d), longest token %zu bytes\n", path,
           tokenizer_kind(tokenizer), tokenizer_n_ids(tokenizer), tokenizer_end_of_text(tokenizer), longest);
    if (n_control > 1 || tokenizer_rules(tokenizer).pattern != TOKEN_PATTERN_GPT2) {
        printf("  pattern: %s, %d control tokens", tokenizer_gguf_pre(tokenizer), n_control);
        if (tokenizer_has_bos(tokenizer))
            printf(", documents begin with %d", tokenizer_document_start(tokenizer));
        printf("\n");
    }
    tokenizer_delete(tokenizer);
    return STATUS_OK;
}

// A file of a kind that no command reads.
static enum status inspect_kind(const char *path, enum file_kind kind) {
    char *advice = file_kind_advice(kind, path);
    if (!advice)
        return STATUS_FAILED;
    printf("%s: %s\n  %s\n", path, file_kind_name(kind), advice);
    free(advice);
    return STATUS_OK;
}

// ---- checkpoints

// The sources of a mixture in data.train.
static void print_sources(const struct identity *train) {
    uint64_t shard = 0;
    for (uint32_t i = 0; i < train->n_sources; shard += train->sources[i++].n_shards)
        printf("  source %u: %.4g %% of sequences, from %s%s\n", i + 1, 100 * train->sources[i].share,
               train->entries[shard / train->shards_per_entry].name,
               train->sources[i].n_shards > 1 ? ", ..." : "");
}

static enum status inspect_checkpoint(const char *path) {
    struct checkpoint *checkpoint;
    char bytes[32], weights[32];
    TRY(checkpoint_open(NULL, path, &checkpoint));
    const struct gpt_config *model = &checkpoint->params.config;
    uint64_t total = 0;
    for (int i = 0; i < checkpoint->n_files; i++)
        total += checkpoint->files[i].bytes;
    printf("%s: checkpoint, verified (all checksums match)\n", path);
    printf("  step %lld, %lld tokens, %s, optimizer %s, %d rank%s, %s, written by zero.c %s\n",
           (long long)checkpoint->step, (long long)checkpoint->tokens, dtype_name(checkpoint->compute),
           checkpoint->optimizer, checkpoint->world, checkpoint->world == 1 ? "" : "s",
           text_bytes(bytes, sizeof bytes, (double)total), checkpoint->version);
    printf("  model: %s parameters, n_layer %d, n_head %d, n_embd %d, vocab_size %d, n_positions %d\n",
           text_count(weights, sizeof weights, (double)checkpoint->params.n_weights), model->n_layer,
           model->n_head, model->n_embd, model->vocab_size, model->n_positions);
    printf("  tokenizer: %s\n", checkpoint->tokenizer ? checkpoint->tokenizer : "none");
    print_sources(&checkpoint->data.train);
    if (checkpoint->history.best.sequences > 0)
        printf("  lowest validation loss so far: %.4f at step %lld (%lld sequences of data.val)\n",
               checkpoint->history.best.loss, (long long)checkpoint->history.best.step,
               (long long)checkpoint->history.best.sequences);
    for (int i = 0; i < checkpoint->history.n_changes; i++) {
        const struct history_change *change = &checkpoint->history.changes[i];
        printf("  changed after step %lld: %s from %s to %s\n", (long long)change->step, change->option,
               change->was, change->is);
    }
    checkpoint_close(checkpoint);
    return STATUS_OK;
}

static enum status inspect_run(const char *path, const char *checkpoints) {
    int64_t *steps = NULL;
    int n_steps = 0;
    TRY(checkpoint_list(checkpoints, &steps, &n_steps));
    printf("%s: %s%d checkpoint%s\n", path, checkpoints == path ? "" : "run, ", n_steps,
           n_steps == 1 ? "" : "s");
    if (checkpoint_find_best(checkpoints) >= 0)
        printf("  best by validation loss: step %lld, %s/best\n",
               (long long)checkpoint_find_best(checkpoints), checkpoints);
    enum status status = STATUS_OK;
    for (int i = 0; i < n_steps && status == STATUS_OK; i++) {
        char *one = checkpoint_path(checkpoints, steps[i]);
        status = one ? inspect_checkpoint(one) : STATUS_FAILED;
        free(one);
    }
    free(steps);
    return status;
}

static bool holds_parts(const char *folder) {
    char *index = file_path("%s/model.safetensors.index.json", folder);
    bool found = index && file_exists(index);
    free(index);
    return found;
}

// A Hugging Face model in several files.
static enum status inspect_parts(const char *folder) {
    char *pattern = file_path("%s/model*.safetensors", folder);
    struct file_list parts = {0};
    enum status status = pattern ? file_glob(&parts, pattern) : STATUS_FAILED;
    for (int i = 0; i < parts.n_paths && status == STATUS_OK; i++)
        status = inspect_safetensors(parts.paths[i]);
    file_list_free(&parts);
    free(pattern);
    return status;
}

// A GGUF model as ./train export writes it.
static enum status inspect_gguf_in(const char *folder, bool *described) {
    char *path = file_path("%s/model.gguf", folder);
    enum status status = path ? STATUS_OK : STATUS_FAILED;
    *described = path && file_kind_of_path(path) == FILE_KIND_GGUF;
    if (*described)
        status = inspect_gguf(path);
    free(path);
    return status;
}

static enum status inspect_other_folder(const char *path) {
    bool described;
    TRY(inspect_gguf_in(path, &described));
    if (described)
        return STATUS_OK;
    char *pickles = file_path("%s/pytorch_model.bin", path);
    if (!pickles)
        return STATUS_FAILED;
    const bool has_pickles = file_exists(pickles);
    enum status status = has_pickles ? inspect_kind(pickles, FILE_KIND_PYTORCH) : STATUS_OK;
    free(pickles);
    if (has_pickles)
        return status;
    TRY(inspect_shards(path, &described));
    if (described)
        return STATUS_OK;
    int next = 0;
    char *inside;
    TRY(tokenizer_next_file(path, &next, &inside));
    if (inside) {
        status = inspect_tokenizer(inside);
        free(inside);
        return status;
    }
    return FAIL(
        STATUS_INVALID,
        "%s is not recognized: expected a run (with checkpoints/), a folder of checkpoints (with "
        "step-N), a checkpoint (with manifest.json), a Hugging Face model (with model.safetensors), a "
        "GGUF model (model.gguf), a tokenizer (as tokenizer.json) or token "
        "shards (*.bin)",
        path);
}

static enum status inspect_folder(const char *path) {
    if (checkpoint_is_folder(path))
        return inspect_checkpoint(path);
    char *checkpoints = file_path("%s/checkpoints", path), *tensors = file_path("%s/model.safetensors", path);
    enum checkpoint_path_kind kind = CHECKPOINT_PATH_ABSENT;
    enum status status = checkpoints && tensors ? checkpoint_path_look(checkpoints, &kind) : STATUS_FAILED;
    if (status == STATUS_OK && kind == CHECKPOINT_PATH_FOLDER)
        status = inspect_run(path, checkpoints);
    else if (status == STATUS_OK && checkpoint_holds_steps(path))
        status = inspect_run(path, path);
    else if (status == STATUS_OK && file_exists(tensors))
        status = inspect_safetensors(tensors);
    else if (status == STATUS_OK && holds_parts(path))
        status = inspect_parts(path);
    else if (status == STATUS_OK)
        status = inspect_other_folder(path);
    free(checkpoints);
    free(tensors);
    return status;
}

// ---- files

// The start of a file, and its size.
struct start {
    char bytes[FILE_KIND_START_BYTES];
    size_t n;
    uint64_t file_bytes;
};

static enum status read_start(const char *path, struct start *start) {
    int descriptor;
    struct stat info;
    *start = (struct start){0};
    TRY(file_open_regular(path, O_RDONLY, &descriptor));
    ssize_t n = pread(descriptor, start->bytes, sizeof start->bytes, 0);
    enum status status = n >= 0 && fstat(descriptor, &info) == 0
                             ? STATUS_OK
                             : FAIL(STATUS_FAILED, "cannot read %s: %s", path, strerror(errno));
    if (status == STATUS_OK) {
        start->n = (size_t)n;
        start->file_bytes = (uint64_t)info.st_size;
    }
    close(descriptor);
    return status;
}

// *offset: of the first byte that is not UTF-8; UINT64_MAX when there is none. Reads in pieces, of which the
// last bytes of each may be a character that the next one completes.
static enum status find_invalid(const char *path, uint64_t file_bytes, uint64_t *offset) {
    static char piece[1 << 16];
    int descriptor, error = 0;
    *offset = UINT64_MAX;
    TRY(file_open_regular(path, O_RDONLY, &descriptor));
    for (uint64_t at = 0; at < file_bytes && *offset == UINT64_MAX && !error;) {
        const size_t n = file_bytes - at < sizeof piece ? (size_t)(file_bytes - at) : sizeof piece;
        error = file_read_at(descriptor, at, n, piece);
        const size_t valid = error ? 0 : utf8_valid_bytes(piece, n);
        if (valid < n && (valid == 0 || at + n == file_bytes || n - valid >= LONGEST_CHARACTER))
            *offset = at + valid;
        at += valid;
    }
    close(descriptor);
    return error ? FAIL(STATUS_FAILED, "cannot read %s: %s", path,
                        error == FILE_READ_SHORT ? "it was truncated" : strerror(error))
                 : STATUS_OK;
}

static enum status inspect_text(const char *path, const struct start *start) {
    char bytes[32];
    size_t first_line = 0;
    uint64_t invalid;
    TRY(find_invalid(path, start->file_bytes, &invalid));
    while (first_line < start->n && first_line < 60 && (unsigned char)start->bytes[first_line] >= ' ')
        first_line++;
    printf("%s: text, %s\n", path, text_bytes(bytes, sizeof bytes, (double)start->file_bytes));
    printf("  begins: %.*s\n", (int)first_line, start->bytes);
    if (invalid != UINT64_MAX)
        printf("  not UTF-8 at offset %llu; convert it first, from Latin-1: iconv -f LATIN1 -t UTF-8 %s > "
               "utf8.txt\n",
               (unsigned long long)invalid, path);
    printf("  to train on it, make token shards: ./train tokenize %s --tokenizer FILE --out DIR\n", path);
    return STATUS_OK;
}

static enum status refuse_unknown(const char *path, const struct start *start) {
    uint64_t first = 0;
    char *advice =
        file_path("; perhaps it holds token ids of 2 bytes without a header, as nanoGPT's train.bin: "
                  "./train tokenize --raw %s --out DIR",
                  path);
    memcpy(&first, start->bytes, start->n < sizeof first ? start->n : sizeof first);
    enum status status = FAIL(
        STATUS_INVALID, "%s is not recognized: it starts with the bytes %016llx, expected " EXPECTED "%s",
        path, (unsigned long long)__builtin_bswap64(first),
        start->file_bytes % sizeof(uint16_t) == 0 && advice ? advice : "");
    free(advice);
    return status;
}

static enum status inspect_file(const char *path) {
    struct start start;
    bool described = false;
    TRY(read_start(path, &start));
    if (start.file_bytes == 0)
        return FAIL(STATUS_INVALID, "%s is empty (0 bytes), expected " EXPECTED, path);
    const enum file_kind kind = file_kind_of(start.bytes, start.n);
    if (kind == FILE_KIND_SHARD)
        return inspect_shard(path);
    if (kind == FILE_KIND_SAFETENSORS)
        return inspect_safetensors(path);
    if (kind == FILE_KIND_GGUF)
        return inspect_gguf(path);
    if (kind == FILE_KIND_UNKNOWN)
        return refuse_unknown(path, &start);
    if (kind == FILE_KIND_TEXT && tokenizer_is_file(path))
        return inspect_tokenizer(path);
    if (kind == FILE_KIND_TEXT && start.bytes[0] == '{')
        TRY(inspect_json(path, &described));
    if (described)
        return STATUS_OK;
    return kind == FILE_KIND_TEXT || kind == FILE_KIND_TEXT_8_BIT ? inspect_text(path, &start)
                                                                  : inspect_kind(path, kind);
}

static enum status inspect(const char *path) {
    if (file_is_folder(path))
        return inspect_folder(path);
    if (!file_exists(path) && weights_is_hub_name(path))
        return weights_refuse(path);
    return inspect_file(path);
}

static enum status run_inspect(int n_args, char **args) {
    const char *path;
    int n_paths;
    TRY(args_parse("inspect", flags, sizeof flags / sizeof *flags, n_args, args, &path, 1, &n_paths));
    if (n_paths == 0)
        return FAIL(STATUS_INVALID, "train inspect: expected a file or folder; see: train help inspect");
    return inspect(path);
}

const struct command command_inspect = {
    .name = "inspect",
    .synopsis = "FILE_OR_FOLDER [--tokenizer FILE]",
    .examples = "What a checkpoint, a shard or a folder of weights holds.\n"
                "./train inspect runs/quickstart\n",
    .summary = "describe a token shard, tokenizer, safetensors file, text, checkpoint or run",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_inspect,
};
