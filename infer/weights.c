// Reads weights of checkpoints, Hugging Face folders and GGUF models through one interface.
#include "infer/weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/file_kind.h"
#include "base/log.h"
#include "base/text.h"
#include "data/tokenizer/tokenizer.h"
#include "infer/foreign_weights.h"
#include "kernels/update.h"

// ---- refusing a path that has no weights; the message says what is there instead

static bool has_file(const char *folder, const char *name) {
    char *path = file_path("%s/%s", folder, name);
    bool found = file_exists(path);
    free(path);
    return found;
}

static enum status refuse_file(const char *path) {
    const enum file_kind kind = file_kind_of_path(path);
    if (kind == FILE_KIND_UNKNOWN || kind == FILE_KIND_TEXT || kind == FILE_KIND_SAFETENSORS)
        return FAIL(STATUS_INVALID,
                    "%s is not recognized as weights: expected a .safetensors file with config.json beside "
                    "it, a GGUF model, or a folder",
                    path);
    return file_kind_refuse(kind, path, "", "weights");
}

// Refuses a folder because of a file in it, whose format this program does not read.
static enum status refuse_inside(const char *folder, const char *name, enum file_kind kind) {
    char *inside = file_path("%s/%s", folder, name);
    char *advice = file_kind_advice(kind, inside);
    enum status status = FAIL(STATUS_INVALID, "%s holds %s; %s", folder, file_kind_name(kind), advice);
    free(advice);
    free(inside);
    return status;
}

// True if the name ends with a dot and lower-case letters: "train.bin", but not "Qwen2.5-0.5B".
static bool has_extension(const char *path) {
    const char *slash = strrchr(path, '/'), *dot = strrchr(slash ? slash : path, '.');
    const size_t letters = dot ? strspn(dot + 1, "abcdefghijklmnopqrstuvwxyz") : 0;
    return letters > 0 && dot[1 + letters] == '\0';
}

// True if the path may be the name of a model on the Hugging Face Hub, such as "gpt2" or
// "openai-community/gpt2".
static bool is_hub_name(const char *path) {
    const char *slash = strchr(path, '/');
    if (path[strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./")] != '\0' ||
        path[0] == '.' || path[0] == '/' || path[0] == '\0' || has_extension(path))
        return false;
    if (!slash)
        return true;
    char *owner = file_path("%.*s", (int)(slash - path), path);
    const bool is_path = file_exists(owner); // then `path` is a mistyped path in an existing folder
    free(owner);
    return !is_path && slash[1] && !strchr(slash + 1, '/');
}

static enum status refuse_absent(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const char *owner = slash || strncmp(path, "gpt2", 4) != 0 ? "" : "openai-community/";
    if (!is_hub_name(path))
        return FAIL(STATUS_INVALID,
                    "%s does not exist; expected the folder of a run, a checkpoint or a model", path);
    return FAIL(
        STATUS_INVALID,
        "%s does not exist here. If it is the name of a model on the Hugging Face Hub, fetch it first: hf "
        "download %s%s '*config.json' tokenizer.json 'model*.safetensors*' --local-dir %s, then use the "
        "folder %s. The pattern matches model.safetensors, or the parts and the index of a large model",
        path, owner, path, name, name);
}

enum status weights_refuse(const char *path) {
    if (!file_exists(path))
        return refuse_absent(path);
    TRY(foreign_weights_refuse(path));
    if (!file_is_folder(path))
        return refuse_file(path);
    if (has_file(path, "pytorch_model.bin") || has_file(path, "pytorch_model.bin.index.json"))
        return refuse_inside(path, "pytorch_model.bin", FILE_KIND_PYTORCH);
    if (has_file(path, "model.bin"))
        return refuse_inside(path, "model.bin", FILE_KIND_LLMC_MODEL);
    return FAIL(STATUS_INVALID,
                "%s contains no weights: expected a run folder (with checkpoints/), a folder of checkpoints "
                "(with step-N), a checkpoint (with manifest.json), a Hugging Face folder (with "
                "config.json, and model.safetensors or model.safetensors.index.json and the files it names), "
                "or a GGUF model (with model.gguf)",
                path);
}

// ---- opening

// True if the folder contains this file or folder. Also true if that cannot be determined: opening it then
// reports why.
static bool holds(const char *folder, const char *name) {
    enum checkpoint_path_kind kind;
    char *path = file_path("%s/%s", folder, name);
    bool known = checkpoint_path_look(path, &kind) == STATUS_OK;
    free(path);
    if (!known)
        status_clear();
    return !known || kind != CHECKPOINT_PATH_ABSENT;
}

// Opens a Hugging Face model.
//   folder   the folder with config.json; `weights` takes ownership
static enum status open_huggingface(struct weights *weights, char *folder) {
    weights->folder = folder;
    if (!holds(folder, "config.json"))
        return FAIL(
            STATUS_INVALID,
            "%s: there is no config.json in %s, which gives the model's sizes; fetch it from the source of "
            "the weights",
            weights->path, folder);
    TRY(huggingface_read_config(folder, &weights->config));
    return weights->config.family == FAMILY_LLAMA && !weights->config.untied
               ? huggingface_find_head(weights->path, &weights->config)
               : STATUS_OK;
}

static char *folder_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? file_path("%.*s", slash > path ? (int)(slash - path) : 1, path) : file_path(".");
}

// Opens the GGUF model at weights->path: a file, or a folder that contains model.gguf. Refuses other paths.
static enum status open_gguf(struct weights *weights) {
    const char *path = weights->path;
    weights->gguf_path = file_path(file_is_folder(path) ? "%s/model.gguf" : "%s", path);
    if (file_kind_of_path(weights->gguf_path) != FILE_KIND_GGUF)
        return weights_refuse(path);
    weights->folder = folder_of(weights->gguf_path);
    return gguf_read_config(weights->gguf_path, &weights->config);
}

static bool is_schedule_free(const struct checkpoint *checkpoint) {
    return optimizer_averages(&checkpoint->config);
}

static bool has_average(const struct checkpoint *checkpoint) {
    return checkpoint &&
           (checkpoint->kinds.has_average || (is_schedule_free(checkpoint) && checkpoint->run.average.n > 0));
}

enum status weights_choose(struct weights *weights, const char *name) {
    const struct checkpoint *checkpoint = weights->checkpoint;
    if (name && strcmp(name, "average") != 0 && strcmp(name, "latest") != 0)
        return FAIL(STATUS_INVALID, "unknown --weights %s, expected average or latest", name);
    if (!has_average(checkpoint)) {
        if (name && strcmp(name, "average") == 0)
            return FAIL(
                STATUS_INVALID,
                "%s has no average of the weights (train.ema and schedule-free AdamW keep one); leave "
                "out --weights average",
                weights->path);
        return STATUS_OK;
    }
    weights->uses_average = !name || strcmp(name, "average") == 0;
    if (weights->uses_average)
        log_info("weights: the average over %lld update%s (--weights latest: those of the last update)",
                 (long long)checkpoint->run.average.n, checkpoint->run.average.n == 1 ? "" : "s");
    else
        log_info("weights: the latest (--weights average: the average over %lld update%s)",
                 (long long)checkpoint->run.average.n, checkpoint->run.average.n == 1 ? "" : "s");
    return STATUS_OK;
}

enum status weights_open(struct weights *weights, const char *path) {
    *weights = (struct weights){.path = copy_string(path)};
    if (checkpoint_is_folder(path) || holds(path, "checkpoints") || checkpoint_holds_steps(path)) {
        TRY(checkpoint_open_path(NULL, path, &weights->checkpoint));
        weights->config = weights->checkpoint->params.config;
        weights->uses_average = has_average(weights->checkpoint);
        return STATUS_OK;
    }
    if (holds(path, "model.safetensors") || holds(path, "model.safetensors.index.json")) {
        if (holds(path, "adapter_config.json"))
            log_warning("%s holds an adapter (PEFT) beside the model; the model is read without it", path);
        return open_huggingface(weights, copy_string(path));
    }
    if (file_exists(path) &&
        (text_ends_with(path, ".safetensors") || text_ends_with(path, ".safetensors.index.json"))) {
        TRY(foreign_weights_refuse(path));
        return open_huggingface(weights, folder_of(path));
    }
    return open_gguf(weights);
}

enum status weights_bind(struct weights *weights, const struct params *params) {
    const struct checkpoint *checkpoint = weights->checkpoint;
    if (checkpoint) {
        struct params same = *params;
        gpt_config_take_context(&same.config, &checkpoint->params.config);
        TRY(checkpoint_check_model(checkpoint, &same));
        return is_schedule_free(checkpoint)
                   ? optimizer_groups_init(&weights->groups, &checkpoint->config, &checkpoint->params)
                   : STATUS_OK;
    }
    if (weights->gguf_path) {
        TRY(gguf_weights_open(&weights->gguf, weights->gguf_path, params));
        weights->gguf_open = true;
        return STATUS_OK;
    }
    TRY(huggingface_open(&weights->huggingface, weights->path, params));
    weights->huggingface_open = true;
    return STATUS_OK;
}

// Computes the average x of schedule-free AdamW from y, its master weights, and z, which it stores in place
// of m. Uses the same arithmetic as lerp in kernels/ops.h, so that x is bit for bit what the run evaluated.
//   out   [in] y of elements [begin, end); [out] x of these elements
static enum status average_span(const struct checkpoint *checkpoint, int unit, size_t begin, size_t end,
                                float *out) {
    enum { CHUNK = 4096 };
    const float weight = schedule_free_weight(checkpoint->config.optimizer.betas.value[0]);
    float z[CHUNK];
    for (size_t first = begin; first < end; first += CHUNK, out += CHUNK) {
        const size_t n = end - first < CHUNK ? end - first : CHUNK;
        TRY(checkpoint_read_span(checkpoint, CHECKPOINT_M, unit, first, first + n, z));
        for (size_t i = 0; i < n; i++)
            out[i] = fmaf(z[i] - out[i], weight, out[i]);
    }
    return STATUS_OK;
}

// Reads elements of the average of schedule-free AdamW. Frozen tensors have no z: their average is their
// value.
static enum status read_schedule_free(const struct weights *weights, int unit, size_t begin, size_t end,
                                      float *out) {
    const struct checkpoint *checkpoint = weights->checkpoint;
    TRY(checkpoint_read_span(checkpoint, CHECKPOINT_MASTER, unit, begin, end, out));
    for (struct param_overlap it = {0}; params_next_overlap(&checkpoint->params, unit, begin, end, &it);)
        if (!optimizer_group_of(&weights->groups, it.param)->is_frozen)
            TRY(average_span(checkpoint, unit, it.begin, it.end, out + (it.begin - begin)));
    return STATUS_OK;
}

enum status weights_read_span(const struct weights *weights, int unit, size_t begin, size_t end, float *out) {
    const struct checkpoint *checkpoint = weights->checkpoint;
    if (checkpoint && weights->uses_average && is_schedule_free(checkpoint))
        return read_schedule_free(weights, unit, begin, end, out);
    if (checkpoint)
        return checkpoint_read_span(checkpoint,
                                    weights->uses_average ? CHECKPOINT_AVERAGE : CHECKPOINT_MASTER, unit,
                                    begin, end, out);
    if (weights->gguf_open)
        return gguf_span(&weights->gguf, unit, begin, end, out);
    return huggingface_span(&weights->huggingface, unit, begin, end, out);
}

// True if this program can load the tokenizer file at `path`; otherwise warns.
static bool can_load(const char *path) {
    struct tokenizer *tokenizer = NULL;
    bool loaded = tokenizer_load(path, &tokenizer) == STATUS_OK;
    if (!loaded) {
        log_warning("the model's tokenizer is not used: %s", status_message());
        status_clear();
    }
    tokenizer_delete(tokenizer);
    return loaded;
}

char *weights_find_tokenizer(const struct weights *weights) {
    char *path = NULL;
    int next = 0;
    if (weights->checkpoint)
        return copy_string(weights->checkpoint->tokenizer);
    if (weights->gguf_path && tokenizer_is_file(weights->gguf_path) && can_load(weights->gguf_path))
        return copy_string(weights->gguf_path);
    while ((path = tokenizer_next_file(weights->folder, &next)) && !can_load(path))
        free(path);
    return path;
}

// Loads the weights' own tokenizer. If there is none, sets *out to NULL and identity->n_ids to 0.
static enum status load_own(const struct weights *weights, struct tokenizer **out,
                            struct tokenizer_identity *identity) {
    char *path = weights_find_tokenizer(weights);
    *out = NULL;
    *identity = (struct tokenizer_identity){0};
    enum status status = path ? tokenizer_load(path, out) : STATUS_OK;
    if (*out)
        *identity = tokenizer_identify(*out, weights->checkpoint ? "the checkpoint's" : path);
    free(path);
    return status;
}

enum status weights_load_tokenizer(const struct weights *weights, const char *given, struct tokenizer **out,
                                   struct tokenizer_identity *identity) {
    struct tokenizer *own;
    struct tokenizer_identity of_model;
    char ours[TOKENIZER_DESCRIPTION_BYTES], theirs[TOKENIZER_DESCRIPTION_BYTES];
    if (!given || !given[0])
        return load_own(weights, out, identity);
    TRY(tokenizer_load(given, out));
    *identity = tokenizer_identify(*out, given);
    TRY(load_own(weights, &own, &of_model));
    tokenizer_delete(own);
    if (!tokenizer_identity_differs(&of_model, identity))
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s is not the tokenizer of %s: it is %s, the model's is %s; leave --tokenizer out", given,
                weights->path, tokenizer_identity_describe(identity, theirs),
                tokenizer_identity_describe(&of_model, ours));
}

void weights_close(struct weights *weights) {
    checkpoint_close(weights->checkpoint);
    optimizer_groups_free(&weights->groups);
    if (weights->huggingface_open)
        huggingface_close(&weights->huggingface);
    if (weights->gguf_open)
        gguf_weights_close(&weights->gguf);
    free(weights->gguf_path);
    free(weights->folder);
    free(weights->path);
    *weights = (struct weights){0};
}
