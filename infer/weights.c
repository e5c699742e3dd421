// One interface to checkpoints and Hugging Face folders.
#include "infer/weights.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"

// Also true when the folder cannot be examined: opening it then reports why.
static bool holds(const char *folder, const char *name) {
    enum checkpoint_path_kind kind;
    char *path = file_path("%s/%s", folder, name);
    bool known = path && checkpoint_path_look(path, &kind) == STATUS_OK;
    free(path);
    if (!known)
        status_clear();
    return !known || kind != CHECKPOINT_PATH_ABSENT;
}

enum status weights_open(struct weights *weights, const char *path) {
    *weights = (struct weights){.path = strdup(path)};
    if (!weights->path)
        return FAIL(STATUS_FAILED, "out of memory for the path %s", path);
    if (checkpoint_is_folder(path) || holds(path, "checkpoints") || checkpoint_holds_steps(path)) {
        TRY(checkpoint_open_path(NULL, path, &weights->checkpoint));
        weights->config = weights->checkpoint->params.config;
        return STATUS_OK;
    }
    if (holds(path, "model.safetensors"))
        return huggingface_read_config(path, &weights->config);
    return FAIL(STATUS_INVALID,
                "%s contains no weights: expected a run folder (with checkpoints/), a folder of checkpoints "
                "(with step-N), a checkpoint (with manifest.json) or a Hugging Face GPT-2 folder "
                "(with config.json and model.safetensors)",
                path);
}

enum status weights_bind(struct weights *weights, const struct params *params) {
    if (weights->checkpoint)
        return checkpoint_check_model(weights->checkpoint, params);
    TRY(huggingface_open(&weights->huggingface, weights->path, params));
    weights->huggingface_open = true;
    return STATUS_OK;
}

enum status weights_read_span(const struct weights *weights, int unit, size_t begin, size_t end, float *out) {
    if (weights->checkpoint)
        return checkpoint_read_span(weights->checkpoint, CHECKPOINT_MASTER, unit, begin, end, out);
    huggingface_span(&weights->huggingface, unit, begin, end, out);
    return STATUS_OK;
}

void weights_close(struct weights *weights) {
    checkpoint_close(weights->checkpoint);
    if (weights->huggingface_open)
        huggingface_close(&weights->huggingface);
    free(weights->path);
    *weights = (struct weights){0};
}
