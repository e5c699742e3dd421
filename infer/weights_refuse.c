// See infer/weights_refuse.h.
#include "infer/weights_refuse.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "data/shard.h"

#define LLMC_MODEL_MAGIC 20240326

static bool holds(const char *folder, const char *name) {
    char *path = file_path("%s/%s", folder, name);
    bool found = path && file_exists(path);
    free(path);
    return found;
}

// The first four bytes of a file; 0 when there are none.
static uint32_t read_magic(const char *path) {
    int descriptor;
    uint32_t magic = 0;
    if (file_open_regular(path, O_RDONLY, &descriptor) != STATUS_OK) {
        status_clear();
        return 0;
    }
    if (file_read_at(descriptor, 0, sizeof magic, &magic) != 0)
        magic = 0;
    close(descriptor);
    return magic;
}

static enum status refuse_pytorch(const char *path, const char *model) {
    return FAIL(
        STATUS_INVALID,
        "%s holds PyTorch's pickled weights, which can run code when they are read and are not read here. "
        "Convert them once: python3 -c 'from transformers import GPT2LMHeadModel; "
        "GPT2LMHeadModel.from_pretrained(\"%s\").save_pretrained(\"NEW\")', then use the folder NEW",
        path, model);
}

static enum status refuse_file(const char *path) {
    const uint32_t magic = read_magic(path);
    const char *slash = strrchr(path, '/');
    char *folder = slash ? file_path("%.*s", (int)(slash - path), path) : file_path(".");
    enum status status = STATUS_FAILED;
    if (!folder)
        return status;
    if (magic == 0x04034b50 || (magic & 0xff) == 0x80) // a zip archive; a pickle of version 2 or later
        status = refuse_pytorch(path, folder);
    else if (magic == LLMC_MODEL_MAGIC)
        status =
            FAIL(STATUS_INVALID,
                 "%s is a model of llm.c; convert it with llm.c's python dev/eval/export_hf.py --input %s "
                 "--output NEW, then use the folder NEW",
                 path, path);
    else if (magic == SHARD_MAGIC)
        status = FAIL(STATUS_INVALID, "%s is a token shard (for data.train), expected weights", path);
    else
        status =
            FAIL(STATUS_INVALID,
                 "%s is not recognized as weights: expected a .safetensors file with config.json beside it, "
                 "or a folder",
                 path);
    free(folder);
    return status;
}

// "gpt2", "openai-community/gpt2"
static bool is_hub_name(const char *path) {
    const char *slash = strchr(path, '/');
    return path[strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./")] == '\0' &&
           path[0] != '.' && path[0] != '/' && (!slash || (slash[1] && !strchr(slash + 1, '/')));
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
        "download %s%s config.json model.safetensors tokenizer.json --local-dir %s, then use the folder %s",
        path, owner, path, name, name);
}

enum status weights_refuse(const char *path) {
    if (!file_exists(path))
        return refuse_absent(path);
    if (!file_is_folder(path))
        return refuse_file(path);
    if (holds(path, "pytorch_model.bin") || holds(path, "pytorch_model.bin.index.json"))
        return refuse_pytorch(path, path);
    return FAIL(STATUS_INVALID,
                "%s contains no weights: expected a run folder (with checkpoints/), a folder of checkpoints "
                "(with step-N), a checkpoint (with manifest.json) or a Hugging Face GPT-2 folder "
                "(with config.json and model.safetensors, or model.safetensors.index.json)",
                path);
}
