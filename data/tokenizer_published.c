// The tiktoken files of Llama 3 (tokenizer.model: 128,000 tokens) and Qwen (qwen.tiktoken: 151,643). They
// hold tokens only; pattern, normalization and control tokens are in the programs that the models came with:
// https://github.com/meta-llama/llama-models (models/llama3/tokenizer.py), and tokenization_qwen.py of
// https://huggingface.co/Qwen/Qwen-7B. Qwen2's tokenizer.json names the same first three control tokens.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer_internal.h"

enum family { FAMILY_NONE, FAMILY_LLAMA3, FAMILY_QWEN };

static enum status add_control(struct token_table *tokens, const char *name) {
    return token_table_add(tokens, name, strlen(name), TOKEN_CONTROL, 0);
}

// "PREFIX7SUFFIX" for the numbers first .. end - 1.
static enum status add_numbered(struct token_table *tokens, const char *prefix, int first, int end,
                                const char *suffix) {
    for (int i = first; i < end; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%d%s", prefix, i, suffix);
        TRY(add_control(tokens, name));
    }
    return STATUS_OK;
}

// 256 tokens, as in Llama 3.1 and later; in Llama 3 some of the reserved ones are at other places.
static enum status add_llama3(struct token_table *tokens) {
    static const char *const names[] = {"<|begin_of_text|>",
                                        "<|end_of_text|>",
                                        "<|reserved_special_token_0|>",
                                        "<|reserved_special_token_1|>",
                                        "<|finetune_right_pad_id|>",
                                        "<|step_id|>",
                                        "<|start_header_id|>",
                                        "<|end_header_id|>",
                                        "<|eom_id|>",
                                        "<|eot_id|>",
                                        "<|python_tag|>"};
    enum { N_NAMES = sizeof names / sizeof *names };
    for (int i = 0; i < N_NAMES; i++)
        TRY(add_control(tokens, names[i]));
    return add_numbered(tokens, "<|reserved_special_token_", 2, 256 - N_NAMES + 2, "|>");
}

static enum status add_qwen(struct token_table *tokens) {
    TRY(add_control(tokens, END_OF_TEXT));
    TRY(add_control(tokens, "<|im_start|>"));
    TRY(add_control(tokens, "<|im_end|>"));
    return add_numbered(tokens, "<|extra_", 0, 205, "|>");
}

// Other programs' models have a tiktoken file named tokenizer.model too; their config.json says so.
static enum status check_model_type(const char *path) {
    const char *slash = strrchr(path, '/');
    char *beside = file_path("%.*sconfig.json", slash ? (int)(slash - path) + 1 : 0, path);
    cJSON *root = NULL;
    if (!beside || (file_exists(beside) && json_read_file(beside, &root) != STATUS_OK))
        status_clear();
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "model_type"));
    const enum status status =
        !type || strncmp(type, "llama", 5) == 0 || strncmp(type, "mllama", 6) == 0
            ? STATUS_OK
            : FAIL(STATUS_INVALID,
                   "%s has the name of Llama 3's tokenizer, but %s names a model of type %.60s; use its "
                   "tokenizer.json",
                   path, beside, type);
    cJSON_Delete(root);
    free(beside);
    return status;
}

// By the names that the files are published under.
static enum family find_family(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return strcmp(name, "tokenizer.model") == 0 ? FAMILY_LLAMA3
           : strcmp(name, "qwen.tiktoken") == 0 ? FAMILY_QWEN
                                                : FAMILY_NONE;
}

// A tokenizer.json could not tell them apart.
static enum status check_names(const struct tokenizer *tokenizer, const char *path) {
    for (int32_t id = 0; id < tokenizer->n_ids; id++) {
        size_t n;
        const char *name = tokenizer_bytes(tokenizer, id, &n);
        if (tokenizer->types[id] == TOKEN_CONTROL && tokenizer_find(tokenizer, name, n) >= 0)
            return FAIL(STATUS_INVALID, "%s: token %d is spelled like the control token %.*s", path,
                        tokenizer_find(tokenizer, name, n), (int)n, name);
    }
    return STATUS_OK;
}

enum status tokenizer_make_published(const char *path, struct token_table *tokens, struct tokenizer **out) {
    const enum family family = find_family(path);
    *out = NULL;
    if (family == FAMILY_NONE)
        return STATUS_OK;
    if (family == FAMILY_LLAMA3)
        TRY(check_model_type(path));
    TRY(family == FAMILY_LLAMA3 ? add_llama3(tokens) : add_qwen(tokens));
    TRY(tokenizer_from_table(tokens, "byte-pair", path, out));
    struct tokenizer *tokenizer = *out;
    tokenizer->rules = (struct token_rules){
        family == FAMILY_LLAMA3 ? TOKEN_PATTERN_LLAMA3 : TOKEN_PATTERN_QWEN2, family == FAMILY_QWEN};
    tokenizer->ignore_merges = true; // as tiktoken does
    if (family == FAMILY_LLAMA3)
        tokenizer->start = tokenizer_find_special(tokenizer, "<|begin_of_text|>");
    enum status status = check_names(tokenizer, path);
    if (status == STATUS_OK)
        status = tokenizer_choose_ends(tokenizer, path, NULL);
    if (status == STATUS_OK)
        status = tokenizer_pair_all(tokenizer, path);
    if (status == STATUS_OK) {
        tokenizer_set_checksum(tokenizer);
        return STATUS_OK;
    }
    tokenizer_delete(tokenizer);
    *out = NULL;
    return status;
}
