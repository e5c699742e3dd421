// See infer/weights_refuse.h.
#include "infer/weights_refuse.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/file_kind.h"

static bool holds(const char *folder, const char *name) {
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

// A file in the folder that is not read.
static enum status refuse_inside(const char *folder, const char *name, enum file_kind kind) {
    char *inside = file_path("%s/%s", folder, name);
    char *advice = file_kind_advice(kind, inside);
    enum status status = FAIL(STATUS_INVALID, "%s holds %s; %s", folder, file_kind_name(kind), advice);
    free(advice);
    free(inside);
    return status;
}

// "train.bin", but not "Qwen2.5-0.5B"
static bool has_extension(const char *path) {
    const char *slash = strrchr(path, '/'), *dot = strrchr(slash ? slash : path, '.');
    const size_t letters = dot ? strspn(dot + 1, "abcdefghijklmnopqrstuvwxyz") : 0;
    return letters > 0 && dot[1 + letters] == '\0';
}

// "gpt2", "openai-community/gpt2"
static bool is_hub_name(const char *path) {
    const char *slash = strchr(path, '/');
    if (path[strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./")] != '\0' ||
        path[0] == '.' || path[0] == '/' || path[0] == '\0' || has_extension(path))
        return false;
    if (!slash)
        return true;
    char *owner = file_path("%.*s", (int)(slash - path), path);
    const bool is_path = file_exists(owner); // a mistyped path below a folder that exists
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
        "folder "
        "%s. The pattern takes model.safetensors, or the parts and the index of a large model",
        path, owner, path, name, name);
}

enum status weights_refuse(const char *path) {
    if (!file_exists(path))
        return refuse_absent(path);
    if (!file_is_folder(path))
        return refuse_file(path);
    if (holds(path, "pytorch_model.bin") || holds(path, "pytorch_model.bin.index.json"))
        return refuse_inside(path, "pytorch_model.bin", FILE_KIND_PYTORCH);
    if (holds(path, "model.bin"))
        return refuse_inside(path, "model.bin", FILE_KIND_LLMC_MODEL);
    return FAIL(STATUS_INVALID,
                "%s contains no weights: expected a run folder (with checkpoints/), a folder of checkpoints "
                "(with step-N), a checkpoint (with manifest.json), a Hugging Face folder (with "
                "config.json, and model.safetensors or model.safetensors.index.json and the files it names), "
                "or a GGUF model (with model.gguf)",
                path);
}
