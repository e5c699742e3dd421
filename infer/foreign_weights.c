// See infer/foreign_weights.h. The forms: PEFT's save_pretrained; DeepSpeed's save_checkpoint and
// ds_to_universal.py (0.19.8).
#include "infer/foreign_weights.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"

// An adapter is a change of another model.
static enum status refuse_adapter(const char *path, const char *folder) {
    char *config_path = file_path("%s/adapter_config.json", folder);
    cJSON *config = NULL;
    if (json_read_file(config_path, &config) != STATUS_OK)
        status_clear();
    const char *base =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(config, "base_model_name_or_path"));
    enum status status = FAIL(
        STATUS_INVALID,
        "%s holds an adapter (PEFT) of %s, expected a whole model. Merge them once: python3 -c 'from peft "
        "import AutoPeftModelForCausalLM; AutoPeftModelForCausalLM.from_pretrained(\"%s\")"
        ".merge_and_unload().save_pretrained(\"NEW\")', copy the model's tokenizer into NEW, then use the "
        "folder NEW",
        path, base && *base ? base : "another model", folder);
    cJSON_Delete(config);
    free(config_path);
    return status;
}

// The file with this ending in a folder, a new string; NULL: there is none.
static char *file_with_ending(const char *folder, const char *ending) {
    struct file_list list = {0};
    char *found = NULL;
    if (file_list_folder(&list, folder) != STATUS_OK)
        status_clear();
    for (int i = 0; i < list.n_paths && !found; i++)
        if (text_ends_with(list.paths[i], ending))
            found = file_path("%s/%s", folder, list.paths[i]);
    file_list_free(&list);
    return found;
}

#define MODEL_STATES "_model_states.pt"
#define STATES       "_optim_states.pt"
#define SAVE         "from safetensors.torch import save_file; os.makedirs(\"NEW\"); save_file({"
#define SAVED        "}, \"NEW/model.safetensors\")'"

// states: a file of the checkpoint, "CHECKPOINTS/TAG/mp_rank_00_model_states.pt"
static enum status refuse_deepspeed(const char *path, const char *states) {
    const char *end = strrchr(states, '/');
    char *folder = file_path("%.*s", (int)(end - states), states), *zero = file_path("%s/zero", folder),
         *shard = file_with_ending(folder, STATES);
    const char *slash = strrchr(folder, '/');
    struct text command = {0};
    if (file_is_folder(zero))
        text_add(&command,
                 "-c 'import glob, os, torch; " SAVE "name.split(\"/\")[-2]: torch.load(name)[\"param\"]"
                 ".contiguous() for name in glob.glob(\"%s/*/fp32.pt\")" SAVED,
                 zero);
    else if (shard)
        text_add(&command, "-m deepspeed.utils.zero_to_fp32 %.*s NEW --safe_serialization --tag %s",
                 slash ? (int)(slash - folder) : 1, slash ? folder : ".", slash ? slash + 1 : folder);
    else
        text_add(&command,
                 "-c 'import os, torch; " SAVE "name: tensor.contiguous().clone() for name, tensor in "
                 "torch.load(\"%s\", weights_only=False)[\"module\"].items()" SAVED,
                 states);
    enum status status = FAIL(
        STATUS_INVALID,
        "%s holds a %scheckpoint of DeepSpeed, which is not read here. Convert it once: python3 %s, copy "
        "the model's config.json and tokenizer into NEW, then use the folder NEW",
        path, file_is_folder(zero) ? "universal " : "", command.data);
    text_free(&command);
    free(shard);
    free(zero);
    free(folder);
    return status;
}

// A file of the checkpoint in a folder, or in the one that a file in it names. A new string, or NULL.
static char *find_deepspeed(const char *folder) {
    static const char *const latest[] = {"latest", "latest_universal"};
    char *states = file_with_ending(folder, MODEL_STATES);
    for (int i = 0; i < 2 && !states; i++) {
        char *path = file_path("%s/%s", folder, latest[i]), *tag = NULL;
        size_t length;
        if (!file_exists(path) || file_read(path, NAME_MAX, &tag, &length) != STATUS_OK)
            status_clear();
        else {
            char *named = file_path("%s/%.*s", folder, (int)strcspn(tag, "\r\n"), tag);
            states = file_is_folder(named) ? file_with_ending(named, MODEL_STATES) : NULL;
            free(named);
            free(tag);
        }
        free(path);
    }
    return states;
}

enum status foreign_weights_refuse(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const bool is_folder = file_is_folder(path);
    size_t length = is_folder ? strlen(path) : slash ? (size_t)(slash - path) : 0;
    while (is_folder && length > 1 && path[length - 1] == '/')
        length--;
    char *folder = length ? file_path("%.*s", (int)length, path) : file_path(slash ? "/" : "."),
         *adapter = file_path("%s/adapter_config.json", folder), *states = NULL;
    enum status status = STATUS_OK;
    if (file_exists(adapter) && (is_folder || strncmp(name, "adapter_", 8) == 0))
        status = refuse_adapter(path, folder);
    else if ((is_folder || text_ends_with(name, MODEL_STATES) || text_ends_with(name, STATES)) &&
             (states = find_deepspeed(folder)))
        status = refuse_deepspeed(path, states);
    free(states);
    free(adapter);
    free(folder);
    return status;
}
