// Recognizes the files that PEFT's save_pretrained writes, and those that save_checkpoint and
// ds_to_universal.py of DeepSpeed 0.19.8 write.
#include "infer/foreign_weights.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"

// Returns the path of the last file in a folder (in order of their names) that matches a glob pattern, to be
// freed; NULL if none matches.
static char *last_match(const char *folder, const char *pattern) {
    struct file_list list = {0};
    char *whole = file_path("%s/%s", folder, pattern), *found = NULL;
    if (file_glob(&list, whole) != STATUS_OK)
        status_clear();
    else
        found = copy_string(list.paths[list.n_paths - 1]);
    file_list_free(&list);
    free(whole);
    return found;
}

// The start and the end of a Python command that saves tensors as NEW/model.safetensors.
#define SAVE                                                                                                 \
    "-c 'import os, torch; from safetensors.torch import save_file; os.makedirs(\"NEW\"); save_file({name: "
#define SAVED "}, \"NEW/model.safetensors\")'"

// Refuses a DeepSpeed checkpoint, with the command to convert it.
//   path     what the user named, for the message
//   folder   the folder of all checkpoints, with a file `latest`; or the folder of one checkpoint (TAG)
//   states   a file of model states, such as FOLDER/TAG/mp_rank_00_model_states.pt; without ZeRO it has all
//            weights
static enum status refuse_deepspeed(const char *path, const char *folder, const char *states) {
    char *tag = file_path("%.*s", (int)(strrchr(states, '/') - states), states),
         *universal = last_match(tag, "zero/*/fp32.pt"), *shard = last_match(tag, "*_optim_states.pt"),
         *latest = last_match(folder, "latest");
    struct text command = {0};
    if (universal) // in stage 3, fp32.pt is flat, so the command takes the shapes from `states`
        text_add(
            &command,
            SAVE
            "(lambda t: t[\"param\"] if isinstance(t, dict) else t.flatten()[:shape.numel()].view(shape))"
            "(torch.load(\"%s/zero/\" + name + \"/fp32.pt\")).contiguous() for group in "
            "torch.load(\"%s\", weights_only=False)[\"param_shapes\"] for name, shape in "
            "group.items()" SAVED,
            tag, states);
    else if (shard)
        text_add(&command, "-m deepspeed.utils.zero_to_fp32 %s NEW --safe_serialization%s",
                 latest ? folder : tag, latest ? "" : " --tag .");
    else
        text_add(&command,
                 SAVE "tensor.contiguous().clone() for name, tensor in torch.load(\"%s\", weights_only=False)"
                      "[\"module\"].items()" SAVED,
                 states);
    enum status status = FAIL(
        STATUS_INVALID,
        "%s holds a %scheckpoint of DeepSpeed, which train does not read. Convert it once: python3 %s, copy "
        "the model's config.json and tokenizer into NEW, then use the folder NEW",
        path, universal ? "universal " : "", command.data);
    text_free(&command);
    free(latest);
    free(shard);
    free(universal);
    free(tag);
    return status;
}

enum status foreign_weights_refuse(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const bool is_folder = file_is_folder(path);
    if (!is_folder && strncmp(name, "adapter_", 8) != 0 && !text_ends_with(name, "_states.pt"))
        return STATUS_OK;
    char *folder = is_folder ? copy_string(path)
                             : file_path("%.*s", slash ? (int)(slash - path) : 1, slash ? path : "."),
         *adapter = last_match(folder, "adapter_config.json"),
         *states = last_match(folder, "*_model_states.pt");
    enum status status = STATUS_OK;
    if (!states)
        states = last_match(folder, "*/*_model_states.pt");
    if (adapter) // an adapter has only changes to the weights of another model
        status = FAIL(
            STATUS_INVALID,
            "%s holds an adapter (PEFT), expected a whole model. Merge it into its model once: python3 -c "
            "'from peft import AutoPeftModelForCausalLM; AutoPeftModelForCausalLM.from_pretrained(\"%s\")"
            ".merge_and_unload().save_pretrained(\"NEW\")', copy the tokenizer into NEW, then use the "
            "folder NEW",
            path, folder);
    else if (states)
        status = refuse_deepspeed(path, folder, states);
    free(states);
    free(adapter);
    free(folder);
    return status;
}
