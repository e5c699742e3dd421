// Which token is end-of-text, and which others end generation: from the names of a tokenizer's control
// tokens, and from the files that Hugging Face models have beside it.
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer_export.h"
#include "data/tokenizer_internal.h"

// The JSON of a file beside `path`; NULL when there is none, or it is not JSON.
static cJSON *read_beside(const char *path, const char *name) {
    const char *slash = strrchr(path, '/');
    char *beside = file_path("%.*s%s", slash ? (int)(slash - path) + 1 : 0, path, name);
    cJSON *root = NULL;
    if (!beside || (file_exists(beside) && json_read_file(beside, &root) != STATUS_OK))
        status_clear();
    free(beside);
    return root;
}

static void add_end(struct tokenizer *tokenizer, double id) {
    if (id >= 0 && id < tokenizer->n_ids && id == (double)(int32_t)id &&
        !tokenizer_is_end(tokenizer, (int32_t)id) && tokenizer->n_ends < TOKENIZER_MOST_ENDS)
        tokenizer->ends[tokenizer->n_ends++] = (int32_t)id;
}

// "eos_token": a name, or an object with it as its content.
static void add_named(struct tokenizer *tokenizer, const char *path) {
    cJSON *root = read_beside(path, "tokenizer_config.json");
    const cJSON *token = cJSON_GetObjectItemCaseSensitive(root, "eos_token");
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(token, "content");
    const char *name = cJSON_GetStringValue(content ? content : token);
    if (name)
        add_end(tokenizer, tokenizer_find_special(tokenizer, name));
    cJSON_Delete(root);
}

// "eos_token_id": an id, or a list of them.
static void add_numbered(struct tokenizer *tokenizer, const char *path, const char *name) {
    cJSON *root = read_beside(path, name);
    const cJSON *ids = cJSON_GetObjectItemCaseSensitive(root, "eos_token_id"), *item;
    if (cJSON_IsNumber(ids))
        add_end(tokenizer, ids->valuedouble);
    for (item = cJSON_IsArray(ids) ? ids->child : NULL; item; item = item->next)
        if (cJSON_IsNumber(item))
            add_end(tokenizer, item->valuedouble);
    cJSON_Delete(root);
}

enum status tokenizer_choose_ends(struct tokenizer *tokenizer, const char *path,
                                  const struct token_ends *ends) {
    static const char *const names[] = {END_OF_TEXT, "<|end_of_text|>", "</s>"};
    for (size_t i = 0; i < sizeof names / sizeof *names && tokenizer->end_of_text < 0; i++)
        tokenizer->end_of_text = tokenizer_find_special(tokenizer, names[i]);
    for (int i = 0; ends && i < ends->n; i++)
        add_end(tokenizer, ends->ids[i]);
    if (!ends) {
        add_named(tokenizer, path);
        add_numbered(tokenizer, path, TOKENIZER_ENDS_NAME);
        add_numbered(tokenizer, path, "config.json");
    }
    if (tokenizer->end_of_text < 0 && tokenizer->n_ends > 0)
        tokenizer->end_of_text = tokenizer->ends[0];
    return tokenizer->end_of_text >= 0
               ? STATUS_OK
               : FAIL(STATUS_INVALID,
                      "%s: none of its added tokens is " END_OF_TEXT
                      ", <|end_of_text|> or </s>, and no tokenizer_config.json or config.json beside it "
                      "names the end of a text (eos_token)",
                      path);
}

bool tokenizer_needs_ends(const struct tokenizer *tokenizer) {
    return !tokenizer->is_plain;
}

void tokenizer_add_ends(const struct tokenizer *tokenizer, struct text *out) {
    int n_others = 0;
    for (int i = 0; i < tokenizer->n_ends; i++)
        n_others += tokenizer->ends[i] != tokenizer->end_of_text;
    text_add(out, n_others ? "[%d" : "%d", tokenizer->end_of_text);
    for (int i = 0; i < tokenizer->n_ends; i++)
        if (tokenizer->ends[i] != tokenizer->end_of_text)
            text_add(out, ", %d", tokenizer->ends[i]);
    text_add(out, n_others ? "]" : "");
}
